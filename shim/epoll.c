/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * epoll_ctl: the class listeners behind a front are added, changed and removed with it.
 *
 * Limits: an instance that several processes wait on (a child that inherited it) is kept by each for itself. A front that is in
 * no other one gets no new class listener in a child: the child would be the only one to accept from it, and the kernel would tell
 * the others too. What the parent adds later, and what one of them arms again of a one-shot front, the others do not know.
 */
#define _GNU_SOURCE
#include "descriptors.h"
#include "events.h"
#include "real.h"
#include "sets.h"

#include <errno.h>
#include <stdlib.h>

/* `fd`: that it was added by; -1: any. */
static int position(struct events *set, const struct front *front, int fd)
{
	for (int i = 0; i < set->registered_count; i++)
		if (registered_at(set, i)->front == front && (fd < 0 || registered_at(set, i)->fd == fd))
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
	for (struct events *set = sets; set; set = set->next) {
		/* a child puts nothing into its parent's set, which the parent would be told of, and takes nothing out */
		if (!set_is_own(set))
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

bool events_are_foreign(const struct front *front)
{
	bool foreign = false;

	for (struct events *set = sets; set; set = set->next) {
		bool in;

		pthread_mutex_lock(&set->lock);
		in = set->names && position(set, front, -1) >= 0;
		pthread_mutex_unlock(&set->lock);
		if (in && set_is_own(set))
			return false;
		foreign |= in;
	}
	return foreign;
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

/* Forgets the front, with the events of it that are held back. */
static void place_leave(struct events *set, int at)
{
	struct registered *r = registered_at(set, at);

	for (int i = 0; i < MAX_QUEUES; i++)
		r->pending[i] = 0;
	r->front = NULL;
}

static void front_add(struct events *set, struct front *front, int fd, const struct epoll_event *event)
{
	int at = front_place(set);

	if (at < 0) {
		/* nobody would hear of their connections; the front's own queue takes them */
		front_close_queues(front);
		return;
	}
	*registered_at(set, at) =
	    (struct registered){.front = front, .fd = fd, .mask = event->events, .data = event->data.u64};
	if (at == set->registered_count)
		set->registered_count = at + 1;
	queue_control(set, EPOLL_CTL_ADD, at, event->events);
}

/*
 * Under the lock of the set. The kernel has a class listener once in it, also where its front was added by two names: then it is told of
 * for the other one from now on.
 */
static void front_leaves(struct events *set, int at)
{
	struct front *front = registered_at(set, at)->front;
	struct registered *other;
	bool disarmed;

	queue_control(set, EPOLL_CTL_DEL, at, 0);
	place_leave(set, at);
	at = position(set, front, -1);
	if (at < 0)
		return;
	other = registered_at(set, at);
	disarmed = other->disarmed;
	queue_control(set, EPOLL_CTL_ADD, at, other->mask);
	other->disarmed = disarmed;
}

void events_forget_front(const struct front *front)
{
	for (struct events *set = sets; set; set = set->next) {
		pthread_mutex_lock(&set->lock);
		for (int at; (at = position(set, front, -1)) >= 0;) {
			/* a child that closes what it inherited takes nothing out of its parent's set */
			if (set_is_own(set))
				queue_control(set, EPOLL_CTL_DEL, at, 0);
			place_leave(set, at);
		}
		pthread_mutex_unlock(&set->lock);
	}
}

void events_forget_name(const struct front *front, int fd)
{
	for (struct events *set = sets; set; set = set->next) {
		int at;

		pthread_mutex_lock(&set->lock);
		at = position(set, front, fd);
		if (at >= 0)
			registered_at(set, at)->closed = true;
		pthread_mutex_unlock(&set->lock);
	}
}

static void front_control(int events, int operation, struct front *front, int fd, const struct epoll_event *event)
{
	struct events *set = set_enter_new(events);
	int at;

	if (!set)
		return;
	if (operation == EPOLL_CTL_ADD)
		fronts_lock();
	pthread_mutex_lock(&set->lock);
	at = position(set, front, fd);
	if (operation == EPOLL_CTL_DEL) {
		if (at >= 0)
			front_leaves(set, at);
	} else if (operation == EPOLL_CTL_ADD && at < 0) {
		front_add(set, front, fd, event);
	} else if (at >= 0) {
		registered_at(set, at)->closed = false; /* the number means it again, as the kernel knows it */
		registered_at(set, at)->mask = event->events;
		registered_at(set, at)->data = event->data.u64;
		queue_control(set, EPOLL_CTL_MOD, at, event->events);
	}
	pthread_mutex_unlock(&set->lock);
	if (operation == EPOLL_CTL_ADD)
		fronts_unlock();
	set_leave(set);
}

/* The kernel has taken it. Under the lock of the set. */
static void connection_note(struct events *set, int operation, struct descriptor *d, int fd,
			    const struct epoll_event *event)
{
	d->pending = 0; /* the kernel looks again, and tells what is still so */
	d->events = operation == EPOLL_CTL_DEL ? -1 : set->id;
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
	struct events *set = set_enter(events);
	int result, saved;

	if (set)
		pthread_mutex_lock(&set->lock);
	result = real()->epoll_ctl(events, operation, fd, event);
	saved = errno;
	if (!set && !result) {
		/* that it is a set only the kernel knew; nothing of it is held yet */
		set = set_enter_new(events);
		if (set)
			pthread_mutex_lock(&set->lock);
	}
	if (set && !result)
		connection_note(set, operation, d, fd, event);
	if (set) {
		pthread_mutex_unlock(&set->lock);
		set_leave(set);
	}
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
	if (result || !d || d->kind == PLAIN)
		return result;
	if (d->kind == EVENTS)
		events_share(fd); /* also before there is a front: it is added to another one once */
	else if (d->kind == FRONT && served)
		front_control(events, operation, d->front, fd, event);
	errno = saved;
	return result;
}
