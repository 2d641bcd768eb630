/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * epoll_wait: what the kernel tells goes through events_order.
 */
#define _GNU_SOURCE
#include "events.h"
#include "fronts.h"
#include "real.h"
#include "sets.h"

#include <time.h>

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

		pthread_mutex_lock(&set->lock);
		more = i < set->registered_count;
		if (more)
			front = registered_at(set, i)->front;
		pthread_mutex_unlock(&set->lock);
		if (front)
			front_refresh(front, front->queues[OWN_QUEUE].fd); /* takes the lock itself */
		if (!more)
			return;
	}
}

/*
 * All that the kernel told is of class listeners that are not heard here: of another process with which the instance is shared, or of a
 * front that has just left. It goes on telling until somebody accepts, and who asks again at once would keep a CPU busy. As long as there
 * are events the kernel delivers none of the signals that only the caller's mask lets through. -1: one has come here.
 */
static int step_aside(const struct timespec *timeout, const sigset_t *mask)
{
	static const struct timespec aside = {.tv_nsec = 1000000};

	return !timeout || timeout->tv_sec || timeout->tv_nsec ? real()->ppoll(NULL, 0, &aside, mask) : 0;
}

static int wait_in_order(int fd, struct events *set, struct epoll_event *out, int room, const struct timespec *timeout,
			 const sigset_t *mask)
{
	static const struct timespec at_once;
	struct epoll_event fresh[FETCH];
	struct timespec start = {}, rest;

	for (bool again = false;; again = true) {
		int most, count, ready;
		bool held = waiter_note(set, &most), foreign;

		if (held && timeout && !again)
			clock_gettime(CLOCK_MONOTONIC, &start);
		most = room < most ? room : most;
		fronts_refresh(set);
		count = kernel_wait(fd, fresh, most, held ? &at_once : (again ? left(timeout, &start, &rest) : timeout),
				    mask);
		if (count < 0 && !held)
			return -1;
		pthread_mutex_lock(&set->lock);
		ready = events_order(set, fresh, count < 0 ? 0 : count, out, room);
		foreign = set->foreign;
		pthread_mutex_unlock(&set->lock);
		if (!ready && foreign && !held && step_aside(timeout, mask))
			return -1;
		/*
		 * Nothing: the time is over, or all that was held had become void, or all that was told is of fronts that
		 * have left. Who waits for ever is not told of nothing.
		 */
		if (ready || (!held && (timeout || count <= 0)))
			return ready;
	}
}

/* ---- where nothing is put in order ---- */

/*
 * A thread may wait already when the first front is added, or by a name of the instance that is not known here: the kernel tells it of
 * class listeners all the same. How many of `told` events are left.
 */
static int unmark(int fd, struct epoll_event *events, int told)
{
	struct events *set;

	if (told <= 0 || !atomic_load_explicit(&front_count, memory_order_relaxed))
		return told;
	set = set_enter(fd);
	if (!set)
		return events_unmark(NULL, events, told);
	pthread_mutex_lock(&set->lock);
	told = events_unmark(set, events, told);
	pthread_mutex_unlock(&set->lock);
	set_leave(set);
	return told;
}

/* Whether to wait again, since all that the kernel told is not heard here: then 0 events are left, or -1 where a signal came. */
static bool waits_again(int told, int *left, const struct timespec *timeout, const sigset_t *mask)
{
	if (told <= 0 || *left)
		return false;
	*left = step_aside(timeout, mask);
	return !timeout && !*left;
}

/* ---- the functions ---- */

/* An instance may have a set before there is a front: it was copied. */
static struct events *enter_ordered(int fd, const struct epoll_event *events, int room)
{
	if (!atomic_load_explicit(&front_count, memory_order_relaxed) || room <= 0 || !events)
		return NULL;
	return set_enter(fd);
}

PUBLIC int epoll_pwait2(int fd, struct epoll_event *events, int room, const struct timespec *timeout,
			const sigset_t *mask)
{
	int told, ready;

	do {
		struct events *set = enter_ordered(fd, events, room);

		if (set) {
			ready = wait_in_order(fd, set, events, room, timeout, mask);
			set_leave(set);
			return ready;
		}
		told = real()->epoll_pwait2(fd, events, room, timeout, mask);
		ready = unmark(fd, events, told);
	} while (waits_again(told, &ready, timeout, mask));
	return ready;
}

PUBLIC int epoll_pwait(int fd, struct epoll_event *events, int room, int timeout, const sigset_t *mask)
{
	const struct timespec time = {timeout / 1000, timeout % 1000 * 1000000}, *limit = timeout < 0 ? NULL : &time;
	int told, ready;

	do {
		struct events *set = enter_ordered(fd, events, room);

		if (set) {
			ready = wait_in_order(fd, set, events, room, limit, mask);
			set_leave(set);
			return ready;
		}
		told = real()->epoll_pwait(fd, events, room, timeout, mask);
		ready = unmark(fd, events, told);
	} while (waits_again(told, &ready, limit, mask));
	return ready;
}

PUBLIC int epoll_wait(int fd, struct epoll_event *events, int room, int timeout)
{
	return epoll_pwait(fd, events, room, timeout, NULL);
}
