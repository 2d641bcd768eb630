/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sets: what the shim keeps for an epoll instance, under all the descriptors that mean it.
 *
 * Problem: the kernel keeps one instance under all its names. What is added by one of them is told by the others too, and after
 * close() of one the instance goes on under the others. tokio copies an instance before anything is added, adds by the copy and
 * waits by the original.
 * How: epoll_create() is noted, so a copy of an instance is known for one before there is a set. All names share one set, which ends
 * with the last of them.
 * A thread may wait for an instance that another one closes, or be about to. So the memory of a set is never given back, but is the
 * next set's once it has no name and no user. Who has become a user looks again whether the descriptor means this set still. A
 * thread that is cancelled while it waits leaves a set that is not used again.
 * Limits: an instance that was made or copied past the C library, or came from another process, has a set under the names that a
 * front or a classified connection was added by, and no other name is told of class listeners.
 */
#define _GNU_SOURCE
#include "sets.h"
#include "descriptors.h"
#include "real.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct events *sets;
static int last_id; /* of who holds fronts_lock() */

static struct events *set_of(int fd)
{
	struct descriptor *d = descriptor_at(fd);

	return d && d->kind == EVENTS ? d->set : NULL;
}

void set_leave(struct events *set)
{
	atomic_fetch_sub(&set->users, 1);
}

/*
 * A server goes into the background, and the process that made the set ends. Of its children, which may be many, the first that comes is its
 * heir: the kernel keeps with the instance who that is, and tells of nobody once that one has ended too.
 */
static bool is_heir(const struct events *set)
{
	pid_t heir;

	if (set->fd < 0)
		return false;
	heir = real()->fcntl(set->fd, F_GETOWN);
	if (!heir && !real()->fcntl(set->fd, F_SETOWN, own_process))
		heir = real()->fcntl(set->fd, F_GETOWN); /* another one may have come meanwhile */
	return heir == own_process;
}

bool set_is_own(struct events *set)
{
	if (set->owner == own_process)
		return true;
	return set->owner != FOREIGN_PROCESS && kill(set->owner, 0) && errno == ESRCH && is_heir(set);
}

struct events *set_enter(int fd)
{
	struct events *set;

	while ((set = set_of(fd))) {
		atomic_fetch_add(&set->users, 1);
		if (set_of(fd) == set)
			break;
		set_leave(set);
	}
	return set;
}

/* Of one that has ended; users may come and find out. */
static void set_clear(struct events *set)
{
	const size_t kept = offsetof(struct events, id);

	for (int i = 0; i < set->level_count; i++)
		free(set->levels[i].held);
	for (int i = 0; i < FRONT_CHUNKS && set->registered[i]; i++)
		free(set->registered[i]);
	memset((char *)set + kept, 0, sizeof(*set) - kept);
}

/* An empty one. Under fronts_lock(). */
static struct events *set_take(void)
{
	struct events *set;

	for (set = sets; set && (set->names || atomic_load(&set->users)); set = set->next)
		;
	if (set) {
		set_clear(set);
		return set;
	}
	set = calloc(1, sizeof(*set));
	if (!set)
		return NULL;
	pthread_mutex_init(&set->lock, NULL);
	set->next = sets;
	sets = set;
	return set;
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
	set = set_take();
	if (!set)
		return NULL;
	set->id = ++last_id;
	set->fd = fd;
	set->owner = d->kind == EVENTS ? d->events : own_process;
	set_name(set, fd);
	return set;
}

struct events *set_enter_new(int fd)
{
	struct events *set = set_enter(fd);

	if (set)
		return set;
	fronts_lock();
	set = set_make(fd);
	if (set)
		atomic_fetch_add(&set->users, 1);
	fronts_unlock();
	return set;
}

static int any_name(const struct events *set)
{
	for (int fd = 0; set->names && fd < descriptors_used(); fd++)
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
	set->names--;
	if (set->fd == fd)
		set->fd = any_name(set);
	pthread_mutex_unlock(&set->lock);
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

/* The parent has no number here. */
static bool is_in_other_namespace(void)
{
	return !getppid();
}

/* What number they have here nobody can tell: it may be that of no process, or this one's. */
static void forget_makers(void)
{
	for (struct events *set = sets; set; set = set->next)
		set->owner = FOREIGN_PROCESS;
	for (int fd = 0; fd < descriptors_used(); fd++) {
		struct descriptor *d = &descriptors[fd];

		if (d->kind == EVENTS)
			d->events = FOREIGN_PROCESS;
		else if (d->kind == FRONT)
			d->front->waiter_owner = FOREIGN_PROCESS;
	}
}

/*
 * In a new child: a thread that held the lock is not in it. The parent may wait for events of the same set, so the child holds
 * nothing back; what it inherited as held it hands out, though the parent does so too.
 */
void events_forked(void)
{
	if (is_in_other_namespace())
		forget_makers();
	for (struct events *set = sets; set; set = set->next) {
		pthread_mutex_init(&set->lock, NULL);
		set->users = 0; /* so are those */
		set->shared = true;
	}
}

/* Somebody waits for the event descriptor itself, who cannot see what is held. */
void events_share(int fd)
{
	struct events *set = set_enter_new(fd);

	if (!set)
		return;
	set->shared = true;
	set_leave(set);
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
