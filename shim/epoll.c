/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * epoll: the class listeners behind a front are added, changed and removed with it, and what the kernel tells
 * goes through events_order.
 *
 * Limits: a one-shot front in a set that several processes wait on: one does not know that another has armed it again.
 */
#define _GNU_SOURCE
#include "descriptors.h"
#include "events.h"
#include "real.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct events *set_of(int fd)
{
	struct descriptor *d = descriptor_at(fd);

	return d && d->kind == EVENTS ? d->set : NULL;
}

static struct events *set_new(int fd)
{
	struct descriptor *d = descriptor_at(fd);
	struct events *set = set_of(fd);

	if (set || !d)
		return set;
	fronts_lock();
	set = set_of(fd); /* another thread may have been faster */
	if (!set)
		set = calloc(1, sizeof(*set));
	if (set && d->kind != EVENTS) {
		pthread_mutex_init(&set->lock, NULL);
		set->fd = fd;
		set->owner = own_process;
		d->set = set;
		descriptor_is(fd, EVENTS);
	}
	fronts_unlock();
	return set;
}

void events_forget(int fd)
{
	struct events *set = set_of(fd);

	if (!set)
		return;
	fronts_lock(); /* nobody tells it of a queue meanwhile */
	descriptors[fd].kind = PLAIN;
	descriptors[fd].set = NULL;
	fronts_unlock();
	for (int i = 0; i < set->level_count; i++)
		free(set->levels[i].held);
	for (int i = 0; i < FRONT_CHUNKS && set->registered[i]; i++)
		free(set->registered[i]);
	pthread_mutex_destroy(&set->lock);
	free(set);
}

/*
 * In a new child: a thread that held the lock is not in it. The parent may wait for events of the same set, so the child holds
 * nothing back; what it inherited as held it hands out, though the parent does so too.
 */
void events_forked(void)
{
	for (int fd = 0; fd < descriptors_used(); fd++) {
		struct events *set = set_of(fd);

		if (!set)
			continue;
		pthread_mutex_init(&set->lock, NULL);
		set->shared = true;
	}
}

/* Somebody waits for the event descriptor itself, who cannot see what is held. */
void events_share(int fd)
{
	struct events *set = set_of(fd);

	if (set)
		set->shared = true;
}

/* ---- epoll_ctl ---- */

static int position(struct events *set, int fd)
{
	for (int i = 0; i < set->registered_count; i++)
		if (registered_at(set, i)->front && registered_at(set, i)->fd == fd)
			return i;
	return -1;
}

static void queue_control(struct events *set, int operation, int at, uint32_t mask)
{
	struct registered *r = registered_at(set, at);

	r->disarmed = false;
	for (int i = OWN_QUEUE + 1; i < r->front->count; i++) {
		struct epoll_event event = {.events = mask, .data.u64 = events_mark(at, i)};

		real()->epoll_ctl(set->fd, operation, r->front->queues[i].fd, &event);
		r->pending[i] = 0;
	}
}

void events_tell_queue(struct front *front, int operation, int queue)
{
	for (int i = 0; i < front->set_count; i++) {
		struct events *set = set_of(front->sets[i]);

		/* a child takes nothing out of its parent's set */
		if (!set || (operation == EPOLL_CTL_DEL && set->owner != own_process))
			continue;
		pthread_mutex_lock(&set->lock);
		for (int at = 0; at < set->registered_count; at++) {
			struct registered *r = registered_at(set, at);
			struct epoll_event event = {.events = r->mask, .data.u64 = events_mark(at, queue)};

			if (r->front == front)
				real()->epoll_ctl(set->fd, operation, front->queues[queue].fd, &event);
		}
		pthread_mutex_unlock(&set->lock);
	}
	if (front->waiter >= 0 && front->waiter_owner == own_process) {
		struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = queue};

		real()->epoll_ctl(front->waiter, operation, front->queues[queue].fd, &event);
	}
}

/* A free place for a front; -1: there is none. */
static int front_place(struct events *set)
{
	struct registered **chunk;
	int at;

	for (at = 0; at < set->registered_count && registered_at(set, at)->front; at++)
		;
	if (at == FRONTS_PER_SET)
		return -1;
	chunk = &set->registered[at / FRONT_CHUNK];
	if (!*chunk)
		*chunk = calloc(FRONT_CHUNK, sizeof(**chunk));
	return *chunk ? at : -1;
}

static void front_add(struct events *set, struct front *front, int fd, const struct epoll_event *event)
{
	int at = front_remember(front, set->fd) ? front_place(set) : -1;

	if (at < 0) {
		front_close_queues(
		    front); /* nobody would hear of their connections; the front's own queue takes them */
		return;
	}
	*registered_at(set, at) =
	    (struct registered){.front = front, .fd = fd, .mask = event->events, .data = event->data.u64};
	if (at == set->registered_count)
		set->registered_count = at + 1;
	queue_control(set, EPOLL_CTL_ADD, at, event->events);
}

void events_forget_front(struct events *set, int fd, bool closed)
{
	int at;

	pthread_mutex_lock(&set->lock);
	at = position(set, fd);
	if (at >= 0) {
		/* a child that closes what it inherited takes nothing out of its parent's set */
		if (!closed || set->owner == own_process)
			queue_control(set, EPOLL_CTL_DEL, at, 0);
		registered_at(set, at)->front = NULL;
	}
	pthread_mutex_unlock(&set->lock);
}

static void front_control(int events, int operation, struct front *front, int fd, const struct epoll_event *event)
{
	struct events *set = set_new(events);
	int at;

	if (!set)
		return;
	if (operation == EPOLL_CTL_DEL) {
		events_forget_front(set, fd, false);
		return;
	}
	if (operation == EPOLL_CTL_ADD)
		fronts_lock();
	pthread_mutex_lock(&set->lock);
	at = position(set, fd);
	if (operation == EPOLL_CTL_ADD && at < 0) {
		front_add(set, front, fd, event);
	} else if (at >= 0) {
		registered_at(set, at)->mask = event->events;
		registered_at(set, at)->data = event->data.u64;
		queue_control(set, EPOLL_CTL_MOD, at, event->events);
	}
	pthread_mutex_unlock(&set->lock);
	if (operation == EPOLL_CTL_ADD)
		fronts_unlock();
}

/* The kernel has taken it. Under the lock of the set. */
static void connection_note(struct events *set, int operation, struct descriptor *d, int fd,
			    const struct epoll_event *event)
{
	d->pending = 0; /* the kernel looks again, and tells what is still so */
	d->events = operation == EPOLL_CTL_DEL ? -1 : set->fd;
	if (operation == EPOLL_CTL_DEL)
		return;
	d->mask = event->events;
	d->data = event->data.u64;
	events_hint(set, d->data, fd);
}

/*
 * The lock is held from before the kernel is asked: it may tell another thread at once, which would hold the event and have it
 * cleared here.
 */
static int connection_control(int events, int operation, struct descriptor *d, int fd, struct epoll_event *event)
{
	struct events *set = set_of(events);
	int result, saved;

	if (set)
		pthread_mutex_lock(&set->lock);
	result = real()->epoll_ctl(events, operation, fd, event);
	saved = errno;
	if (!set && !result) {
		/* that it is a set only the kernel knew; nothing of it is held yet */
		set = set_new(events);
		if (set)
			pthread_mutex_lock(&set->lock);
	}
	if (set && !result)
		connection_note(set, operation, d, fd, event);
	if (set)
		pthread_mutex_unlock(&set->lock);
	errno = saved;
	return result;
}

PUBLIC int epoll_ctl(int events, int operation, int fd, struct epoll_event *event)
{
	bool served = atomic_load_explicit(&front_count, memory_order_relaxed);
	struct descriptor *d = descriptor_at(fd);
	int result, saved;

	if (served && d && d->kind == CONNECTION)
		return connection_control(events, operation, d, fd, event);
	result = real()->epoll_ctl(events, operation, fd, event);
	saved = errno;
	if (result || !d || d->kind == PLAIN || !served)
		return result;
	if (d->kind == FRONT)
		front_control(events, operation, d->front, fd, event);
	else if (d->kind == EVENTS)
		events_share(fd);
	errno = saved;
	return result;
}

/* ---- epoll_wait ---- */

/*
 * Whether something is held, and how many events to ask for at most. From now on nothing is, if another thread waits too: either
 * that thread, when it puts its events in order, sees that the set is shared, or this one sees what it held.
 */
static bool waiter_note(struct events *set, int *most)
{
	bool held;

	pthread_mutex_lock(&set->lock);
	if (set->waited && !pthread_equal(set->waiter, pthread_self()))
		set->shared = true;
	set->waiter = pthread_self();
	set->waited = true;
	held = set->held_count;
	*most = set->many_again ? FETCH_AGAIN : FETCH;
	pthread_mutex_unlock(&set->lock);
	return held;
}

/* The time that is left of `timeout` since `start`; NULL waits for ever. */
static const struct timespec *left(const struct timespec *timeout, const struct timespec *start, struct timespec *rest)
{
	struct timespec now;

	if (!timeout)
		return NULL;
	clock_gettime(CLOCK_MONOTONIC, &now);
	rest->tv_sec = timeout->tv_sec - (now.tv_sec - start->tv_sec);
	rest->tv_nsec = timeout->tv_nsec - (now.tv_nsec - start->tv_nsec);
	for (; rest->tv_nsec < 0; rest->tv_nsec += 1000000000)
		rest->tv_sec--;
	for (; rest->tv_nsec >= 1000000000; rest->tv_nsec -= 1000000000)
		rest->tv_sec++;
	if (rest->tv_sec < 0)
		*rest = (struct timespec){};
	return rest;
}

static int kernel_wait(int fd, struct epoll_event *events, int room, const struct timespec *timeout,
		       const sigset_t *mask)
{
	if (!timeout)
		return real()->epoll_pwait(fd, events, room, -1, mask);
	if (!timeout->tv_sec && !timeout->tv_nsec)
		return real()->epoll_pwait(fd, events, room, 0, mask);
	return real()->epoll_pwait2(fd, events, room, timeout, mask);
}

static void fronts_refresh(struct events *set)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_sec == set->refreshed)
		return;
	set->refreshed = now.tv_sec;
	for (int i = 0;; i++) {
		struct front *front = NULL;
		bool more;
		int fd = -1;

		pthread_mutex_lock(&set->lock);
		more = i < set->registered_count;
		if (more) {
			front = registered_at(set, i)->front;
			fd = registered_at(set, i)->fd;
		}
		pthread_mutex_unlock(&set->lock);
		if (front)
			front_refresh(front, fd); /* takes the lock itself */
		if (!more)
			return;
	}
}

static int wait_in_order(struct events *set, struct epoll_event *out, int room, const struct timespec *timeout,
			 const sigset_t *mask)
{
	static const struct timespec at_once;
	struct epoll_event fresh[FETCH];
	struct timespec start = {}, rest;

	for (bool again = false;; again = true) {
		int most, count, ready;
		bool held = waiter_note(set, &most);

		if (held && timeout && !again)
			clock_gettime(CLOCK_MONOTONIC, &start);
		most = room < most ? room : most;
		fronts_refresh(set);
		count = kernel_wait(set->fd, fresh, most,
				    held ? &at_once : (again ? left(timeout, &start, &rest) : timeout), mask);
		if (count < 0 && !held)
			return -1;
		pthread_mutex_lock(&set->lock);
		ready = events_order(set, fresh, count < 0 ? 0 : count, out, room);
		pthread_mutex_unlock(&set->lock);
		/*
		 * Nothing: the time is over, or all that was held had become void, or all that was told is of fronts that
		 * have left. Who waits for ever is not told of nothing.
		 */
		if (ready || (!held && (timeout || count <= 0)))
			return ready;
	}
}

PUBLIC int epoll_pwait2(int fd, struct epoll_event *events, int room, const struct timespec *timeout,
			const sigset_t *mask)
{
	struct events *set = set_of(fd);

	if (!set || room <= 0 || !events)
		return real()->epoll_pwait2(fd, events, room, timeout, mask);
	return wait_in_order(set, events, room, timeout, mask);
}

PUBLIC int epoll_pwait(int fd, struct epoll_event *events, int room, int timeout, const sigset_t *mask)
{
	struct timespec time = {timeout / 1000, timeout % 1000 * 1000000};
	struct events *set = set_of(fd);

	if (!set || room <= 0 || !events)
		return real()->epoll_pwait(fd, events, room, timeout, mask);
	return wait_in_order(set, events, room, timeout < 0 ? NULL : &time, mask);
}

PUBLIC int epoll_wait(int fd, struct epoll_event *events, int room, int timeout)
{
	return epoll_pwait(fd, events, room, timeout, NULL);
}
