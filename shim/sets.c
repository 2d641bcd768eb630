/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sets: what the shim keeps for an epoll descriptor, from the first front or connection that is added to close().
 */
#define _GNU_SOURCE
#include "sets.h"
#include "descriptors.h"

#include <stdlib.h>

struct events *set_of(int fd)
{
	struct descriptor *d = descriptor_at(fd);

	return d && d->kind == EVENTS ? d->set : NULL;
}

struct events *set_new(int fd)
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
