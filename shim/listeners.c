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
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

struct descriptor descriptors[MAX_DESCRIPTORS];
atomic_int front_count;

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
    {SOL_SOCKET, SO_BINDTODEVICE},
    {IPPROTO_IP, IP_TOS},
    {IPPROTO_IP, IP_TTL},
    {IPPROTO_IPV6, IPV6_V6ONLY},
    {IPPROTO_IPV6, IPV6_TCLASS},
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

static void copy_options(int from, int to)
{
	for (unsigned i = 0; i < sizeof(inherited) / sizeof(inherited[0]); i++)
		copy_option(from, to, inherited[i].level, inherited[i].name);
	copy_buffer(from, to, SO_RCVBUF, RECEIVE_BUFFER_LOCKED);
	copy_buffer(from, to, SO_SNDBUF, SEND_BUFFER_LOCKED);
}

/* A listening socket for one class of the front's address, or -1. */
static int open_queue(int front, uint32_t class, int backlog)
{
	struct sockaddr_storage address;
	socklen_t size = sizeof(address);
	int flags = real()->fcntl(front, F_GETFD), fd;

	if (getsockname(front, (struct sockaddr *)&address, &size))
		return -1;
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | (flags & FD_CLOEXEC ? SOCK_CLOEXEC : 0), 0);
	if (fd < 0)
		return -1;
	copy_options(front, fd);
	if (!real()->setsockopt(fd, FIEF_SOL, FIEF_CLASS, &class, sizeof(class)) &&
	    !bind(fd, (struct sockaddr *)&address, size) && !real()->listen(fd, backlog))
		return fd;
	real()->close(fd);
	return -1;
}

void front_sort(struct front *front)
{
	/* stable, and there are few; the front's own stays last */
	for (int i = 1; i < front->count - 1; i++)
		for (int j = i; j && front->queues[j].priority > front->queues[j - 1].priority; j--) {
			struct queue higher = front->queues[j];

			front->queues[j] = front->queues[j - 1];
			front->queues[j - 1] = higher;
		}
}

bool front_ask(int fd, struct fief_classes *answer)
{
	socklen_t size = sizeof(*answer);

	memset(answer, 0, size);
	if (getsockopt(fd, FIEF_SOL, FIEF_CLASSES, answer, &size) || size < sizeof(*answer))
		return false;
	return answer->listener != FIEF_NO_LISTENER && answer->count <= FIEF_MAX_CLASSES;
}

static pthread_mutex_t *shared_mutex(void)
{
	pthread_mutex_t *mutex = mmap(NULL, sizeof(*mutex), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t attributes;

	if (mutex == MAP_FAILED)
		return NULL;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(mutex, &attributes);
	pthread_mutexattr_destroy(&attributes);
	return mutex;
}

static void read_timeout(struct front *front, int fd)
{
	struct timeval timeout = {};
	socklen_t size = sizeof(timeout);

	if (getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, &size))
		return;
	front->receive_timeout = (struct timespec){timeout.tv_sec, timeout.tv_usec * 1000};
}

void front_name(struct front *front, int fd)
{
	struct descriptor *d = descriptor_at(fd);

	if (!d)
		return;
	front->names++;
	d->front = front;
	d->kind = FRONT;
}

/* A front without queues yet but its own. */
struct front *front_new(int fd, int listener)
{
	struct front *front = descriptor_at(fd) ? calloc(1, sizeof(*front)) : NULL;

	if (!front)
		return NULL;
	front->turn = shared_mutex();
	if (!front->turn) {
		free(front);
		return NULL;
	}
	front->blocking = !(real()->fcntl(fd, F_GETFL) & O_NONBLOCK);
	read_timeout(front, fd);
	front->listener = listener;
	front->waiter = -1;
	front->count = 1;
	front->queues[0] = (struct queue){.fd = fd, .priority = 100};
	front_name(front, fd);
	atomic_fetch_add(&front_count, 1);
	return front;
}

void front_add_queue(struct front *front, int fd, const struct fief_class *class)
{
	struct queue own = front->queues[front->count - 1];
	struct descriptor *d = descriptor_at(fd);

	if (d) {
		d->kind = QUEUE;
		d->front = front;
	}
	front->queues[front->count - 1] = (struct queue){
	    .fd = fd,
	    .priority = class->priority,
	    .after = class->accept == FIEF_ACCEPT_AFTER,
	    .container = class->container.id,
	};
	front->queues[front->count++] = own;
}

static bool has_queue(const struct front *front, uint32_t container)
{
	for (int i = 0; i < front->count - 1; i++)
		if (front->queues[i].container == container)
			return true;
	return false;
}

static bool has_io_uring(void)
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

/* Those that are missing. */
void front_open_queues(struct front *front, int fd, int backlog)
{
	struct fief_classes classes;

	if (!front_ask(fd, &classes))
		return;
	for (uint32_t i = 0; i < classes.count; i++) {
		int queue = has_queue(front, classes.class_[i].container.id) ? -1 : open_queue(fd, i, backlog);

		if (queue >= 0)
			front_add_queue(front, queue, &classes.class_[i]);
	}
	front_sort(front);
}

PUBLIC int listen(int fd, int backlog)
{
	int result = real()->listen(fd, backlog), saved = errno;
	struct front *front = front_of(fd);
	struct fief_classes classes;

	if (result)
		return result;
	for (int i = 0; front && i < front->count - 1; i++)
		real()->listen(front->queues[i].fd, backlog);
	if (!front && front_ask(fd, &classes) && classes.count && !has_io_uring())
		front = front_new(fd, classes.listener);
	if (front)
		front_open_queues(front, fd, backlog);
	errno = saved;
	return 0;
}

/* ---- what is set later ---- */

PUBLIC int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
	int result = real()->setsockopt(fd, level, name, value, size), saved = errno;
	struct front *front = front_of(fd);

	if (!front || result || level == FIEF_SOL)
		return result;
	if (level == SOL_SOCKET && name == SO_RCVTIMEO)
		read_timeout(front, fd);
	else
		for (int i = 0; i < front->count - 1; i++)
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
	if (request == FIOCLEX || request == FIONCLEX)
		for (int i = 0; i < front->count - 1; i++)
			real()->ioctl(front->queues[i].fd, request, NULL);
	return result;
}
