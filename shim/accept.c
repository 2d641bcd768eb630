/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * accept: from the queue that is next by priority.
 *
 * An event loop was told of a queue before it calls accept(): that queue is taken, without asking again. Who
 * calls by itself (a blocking server, one that accepts until EAGAIN) gets the best of those that are ready
 * now.
 * The class listeners never block; for a blocking front all of them are waited for.
 */
#define _GNU_SOURCE
#include "order.h"
#include "real.h"
#include "turns.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

/* Queues that have a connection now. */
static int ready_queues(struct front *front, uint64_t *ready)
{
	struct pollfd sockets[MAX_QUEUES];
	int count;

	for (int i = 0; i < front->count; i++)
		sockets[i] = (struct pollfd){.fd = front->queues[i].fd, .events = POLLIN};
	count = real()->poll(sockets, front->count, 0);
	*ready = 0;
	for (int i = 0; count > 0 && i < front->count; i++)
		if (sockets[i].revents)
			*ready |= 1ull << i;
	return count;
}

/* An event descriptor over the queues. EPOLLEXCLUSIVE: a connection wakes one of many workers, as accept() does. */
static int waiter_make(struct front *front)
{
	struct descriptor *d;
	int fd;

	fd = real()->epoll_create1(EPOLL_CLOEXEC);
	d = descriptor_at(fd);
	if (!d)
		return fd;
	for (int i = 0; i < front->count; i++) {
		struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = i};

		if (front->queues[i].fd >= 0)
			real()->epoll_ctl(fd, EPOLL_CTL_ADD, front->queues[i].fd, &event);
	}
	d->front = front;
	descriptor_is(fd, WAITER);
	front->waiter = fd;
	front->waiter_owner = own_process;
	return fd;
}

static int waiter(struct front *front)
{
	int fd = -1;

	if (front->waiter >= 0 && front->waiter_owner == own_process)
		return front->waiter;
	fronts_lock();
	if (front->waiter >= 0 && front->waiter_owner == own_process)
		fd = front->waiter;
	else if (front->names) /* or another thread has closed it, and would not close this one */
		fd = waiter_make(front);
	fronts_unlock();
	return fd;
}

/* Waits until a queue has a connection, as long as SO_RCVTIMEO says. */
static int wait_for_queues(struct front *front, uint64_t *ready)
{
	const struct timespec *most = &front->receive_timeout;
	struct epoll_event events[MAX_QUEUES];
	int fd = waiter(front), count;

	if (most->tv_sec || most->tv_nsec)
		count = real()->epoll_pwait2(fd, events, MAX_QUEUES, most, NULL);
	else
		count = real()->epoll_pwait(fd, events, MAX_QUEUES, -1, NULL);
	*ready = 0;
	for (int i = 0; i < count; i++)
		*ready |= 1ull << events[i].data.u64;
	return count;
}

/* From the front's own queue, which blocks if the server made it so: nobody else looks between poll and
 * accept. */
static int accept_own(struct front *front, int fd, struct sockaddr *address, socklen_t *size, int flags)
{
	struct pollfd own = {.fd = fd, .events = POLLIN};
	int result = -1, saved;

	if (!front->blocking)
		return real()->accept4(fd, address, size, flags);
	turn_lock(front->turn);
	if (real()->poll(&own, 1, 0) == 1)
		result = real()->accept4(fd, address, size, flags);
	else
		errno = EAGAIN;
	saved = errno;
	turn_unlock(front->turn);
	errno = saved;
	return result;
}

static int accept_from(struct front *front, int fd, int queue, struct sockaddr *address, socklen_t *size, int flags)
{
	socklen_t room = size ? *size : 0;
	struct descriptor *d;
	int result;

	if (queue == OWN_QUEUE)
		result = accept_own(front, fd, address, size, flags);
	else
		result = real()->accept4(front->queues[queue].fd, address, size, flags);
	if (result < 0) {
		if (errno == EBADF && front->queues[queue].fd < 0)
			errno = EAGAIN; /* the server closed what it did not know */
		if (size)
			*size = room;
		return result;
	}
	d = descriptor_at(result);
	if (d) {
		d->priority = front->queues[queue].priority;
		d->events = -1;
		d->pending = 0;
		descriptor_is(result, CONNECTION);
	}
	return result;
}

/* The best of `ready` that still has one; -1 with EAGAIN if another worker took them all. */
static int accept_best(struct front *front, int fd, uint64_t ready, struct sockaddr *address, socklen_t *size,
		       int flags)
{
	while (ready) {
		int queue = order_next(front->queues, front->count, ready);
		int result = accept_from(front, fd, queue, address, size, flags);

		if (result >= 0 || errno != EAGAIN)
			return result;
		ready &= ~(1ull << queue);
	}
	errno = EAGAIN;
	return -1;
}

static int accept_offered(struct front *front, int fd, struct sockaddr *address, socklen_t *size, int flags)
{
	uint64_t offered;

	while ((offered = atomic_load(&front->offered))) {
		int queue = order_best(front->queues, front->count, offered), result;

		if (queue < 0)
			break;
		if (!(atomic_fetch_and(&front->offered, ~(1ull << queue)) >> queue & 1))
			continue; /* another thread was faster */
		result = accept_from(front, fd, queue, address, size, flags);
		if (result >= 0 || errno != EAGAIN)
			return result;
	}
	errno = EAGAIN;
	return -1;
}

/*
 * accept() goes on after a signal whose handler asks for it (SA_RESTART); poll() never does. Which handler
 * ran is not told, so it goes on only if every handler of the process asks for it.
 */
static bool restarts(void)
{
	for (int signal = 1; signal < SIGRTMAX; signal++) {
		struct sigaction action;

		if (sigaction(signal, NULL, &action) || action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)
			continue;
		if (!(action.sa_flags & SA_RESTART))
			return false;
	}
	return true;
}

PUBLIC int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
	struct front *front = front_of(fd);
	int result;

	if (front)
		front_refresh(front, fd);
	if (!front || front->count == 1)
		return real()->accept4(fd, address, size, flags);
	result = accept_offered(front, fd, address, size, flags);
	while (result < 0 && errno == EAGAIN) {
		uint64_t ready;
		int count = front->blocking ? wait_for_queues(front, &ready) : ready_queues(front, &ready);

		if (count < 0 && errno == EINTR && front->blocking && restarts()) {
			errno = EAGAIN;
			continue;
		}
		if (count < 0)
			return -1;
		if (!count) {
			errno = EAGAIN;
			return -1;
		}
		result = accept_best(front, fd, ready, address, size, flags);
		if (!front->blocking)
			break;
	}
	return result;
}

PUBLIC int accept(int fd, struct sockaddr *address, socklen_t *size)
{
	return accept4(fd, address, size, 0);
}
