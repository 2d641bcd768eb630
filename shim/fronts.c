/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the shim keeps for a listening socket of the server, and how it follows the policy.
 *
 * A policy can be replaced while the server runs. Once a second, when the server waits or accepts, the kernel is asked
 * for the classes again: priorities and orders of accept change at once, and a class that is new gets its listener, if
 * this process may make one (workers that gave up the user of the listening socket may not: such a class goes on
 * through the server's own socket until the server listens again).
 */
#define _GNU_SOURCE
#include "fronts.h"
#include "descriptors.h"
#include "real.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct descriptor descriptors[MAX_DESCRIPTORS];
atomic_int front_count;
static atomic_int used;

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

void fronts_lock(void)
{
	pthread_mutex_lock(&changing);
}

void fronts_unlock(void)
{
	pthread_mutex_unlock(&changing);
}

void fronts_forked(void)
{
	pthread_mutex_init(&changing, NULL); /* whoever held it is not in the child */
}

int descriptors_used(void)
{
	return atomic_load_explicit(&used, memory_order_relaxed);
}

void descriptor_is(int fd, enum kind kind)
{
	int most = descriptors_used();

	while (fd >= most && !atomic_compare_exchange_weak(&used, &most, fd + 1))
		;
	descriptors[fd].kind = kind;
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

void front_read_timeout(struct front *front, int fd)
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
	descriptor_is(fd, FRONT); /* last: who sees a front looks for its record */
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
	front_read_timeout(front, fd);
	front->listener = listener;
	front->waiter = -1;
	front->count = 1;
	front->queues[OWN_QUEUE] = (struct queue){.fd = fd, .priority = 100};
	front_name(front, fd);
	atomic_fetch_add(&front_count, 1);
	return front;
}

/* Others see it when it is whole. */
static void add_queue(struct front *front, int fd, const struct fief_class *class)
{
	struct descriptor *d = descriptor_at(fd);

	if (d) {
		d->front = front;
		descriptor_is(fd, QUEUE);
	}
	front->queues[front->count] = (struct queue){
	    .fd = fd,
	    .priority = class->priority,
	    .after = class->accept == FIEF_ACCEPT_AFTER,
	    .container = class->container.id,
	};
	front->count++;
}

static struct queue *queue_of(struct front *front, uint32_t container)
{
	for (int i = OWN_QUEUE + 1; i < front->count; i++)
		if (front->queues[i].container == container)
			return &front->queues[i];
	return NULL;
}

void front_adopt_queue(struct front *front, int fd, const struct fief_class *class)
{
	if (queue_of(front, class->container.id))
		return;
	real()->fcntl(fd, F_SETFD, FD_CLOEXEC); /* the next program gets it as this one did */
	add_queue(front, fd, class);
}

static void open_queues(struct front *front, int fd, int backlog)
{
	struct fief_classes classes;

	if (!front_ask(fd, &classes))
		return;
	for (uint32_t i = 0; i < classes.count; i++) {
		const struct fief_class *class = &classes.class_[i];
		struct queue *queue = queue_of(front, class->container.id);
		int opened;

		if (queue) {
			queue->priority = class->priority;
			queue->after = class->accept == FIEF_ACCEPT_AFTER;
			continue;
		}
		if (front->refused[i] == class->container.id)
			continue;
		opened = open_queue(fd, i, backlog);
		if (opened < 0) {
			front->refused[i] = class->container.id;
			continue;
		}
		add_queue(front, opened, class);
		events_tell_queue(front, front->count - 1);
	}
}

void front_open_queues(struct front *front, int fd, int backlog)
{
	fronts_lock();
	open_queues(front, fd, backlog);
	fronts_unlock();
}

void front_refresh(struct front *front, int fd)
{
	struct timespec now;
	int saved = errno;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_sec == front->looked || pthread_mutex_trylock(&changing))
		return;
	if (now.tv_sec != front->looked) {
		front->looked = now.tv_sec;
		open_queues(front, fd, SOMAXCONN);
	}
	fronts_unlock();
	errno = saved;
}
