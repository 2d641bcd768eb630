/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * poll and select: a front is ready when any of its class listeners is.
 *
 * The sockets of the classes are asked beside the server's own list, and their answer is folded into the
 * front's. A class whose new connections come after existing ones is left out of the answer while another
 * descriptor has something, at most PASSED_OFTEN times in a row.
 */
#define _GNU_SOURCE
#include "descriptors.h"
#include "order.h"
#include "real.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ANSWERS (POLLIN | POLLRDNORM)

/* The C library says that poll() only writes to its argument, and the compiler then doubts what is read
 * there. */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

static bool asks_front(const struct pollfd *asked, nfds_t count)
{
	bool found = false;

	if (!atomic_load_explicit(&front_count, memory_order_relaxed))
		return false;
	for (nfds_t i = 0; i < count; i++) {
		struct descriptor *d = descriptor_at(asked[i].fd);

		if (d && d->kind == EVENTS)
			events_share(asked[i].fd); /* who waits for the set itself cannot see what is held */
		if (!d || d->kind != FRONT || !(asked[i].events & ANSWERS))
			continue;
		front_refresh(d->front, asked[i].fd);
		found = true;
	}
	return found;
}

/*
 * The class sockets of every front that is asked for input, behind the `count` that are there; how many then. Behind those of each
 * stands whose they are, in an entry that the kernel passes over: a front may get a class, or be closed, until the answer comes.
 */
static nfds_t add_queues(struct pollfd *all, nfds_t count)
{
	nfds_t total = count;

	for (nfds_t i = 0; i < count; i++) {
		struct front *front = all[i].events & ANSWERS ? front_of(all[i].fd) : NULL;

		if (!front)
			continue;
		for (int j = OWN_QUEUE + 1; j < front->count; j++)
			all[total++] = (struct pollfd){.fd = front->queues[j].fd, .events = POLLIN};
		all[total++] = (struct pollfd){.fd = -1 - (int)i};
	}
	return total;
}

static bool gives_way(struct queue *queue, bool busy)
{
	if (!queue->after || !busy || (queue->priority && queue->passed >= PASSED_OFTEN)) {
		queue->passed = queue->after ? 0 : queue->passed;
		return false;
	}
	queue->passed++;
	return true;
}

/* Folds the answers of the class sockets into their front's; the number of descriptors with an answer. */
static int fold(struct pollfd *all, nfds_t count, nfds_t total)
{
	nfds_t first = count;
	bool busy = false;
	int ready = 0;

	for (nfds_t i = 0; i < count; i++)
		busy |= all[i].revents && !front_of(all[i].fd);
	for (nfds_t end = first; end < total; end++) {
		struct pollfd *asked;
		struct front *front;

		if (all[end].events)
			continue;
		asked = &all[-1 - all[end].fd];
		front = front_of(asked->fd);
		for (nfds_t next = first; front && next < end; next++)
			if (all[next].revents && !gives_way(&front->queues[OWN_QUEUE + 1 + next - first], busy))
				asked->revents |= asked->events & ANSWERS;
		first = end + 1;
	}
	for (nfds_t i = 0; i < count; i++)
		ready += all[i].revents != 0;
	return ready;
}

static int poll_all(struct pollfd *asked, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	nfds_t room = count, total;
	struct pollfd *all;
	int ready;

	/* a descriptor may be asked twice, and each time its queues are added */
	for (nfds_t i = 0; i < count; i++)
		room += front_of(asked[i].fd) ? MAX_QUEUES : 0;
	all = malloc(room * sizeof(*all));
	if (!all)
		return real()->ppoll(asked, count, timeout, mask);
	memcpy(all, asked, count * sizeof(*all));
	total = add_queues(all, count);
	do {
		ready = real()->ppoll(all, total, timeout, mask);
		if (ready > 0)
			ready = fold(all, count, total);
		else
			break;
	} while (!ready);
	for (nfds_t i = 0; ready >= 0 && i < count; i++)
		asked[i].revents = all[i].revents;
	int saved = errno;
	free(all);
	errno = saved;
	return ready;
}

PUBLIC int ppoll(struct pollfd *asked, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	if (!asks_front(asked, count))
		return real()->ppoll(asked, count, timeout, mask);
	return poll_all(asked, count, timeout, mask);
}

PUBLIC int poll(struct pollfd *asked, nfds_t count, int timeout)
{
	struct timespec time = {timeout / 1000, timeout % 1000 * 1000000};

	if (!asks_front(asked, count))
		return real()->poll(asked, count, timeout);
	return poll_all(asked, count, timeout < 0 ? NULL : &time, NULL);
}

/* What programs call that were built with _FORTIFY_SOURCE; the C library ends them if `size` is too small. */
PUBLIC int __poll_chk(struct pollfd *asked, nfds_t count, int timeout, size_t size)
{
	if (size / sizeof(*asked) < count)
		abort();
	return poll(asked, count, timeout);
}

PUBLIC int __ppoll_chk(struct pollfd *asked, nfds_t count, const struct timespec *timeout, const sigset_t *mask,
		       size_t size)
{
	if (size / sizeof(*asked) < count)
		abort();
	return ppoll(asked, count, timeout, mask);
}

/* ---- select ---- */

static bool selects_front(int count, const fd_set *readable)
{
	bool found = false;

	/* a program that made its sets larger than the C library knows is left alone */
	if (!readable || count > FD_SETSIZE || !atomic_load_explicit(&front_count, memory_order_relaxed))
		return false;
	for (int fd = 0; fd < count && fd < FD_SETSIZE; fd++) {
		if (!FD_ISSET(fd, readable))
			continue;
		if (descriptors[fd].kind == EVENTS)
			events_share(fd);
		found |= descriptors[fd].kind == FRONT;
	}
	return found;
}

static int take_answer(fd_set *set, int fd, bool has)
{
	if (!set || !FD_ISSET(fd, set))
		return 0;
	if (!has)
		FD_CLR(fd, set);
	return has;
}

/* As the kernel does it: the three sets become one list of polled descriptors, so numbers above FD_SETSIZE
 * can be in it, which class listeners may have. */
static int select_all(int count, fd_set *readable, fd_set *writable, fd_set *urgent, const struct timespec *timeout,
		      const sigset_t *mask)
{
	struct pollfd asked[FD_SETSIZE];
	nfds_t n = 0;
	int ready, answers = 0;

	for (int fd = 0; fd < count && fd < FD_SETSIZE; fd++) {
		short events = 0;

		if (FD_ISSET(fd, readable))
			events |= POLLIN;
		if (writable && FD_ISSET(fd, writable))
			events |= POLLOUT;
		if (urgent && FD_ISSET(fd, urgent))
			events |= POLLPRI;
		if (events)
			asked[n++] = (struct pollfd){.fd = fd, .events = events};
	}
	ready = poll_all(asked, n, timeout, mask);
	if (ready < 0)
		return ready;
	for (nfds_t i = 0; i < n; i++) {
		short told = asked[i].revents;

		if (told & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
		answers += take_answer(readable, asked[i].fd, told & (POLLIN | POLLHUP | POLLERR));
		answers += take_answer(writable, asked[i].fd, told & (POLLOUT | POLLERR));
		answers += take_answer(urgent, asked[i].fd, told & POLLPRI);
	}
	return answers;
}

PUBLIC int pselect(int count, fd_set *readable, fd_set *writable, fd_set *urgent, const struct timespec *timeout,
		   const sigset_t *mask)
{
	if (!selects_front(count, readable))
		return real()->pselect(count, readable, writable, urgent, timeout, mask);
	return select_all(count, readable, writable, urgent, timeout, mask);
}

PUBLIC int select(int count, fd_set *readable, fd_set *writable, fd_set *urgent, struct timeval *timeout)
{
	struct timespec time, start, now;
	int result, saved;

	if (!selects_front(count, readable))
		return real()->select(count, readable, writable, urgent, timeout);
	if (!timeout)
		return select_all(count, readable, writable, urgent, NULL, NULL);
	time = (struct timespec){timeout->tv_sec, timeout->tv_usec * 1000};
	clock_gettime(CLOCK_MONOTONIC, &start);
	result = select_all(count, readable, writable, urgent, &time, NULL);
	saved = errno;
	/* select() leaves what remains of the time in its argument */
	clock_gettime(CLOCK_MONOTONIC, &now);
	long long rest = timeout->tv_sec * 1000000LL + timeout->tv_usec - (now.tv_sec - start.tv_sec) * 1000000LL -
			 (now.tv_nsec - start.tv_nsec) / 1000;

	rest = rest > 0 ? rest : 0;
	*timeout = (struct timeval){rest / 1000000, rest % 1000000};
	errno = saved;
	return result;
}
