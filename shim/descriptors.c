/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The life of descriptors: closed, duplicated, left out of what a child gets.
 *
 * The class listeners of a front are closed with the last descriptor that means it.
 */
#define _GNU_SOURCE
#include "descriptors.h"
#include "real.h"
#include "turns.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdarg.h>
#include <unistd.h>

pid_t own_process;

bool in_own_process(void)
{
	return getpid() == own_process;
}

/* ---- close ---- */

void front_close_queues(struct front *front)
{
	for (int i = OWN_QUEUE + 1; i < front->count; i++)
		if (front->queues[i].fd >= 0)
			close(front->queues[i].fd);
}

/* One of several names: the front's own queue goes on under another one. Under fronts_lock(). */
static void close_name(struct front *front, int fd)
{
	events_forget_name(front, fd);
	for (int i = 0; i < descriptors_used() && front->queues[OWN_QUEUE].fd == fd; i++)
		if (i != fd && descriptors[i].kind == FRONT && descriptors[i].front == front)
			front->queues[OWN_QUEUE].fd = i;
}

static void close_front(struct front *front, int fd)
{
	bool last;

	fronts_lock();
	last = !--front->names;
	if (last)
		events_forget_front(front);
	else
		close_name(front, fd);
	fronts_unlock();
	if (!last)
		return;
	front_close_queues(front);
	if (front->waiter >= 0 && front->waiter_owner == own_process)
		close(front->waiter);
	turn_give(front->turn);
	/* another thread may be in accept(): the record stays, it is small and fronts are few */
}

/*
 * A child of vfork() closes a front: its class listeners go with it there, and stay ours. Under another name the front may
 * live on there.
 */
static void close_in_child(const struct front *front)
{
	for (int i = OWN_QUEUE + 1; front->names == 1 && i < front->count; i++)
		real()->close(front->queues[i].fd);
}

/* Before `fd` is closed or replaced. What a child of vfork() closes stays what it is here. */
static void forget_in(int fd, bool own)
{
	struct descriptor *d = descriptor_at(fd);
	struct front *front;

	if (!d || d->kind == PLAIN)
		return;
	if (!own) {
		if (d->kind == FRONT)
			close_in_child(d->front);
		return;
	}
	switch (d->kind) {
	case FRONT:
		front = d->front;
		d->kind = PLAIN;
		close_front(front, fd);
		break;
	case EVENTS:
		events_forget(fd);
		break;
	case QUEUE:
		d->kind = PLAIN;
		for (int i = OWN_QUEUE + 1; i < d->front->count; i++)
			if (d->front->queues[i].fd == fd)
				d->front->queues[i].fd = -1;
		break;
	case WAITER:
		d->kind = PLAIN;
		d->front->waiter = -1;
		break;
	default:
		d->pending = 0;
		d->events = -1;
		d->kind = PLAIN;
	}
}

/* Which process it is costs a system call: nobody asks for what means nothing. */
void descriptor_forget(int fd)
{
	struct descriptor *d = descriptor_at(fd);

	if (d && d->kind != PLAIN)
		forget_in(fd, in_own_process());
}

PUBLIC int close(int fd)
{
	descriptor_forget(fd);
	return real()->close(fd);
}

PUBLIC int fclose(FILE *file)
{
	if (file)
		descriptor_forget(fileno(file));
	return real()->fclose(file);
}

static void forget_range(unsigned first, unsigned last)
{
	bool own;

	if (first >= (unsigned)descriptors_used())
		return;
	own = in_own_process();
	for (unsigned fd = first; fd <= last && fd < (unsigned)descriptors_used(); fd++)
		forget_in(fd, own);
}

PUBLIC int close_range(unsigned first, unsigned last, int flags)
{
	if (!(flags & CLOSE_RANGE_CLOEXEC))
		forget_range(first, last);
	return real()->close_range(first, last, flags);
}

/* The C library's own knows a way where the kernel has no close_range(). */
PUBLIC void closefrom(int first)
{
	forget_range(first < 0 ? 0 : first, ~0u);
	real()->closefrom(first);
}

/* ---- duplicates ---- */

/* `copy` means the same as `fd` from now on. */
static void duplicate(int fd, int copy)
{
	struct descriptor *from = descriptor_at(fd), *to = descriptor_at(copy);

	if (!from || !to || from->kind == PLAIN || !in_own_process())
		return;
	if (from->kind == FRONT) {
		front_name(from->front, copy);
	} else if (from->kind == CONNECTION) {
		descriptor_is(copy, CONNECTION);
		to->priority = from->priority;
		to->pending = 0;
		to->events = -1;
	} else if (from->kind == EVENTS) {
		events_duplicate(fd, copy);
	}
}

PUBLIC int dup(int fd)
{
	int copy = real()->dup(fd);

	duplicate(fd, copy);
	return copy;
}

/* Before `copy` becomes a duplicate of `fd`; where that will fail, it stays what it is. */
static void replace(int fd, int copy)
{
	if (fd != copy && real()->fcntl(fd, F_GETFD) >= 0)
		descriptor_forget(copy);
}

PUBLIC int dup2(int fd, int copy)
{
	int result, saved = errno;

	replace(fd, copy);
	errno = saved;
	result = real()->dup2(fd, copy);
	if (fd != copy && result >= 0)
		duplicate(fd, copy);
	return result;
}

PUBLIC int dup3(int fd, int copy, int flags)
{
	int result, saved = errno;

	if (!(flags & ~O_CLOEXEC))
		replace(fd, copy);
	errno = saved;
	result = real()->dup3(fd, copy, flags);
	if (result >= 0)
		duplicate(fd, copy);
	return result;
}

PUBLIC int fcntl(int fd, int command, ...)
{
	struct front *front = front_of(fd);
	va_list arguments;
	void *argument;
	int result;

	va_start(arguments, command);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	result = real()->fcntl(fd, command, argument);
	if (result < 0)
		return result;
	if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
		duplicate(fd, result);
	if (front && command == F_SETFL)
		front->blocking = !((intptr_t)argument & O_NONBLOCK);
	return result;
}

PUBLIC int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

/* ---- spawn ---- */

/* A child that is started without a front gets none of its class listeners, as with close() in one of vfork(). */
PUBLIC int posix_spawn_file_actions_addclose(posix_spawn_file_actions_t *actions, int fd)
{
	struct front *front = front_of(fd);
	int failed = 0;

	for (int i = OWN_QUEUE + 1; front && front->names == 1 && i < front->count && !failed; i++)
		if (front->queues[i].fd >= 0)
			failed = real()->addclose(actions, front->queues[i].fd);
	return failed ? failed : real()->addclose(actions, fd);
}
