/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Inherited: listening sockets that a process did not make itself, over fork and exec, or in a message.
 *
 * A program finds its fronts, and the class listeners that were passed on with them (exec.c): the kernel knows which front they
 * belong to. Who gets a listening socket from another process (SCM_RIGHTS, as HAProxy does when it replaces itself) gets no class
 * listeners with it, and does not always listen again. It makes its own ones when it waits, accepts, or sets an option: who only
 * hands the socket on would not accept from them. As long as the sender has its own, the classes go there.
 *
 * Limits: sockets that come by recvmmsg(), pidfd_getfd() or the kernel's own call have their classes once the server listens again.
 */
#define _GNU_SOURCE
#include "descriptors.h"
#include "real.h"
#include "turns.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- fork ---- */

static void forked(void)
{
	own_process = getpid();
	fronts_forked();
	events_forked();
}

/* ---- exec ---- */

/* A listening socket of the policy that was inherited: `classes.self` tells which side of the front it is. */
static bool inherited(int fd, struct fief_classes *classes)
{
	return is_listening(fd) && front_ask(fd, classes);
}

/*
 * The class of a container. Where the policy has none any more, nobody is steered to its listener, and those that wait there are served
 * as clients of the front itself.
 */
static struct fief_class class_of(const struct fief_classes *classes, struct fief_ref container)
{
	const struct fief_class *found = find_class(classes, container);

	return found ? *found : (struct fief_class){.container = container, .priority = OWN_PRIORITY};
}

/*
 * Gives a class listener to a front of its listener that has none of this class yet (several: SO_REUSEPORT). False: there is none.
 * By the container: the policy may be another one than when the listener was made, and classes have other places in it. The kernel
 * side of an older Fief tells no container: then the place has to do.
 */
static bool adopt(int fd, const struct fief_classes *self)
{
	for (int i = 0; i < MAX_DESCRIPTORS && i < 65536; i++) {
		struct front *front = descriptors[i].kind == FRONT ? descriptors[i].front : NULL;
		struct fief_ref container = self->class_[0].container;
		struct fief_classes classes;
		struct fief_class class;

		if (!front || front->listener != (int)self->listener || !front_ask(i, &classes))
			continue;
		if (container.id == FIEF_ROOT) {
			if (self->self >= classes.count)
				continue;
			container = classes.class_[self->self].container;
		}
		class = class_of(&classes, container);
		if (front_adopt_queue(front, fd, &class))
			return true;
	}
	return false;
}

static uint64_t cookie_of(int fd)
{
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);

	return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) ? 0 : cookie;
}

/* A listening socket under a name that is new here: it may have another one. */
static void front_found(int fd, int listener)
{
	uint64_t cookie = cookie_of(fd);

	for (int i = 0; cookie && i < descriptors_used(); i++) {
		struct front *front = front_of(i);

		if (!front || i == fd || front->listener != listener || cookie_of(i) != cookie)
			continue;
		front_name(front, fd);
		return;
	}
	front_new(fd, listener);
}

/* Finds the fronts, or what belongs to them; whether there are class listeners. */
static bool scan(bool fronts)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	bool queues = false;

	if (!folder)
		return false;
	while ((entry = readdir(folder))) {
		struct fief_classes classes;
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] == '.' || fd == dirfd(folder) || !inherited(fd, &classes))
			continue;
		if (fronts && classes.self == FIEF_NO_CLASS && classes.count)
			front_found(fd, classes.listener);
		queues |= classes.self != FIEF_NO_CLASS;
		/* nobody here would accept from one without a front: its clients go to the server's own socket */
		if (!fronts && classes.self != FIEF_NO_CLASS && !adopt(fd, &classes) &&
		    real()->fcntl(fd, F_GETSIG) == QUEUE_SIGNAL)
			real()->close(fd);
	}
	closedir(folder);
	return queues;
}

static __attribute__((constructor)) void start(void)
{
	own_process = getpid();
	pthread_atfork(NULL, turns_forked, forked);
	/* what was closed on the way is made again by whoever accepts: a helper that only inherited the listener would not serve it */
	if (scan(true))
		scan(false);
}

/* ---- messages ---- */

static void received(int fd)
{
	struct fief_classes classes;

	if (!inherited(fd, &classes) || classes.self != FIEF_NO_CLASS || !classes.count || has_io_uring())
		return;
	descriptor_forget(fd); /* what it meant was closed past the C library */
	if (in_own_process())
		front_found(fd, classes.listener);
}

PUBLIC ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t result = real()->recvmsg(fd, message, flags);
	int saved = errno;

	if (result < 0 || !message->msg_controllen)
		return result;
	for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
		size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int came;

			memcpy(&came, CMSG_DATA(part) + i * sizeof(came), sizeof(came));
			received(came);
		}
	}
	errno = saved;
	return result;
}
