/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Listeners: at listen() on an address of the policy, one listening socket per class is made behind the
 * server's own.
 *
 * Each asks for its class (FIEF_CLASS) and binds to the server's address; the kernel side moves it to
 * loopback and steers the connections of the class to it. They are all non-blocking, whatever the server's
 * is: which of them has a connection is asked before, and another worker may be faster.
 * Without a policy for the address, or without Fief, nothing happens.
 *
 * Who accepts past the C library never sees the connections of the classes, and they would wait for ever. A process
 * that has an io_uring may do so: it gets no class listeners. One that makes its ring later, or asks the kernel itself
 * for connections to a socket that listen() of the C library made, needs `classes = "shared"` in the policy.
 */
#define _GNU_SOURCE
#include "fronts.h"
#include "real.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* linux/socket.h has them, but does not go with sys/socket.h */
#define RECEIVE_BUFFER_LOCKED 2
#define SEND_BUFFER_LOCKED    1

/* Options that a connection inherits from its listener, or that the listener itself works by. */
static const struct {
	int level, name;
} inherited[] = {
    {SOL_SOCKET, SO_REUSEADDR},
    {SOL_SOCKET, SO_REUSEPORT},
    {SOL_SOCKET, SO_KEEPALIVE},
    {SOL_SOCKET, SO_LINGER},
    {SOL_SOCKET, SO_PRIORITY},
    {SOL_SOCKET, SO_MARK},
    {SOL_SOCKET, SO_RCVLOWAT},
    {SOL_SOCKET, SO_BUSY_POLL},
    {SOL_SOCKET, SO_OOBINLINE},
    {SOL_SOCKET, SO_RCVTIMEO},
    {SOL_SOCKET, SO_SNDTIMEO},
    {SOL_SOCKET, SO_BINDTODEVICE},
    {IPPROTO_IP, IP_TOS},
    {IPPROTO_IP, IP_TTL},
    {IPPROTO_IP, IP_TRANSPARENT},
    {IPPROTO_IPV6, IPV6_V6ONLY},
    {IPPROTO_IPV6, IPV6_TCLASS},
    {IPPROTO_IPV6, IPV6_TRANSPARENT},
    {IPPROTO_TCP, TCP_CONGESTION},
    {IPPROTO_TCP, TCP_NODELAY},
    {IPPROTO_TCP, TCP_MAXSEG},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT},
    {IPPROTO_TCP, TCP_KEEPIDLE},
    {IPPROTO_TCP, TCP_KEEPINTVL},
    {IPPROTO_TCP, TCP_KEEPCNT},
    {IPPROTO_TCP, TCP_SYNCNT},
    {IPPROTO_TCP, TCP_LINGER2},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP},
    {IPPROTO_TCP, TCP_USER_TIMEOUT},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT},
    {IPPROTO_TCP, TCP_SAVE_SYN},
    {IPPROTO_TCP, TCP_FASTOPEN},
};

static void copy_option(int from, int to, int level, int name)
{
	char old[64], now[64];
	socklen_t old_size = sizeof(old), size = sizeof(now);

	if (getsockopt(from, level, name, now, &size) || !size)
		return;
	/* TCP_MAXSEG and others answer with what is in force, which must not become a wish */
	if (!getsockopt(to, level, name, old, &old_size) && old_size == size && !memcmp(old, now, size))
		return;
	real()->setsockopt(to, level, name, now, size);
}

/* Buffers tune themselves until somebody sets them, so only those that were set are copied; the kernel
 * doubles. */
static void copy_buffer(int from, int to, int name, int lock_bit)
{
	int locked = 0, size = 0;
	socklen_t length = sizeof(int);

	if (getsockopt(from, SOL_SOCKET, SO_BUF_LOCK, &locked, &length) || !(locked & lock_bit))
		return;
	length = sizeof(int);
	if (getsockopt(from, SOL_SOCKET, name, &size, &length))
		return;
	size /= 2;
	real()->setsockopt(to, SOL_SOCKET, name, &size, sizeof(size));
}

/* A filter of the classic kind, which connections inherit. One in BPF proper cannot be read back. */
static void copy_filter(int from, int to)
{
	struct sock_fprog program = {};
	socklen_t count = 0;

	/* counted in instructions */
	if (getsockopt(from, SOL_SOCKET, SO_GET_FILTER, NULL, &count) || !count)
		return;
	program.filter = calloc(count, sizeof(*program.filter));
	program.len = count;
	if (program.filter && !getsockopt(from, SOL_SOCKET, SO_GET_FILTER, program.filter, &count))
		real()->setsockopt(to, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
	free(program.filter);
}

static void copy_options(int from, int to)
{
	for (unsigned i = 0; i < sizeof(inherited) / sizeof(inherited[0]); i++)
		copy_option(from, to, inherited[i].level, inherited[i].name);
	copy_buffer(from, to, SO_RCVBUF, RECEIVE_BUFFER_LOCKED);
	copy_buffer(from, to, SO_SNDBUF, SEND_BUFFER_LOCKED);
	copy_filter(from, to);
}

int bind_queue(int front, uint32_t class)
{
	struct sockaddr_storage address;
	socklen_t size = sizeof(address);
	int fd;

	if (getsockname(front, (struct sockaddr *)&address, &size))
		return -1;
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	copy_options(front, fd);
	if (!real()->setsockopt(fd, FIEF_SOL, FIEF_CLASS, &class, sizeof(class)) &&
	    !bind(fd, (struct sockaddr *)&address, size)) {
		real()->fcntl(fd, F_SETSIG, QUEUE_SIGNAL);
		return fd;
	}
	real()->close(fd);
	return -1;
}

int open_queue(int front, uint32_t class, int backlog)
{
	int fd = bind_queue(front, class);

	if (fd < 0 || !real()->listen(fd, backlog))
		return fd;
	real()->close(fd);
	return -1;
}

bool has_io_uring(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	char target[64];
	bool found = false;

	while (folder && !found && (entry = readdir(folder))) {
		ssize_t size = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);

		target[size > 0 ? size : 0] = 0;
		found = !strcmp(target, "anon_inode:[io_uring]");
	}
	if (folder)
		closedir(folder);
	return found;
}

PUBLIC int listen(int fd, int backlog)
{
	int result = real()->listen(fd, backlog), saved = errno;
	struct front *front = front_of(fd);
	struct fief_classes classes;

	if (result)
		return result;
	if (!front && front_ask(fd, &classes) && classes.count && !has_io_uring())
		front = front_new(fd, classes.listener);
	if (front)
		front_open_queues(front, fd, backlog);
	errno = saved;
	return 0;
}

/* ---- what stops to listen ---- */

/*
 * The server pauses, as HAProxy does, or stops. The sockets keep their addresses, and listen() brings them back with the front. A thread that
 * has found the front listening, and makes it a class listener, is waited for.
 */
static void shut_queues(int fd)
{
	struct front *front = front_of(fd);
	int saved = errno;

	if (!front)
		return;
	fronts_lock();
	for (int i = OWN_QUEUE + 1; front_of(fd) == front && i < front->count; i++)
		real()->shutdown(front->queues[i].fd, SHUT_RDWR);
	fronts_unlock();
	errno = saved;
}

PUBLIC int shutdown(int fd, int how)
{
	int result = real()->shutdown(fd, how);

	if (!result && how != SHUT_WR) /* which a listening socket takes no notice of */
		shut_queues(fd);
	return result;
}

/* Without an address it ends what there is: a connection, or that the socket listens. */
PUBLIC int connect(int fd, const struct sockaddr *address, socklen_t size)
{
	int result = real()->connect(fd, address, size);

	if (!result && address->sa_family == AF_UNSPEC)
		shut_queues(fd);
	return result;
}

/* ---- what is set later ---- */

PUBLIC int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
	int result = real()->setsockopt(fd, level, name, value, size), saved = errno;
	struct front *front = front_of(fd);

	if (!front || result || level == FIEF_SOL)
		return result;
	/* one that the server received: it is about to serve it, and may give up the user that class listeners need */
	if (front->count == 1)
		front_refresh(front, fd);
	if (level == SOL_SOCKET && name == SO_RCVTIMEO)
		front_read_timeout(front, fd);
	for (int i = OWN_QUEUE + 1; i < front->count; i++)
		real()->setsockopt(front->queues[i].fd, level, name, value, size);
	errno = saved;
	return result;
}

PUBLIC int ioctl(int fd, unsigned long request, ...)
{
	struct front *front = front_of(fd);
	__builtin_va_list arguments;
	void *argument;
	int result;

	__builtin_va_start(arguments, request);
	argument = __builtin_va_arg(arguments, void *);
	__builtin_va_end(arguments);
	result = real()->ioctl(fd, request, argument);
	if (!front || result)
		return result;
	if (request == FIONBIO)
		front->blocking = !*(int *)argument;
	return result;
}
