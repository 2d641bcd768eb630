/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sets: what the shim keeps for an epoll instance, under all the descriptors that mean it.
 *
 * Problem: the kernel keeps one instance under all its names. What is added by one of them is told by the others too, and after
 * close() of one the instance goes on under the others. tokio copies an instance before anything is added, adds by the copy and
 * waits by the original.
 * How: epoll_create() is noted, so a copy of an instance is known for one before there is a set. All names share one set, which ends
 * with the last of them.
 * Limits: an instance that was made or copied past the C library, or came from another process, has a set under the names that a
 * front or a classified connection was added by, and no other name is told of class listeners.
 */
#define _GNU_SOURCE
#include "sets.h"
#include "descriptors.h"
#include "real.h"

#include <stdlib.h>
#include <unistd.h>

struct events *sets;
static int last_id; /* of who holds fronts_lock() */

struct events *set_of(int fd)
{
	struct descriptor *d = descriptor_at(fd);

	return d && d->kind == EVENTS ? d->set : NULL;
}

static void set_name(struct events *set, int fd)
{
	set->names++;
	descriptors[fd].set = set;
	descriptor_is(fd, EVENTS); /* last, as with a front */
}

/* Under fronts_lock(). */
static struct events *set_make(int fd)
{
	struct descriptor *d = descriptor_at(fd);
	struct events *set = set_of(fd); /* another thread may have been faster */

	if (set || !d)
		return set;
	set = calloc(1, sizeof(*set));
	if (!set)
		return NULL;
	pthread_mutex_init(&set->lock, NULL);
	set->id = ++last_id;
	set->fd = fd;
	set->owner = d->kind == EVENTS ? d->events : own_process;
	set->next = sets;
	sets = set;
	set_name(set, fd);
	return set;
}

struct events *set_new(int fd)
{
	struct events *set = set_of(fd);

	if (set)
		return set;
	fronts_lock();
	set = set_make(fd);
	fronts_unlock();
	return set;
}

static void set_free(struct events *set)
{
	struct events **at = &sets;

	while (*at != set)
		at = &(*at)->next;
	*at = set->next;
	for (int i = 0; i < set->level_count; i++)
		free(set->levels[i].held);
	for (int i = 0; i < FRONT_CHUNKS && set->registered[i]; i++)
		free(set->registered[i]);
	pthread_mutex_destroy(&set->lock);
	free(set);
}

static int any_name(const struct events *set)
{
	for (int fd = 0; fd < descriptors_used(); fd++)
		if (set_of(fd) == set)
			return fd;
	return -1;
}

/* Under fronts_lock(): nobody tells the set of a queue meanwhile. */
static void unname(int fd)
{
	struct events *set = set_of(fd);

	descriptors[fd].kind = PLAIN;
	descriptors[fd].set = NULL;
	if (!set)
		return;
	pthread_mutex_lock(&set->lock);
	if (--set->names && set->fd == fd)
		set->fd = any_name(set);
	pthread_mutex_unlock(&set->lock);
	if (!set->names)
		set_free(set);
}

void events_forget(int fd)
{
	fronts_lock();
	unname(fd);
	fronts_unlock();
}

void events_duplicate(int fd, int copy)
{
	struct events *set;

	fronts_lock();
	if (descriptors[copy].kind == EVENTS)
		unname(copy); /* was closed past the C library */
	set = set_make(fd);
	if (set)
		set_name(set, copy);
	fronts_unlock();
}

/*
 * In a new child: a thread that held the lock is not in it. The parent may wait for events of the same set, so the child holds
 * nothing back; what it inherited as held it hands out, though the parent does so too.
 */
void events_forked(void)
{
	for (struct events *set = sets; set; set = set->next) {
		pthread_mutex_init(&set->lock, NULL);
		set->shared = true;
	}
}

/* Somebody waits for the event descriptor itself, who cannot see what is held. */
void events_share(int fd)
{
	struct events *set = set_new(fd);

	if (set)
		set->shared = true;
}

/* ---- epoll_create ---- */

/* A set costs memory, and most instances need none: it is made when something is added, or the instance gets a second name. */
static void note_instance(int fd)
{
	struct descriptor *d = descriptor_at(fd);
	pid_t process = getpid();

	/* a child of vfork() writes in our memory; before our own constructor nobody has forked */
	if (!d || (own_process && process != own_process))
		return;
	if (d->kind == EVENTS)
		events_forget(fd); /* was closed past the C library */
	d->events = process;
	d->set = NULL;
	descriptor_is(fd, EVENTS);
}

PUBLIC int epoll_create1(int flags)
{
	int fd = real()->epoll_create1(flags);

	note_instance(fd);
	return fd;
}

PUBLIC int epoll_create(int size)
{
	int fd = real()->epoll_create(size);

	note_instance(fd);
	return fd;
}
