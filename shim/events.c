/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The order in which an event loop hears of its sockets.
 *
 * Problem: a server takes what epoll_wait() returns in that order, and a hundred events of low clients take
 * longer than a high client wants to wait.
 * How: events are handed out by the priority of their class, one class and few at a time (burst), and the
 * kernel is asked again before each hand-out. What the kernel tells again by itself (level-triggered) is left
 * out; what it tells once (edge-triggered, one-shot) is held in user space. A class that is passed over
 * PASSED_OFTEN times gets a turn, unless its priority is 0. Limits: events of descriptors that are no
 * classified connection are handed out at once and first. Where several threads wait on one descriptor
 * nothing is held back, since another thread may be idle.
 */
#define _GNU_SOURCE
#include "events.h"
#include "order.h"
#include "real.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define QUEUE_BITS 6
#define MARK_BITS  (14 + QUEUE_BITS) /* of a mark: position of the front, number of the queue */

_Static_assert(FRONTS_PER_SET <= 1 << (MARK_BITS - QUEUE_BITS) && MAX_QUEUES <= 1 << QUEUE_BITS,
	       "marks are too narrow");
#define ONCE (EPOLLET | EPOLLONESHOT)

static uint64_t secret;
static int burst = 4;

static __attribute__((constructor)) void choose(void)
{
	const char *word = getenv("FIEF_BURST");

	if (getrandom(&secret, sizeof(secret), 0) != sizeof(secret))
		secret = (uintptr_t)&secret * 0x9e3779b97f4a7c15;
	if (word && atoi(word) > 0)
		burst = atoi(word);
}

uint64_t events_mark(int at, int queue)
{
	return secret << MARK_BITS | (uint64_t)at << QUEUE_BITS | (uint64_t)queue;
}

static bool is_mark(uint64_t data)
{
	return data >> MARK_BITS == (secret << MARK_BITS) >> MARK_BITS;
}

/* NULL: its front has left the set since the kernel told of it. */
static struct registered *marked(struct events *set, uint64_t data, int *at, int *queue)
{
	struct registered *r;

	*at = data >> QUEUE_BITS & (FRONTS_PER_SET - 1);
	*queue = data & ((1 << QUEUE_BITS) - 1);
	if (*at >= set->registered_count)
		return NULL;
	r = registered_at(set, *at);
	return r->front && *queue < r->front->count ? r : NULL;
}

static struct hint *hint_at(struct events *set, uint64_t data)
{
	return &set->hints[(data * 0x9e3779b97f4a7c15) >> 51];
}

void events_hint(struct events *set, uint64_t data, int fd)
{
	*hint_at(set, data) = (struct hint){data, fd};
}

/* A level-triggered event of this turn. */
struct passing {
	struct epoll_event event;
	struct held what;
	int level; /* -1: handed out */
};

struct turn {
	struct events *set;
	struct epoll_event *out;
	int done, most;
	int passing_count;
	struct passing passing[FETCH];
};

/* ---- levels ---- */

static bool better(const struct level *a, const struct level *b)
{
	return a->after != b->after ? b->after : a->priority > b->priority;
}

/* Nothing of it is held, nor would be lost with it: no turn was taken from it, and this turn knows nothing of it. */
static bool is_idle(const struct turn *turn, int number)
{
	const struct level *level = &turn->set->levels[number];

	if (level->count || level->passed)
		return false;
	for (int i = 0; i < turn->passing_count; i++)
		if (turn->passing[i].level == number)
			return false;
	return true;
}

/* A number for a new level, which has no place in the ranking yet; -1: all are in use. */
static int level_take(struct turn *turn)
{
	struct events *set = turn->set;

	if (set->level_count < MAX_LEVELS)
		return set->level_count++;
	for (int place = 0; place < MAX_LEVELS; place++) {
		int number = set->ranking[place];

		if (!is_idle(turn, number))
			continue;
		memmove(&set->ranking[place], &set->ranking[place + 1], MAX_LEVELS - 1 - place);
		return number;
	}
	return -1;
}

/* Policies come and go while a server runs, and each may have priorities of its own: a level is another's when it is idle. */
static int level_of(struct turn *turn, uint32_t priority, bool after)
{
	struct events *set = turn->set;
	int number, place;

	for (number = 0; number < set->level_count; number++)
		if (set->levels[number].priority == priority && set->levels[number].after == after)
			return number;
	number = level_take(turn);
	if (number < 0)
		return set->ranking[MAX_LEVELS - 1];
	set->levels[number].priority = priority;
	set->levels[number].after = after;
	for (place = set->level_count - 1; place; place--) {
		if (!better(&set->levels[number], &set->levels[set->ranking[place - 1]]))
			break;
		set->ranking[place] = set->ranking[place - 1];
	}
	set->ranking[place] = number;
	return number;
}

static void hold(struct events *set, struct level *level, struct held what)
{
	if (level->count == level->room) {
		uint32_t room = level->room ? 2 * level->room : 64;
		struct held *more = malloc(room * sizeof(*more));

		if (!more)
			abort(); /* an edge that is lost is a connection that hangs for good */
		for (uint32_t i = 0; i < level->count; i++)
			more[i] = level->held[(level->first + i) & (level->room - 1)];
		free(level->held);
		level->held = more;
		level->room = room;
		level->first = 0;
	}
	level->held[(level->first + level->count++) & (level->room - 1)] = what;
	set->held_count++;
}

static atomic_uint *pending_of(struct events *set, const struct held *what)
{
	struct descriptor *d = descriptor_at(what->fd);
	struct registered *r;

	if (what->fd < 0) {
		r = what->at < set->registered_count ? registered_at(set, what->at) : NULL;
		return r && r->front && !r->disarmed ? &r->pending[what->queue] : NULL;
	}
	return d && d->kind == CONNECTION && d->events == set->id && d->data == what->data ? &d->pending : NULL;
}

/* The oldest held event that is still meant, without taking it. */
static struct held *oldest(struct events *set, struct level *level)
{
	while (level->count) {
		struct held *what = &level->held[level->first];
		atomic_uint *pending = pending_of(set, what);

		if (pending && *pending)
			return what;
		level->first = (level->first + 1) & (level->room - 1);
		level->count--;
		set->held_count--;
	}
	return NULL;
}

/* ---- one turn ---- */

/* A one-shot front was told of: neither its own queue nor another may be, until the server asks again. */
static void disarm(struct events *set, struct registered *r)
{
	struct epoll_event nothing = {.data.u64 = r->data};

	r->disarmed = true;
	if (!r->closed)
		real()->epoll_ctl(set->fd, EPOLL_CTL_MOD, r->fd, &nothing);
}

static void hand_out(struct turn *turn, const struct held *what, uint32_t events)
{
	struct events *set = turn->set;
	struct epoll_event *out = &turn->out[turn->done++];

	out->events = events;
	out->data.u64 = what->data;
	if (what->fd < 0) {
		struct registered *r = registered_at(set, what->at);

		out->data.u64 = r->data;
		if (r->mask & EPOLLONESHOT)
			disarm(set, r);
		atomic_fetch_or(&r->front->offered, 1ull << what->queue);
	}
}

/* The kernel tells of a front's own queue. */
static void own_told(struct events *set, uint64_t data)
{
	for (int at = 0; at < set->registered_count; at++) {
		struct registered *r = registered_at(set, at);

		if (r->front && r->mask & EPOLLONESHOT && r->data == data)
			r->disarmed = true;
	}
}

static void sort_in(struct turn *turn, const struct epoll_event *event)
{
	struct events *set = turn->set;
	struct held what = {.data = event->data.u64, .fd = -1};
	const struct hint *hint = hint_at(set, event->data.u64);
	struct registered *r;
	struct descriptor *d;
	atomic_uint *pending;
	uint32_t mask;
	int level, at, queue;

	if (is_mark(event->data.u64)) {
		r = marked(set, event->data.u64, &at, &queue);
		set->foreign |= !r;
		if (!r || r->disarmed)
			return; /* what is still so when it is asked for again, the kernel tells then */
		what.at = at;
		what.queue = queue;
		mask = r->mask;
		level = level_of(turn, r->front->queues[queue].priority, r->front->queues[queue].after);
	} else {
		d = hint->data == event->data.u64 ? descriptor_at(hint->fd) : NULL;
		what.fd = hint->fd;
		if (!d || !pending_of(set, &what)) {
			own_told(set, event->data.u64);
			turn->out[turn->done++] = *event;
			return;
		}
		mask = d->mask;
		level = level_of(turn, d->priority, false);
	}
	if (!(mask & ONCE)) {
		turn->passing[turn->passing_count++] = (struct passing){*event, what, level};
		return;
	}
	pending = pending_of(set, &what);
	/* an edge on top of a held one is one event */
	if (!*pending)
		hold(set, &set->levels[level], what);
	*pending |= event->events;
}

static bool hand_out_passing(struct turn *turn, int level, bool front)
{
	for (int i = 0; i < turn->passing_count; i++) {
		struct passing *p = &turn->passing[i];

		if (p->level != level || (p->what.fd < 0) != front)
			continue;
		hand_out(turn, &p->what, p->event.events);
		p->level = -1;
		return true;
	}
	return false;
}

/* New connections of a class come before the requests of those it has, which come in the order of their
 * arrival. */
static bool hand_out_one(struct turn *turn, int number)
{
	struct level *level = &turn->set->levels[number];
	struct held *what;
	atomic_uint *pending;

	if (hand_out_passing(turn, number, true))
		return true;
	what = oldest(turn->set, level);
	if (!what)
		return hand_out_passing(turn, number, false);
	pending = pending_of(turn->set, what);
	hand_out(turn, what, *pending);
	*pending = 0; /* void now: the next look at the ring drops it */
	return true;
}

static bool has_events(struct turn *turn, int number)
{
	for (int i = 0; i < turn->passing_count; i++)
		if (turn->passing[i].level == number)
			return true;
	return oldest(turn->set, &turn->set->levels[number]);
}

int events_order(struct events *set, const struct epoll_event *fresh, int count, struct epoll_event *out, int room)
{
	struct turn turn;

	turn.set = set;
	turn.out = out;
	turn.done = 0;
	turn.passing_count = 0;
	set->foreign = false;
	for (int i = 0; i < count; i++)
		sort_in(&turn, &fresh[i]);
	turn.most = set->shared || turn.done + burst > room ? room : turn.done + burst;
	for (int i = 0; i < set->level_count && turn.done < turn.most; i++) {
		struct level *level = &set->levels[i];

		if (level->passed >= PASSED_OFTEN && level->priority && hand_out_one(&turn, i))
			level->passed = 0;
	}
	for (int i = 0; i < set->level_count; i++) {
		int number = set->ranking[i];
		bool served = false;

		while (turn.done < turn.most && hand_out_one(&turn, number))
			served = true;
		/* a better one may have more by the time that these are done */
		if (served && !set->shared)
			turn.most = turn.done;
		if (served || !has_events(&turn, number))
			set->levels[number].passed = 0;
		else
			set->levels[number].passed++;
	}
	int again = 0;

	for (int i = 0; i < turn.passing_count; i++)
		again += turn.passing[i].level >= 0;
	set->many_again = again > FETCH_AGAIN / 2;
	return turn.done;
}

int events_unmark(struct events *set, struct epoll_event *events, int count)
{
	struct turn turn;

	turn.set = set;
	turn.out = events; /* never ahead of what is read */
	turn.done = 0;
	for (int i = 0; i < count; i++) {
		struct epoll_event event = events[i];
		struct registered *r;
		int at = 0, queue = 0;

		if (!is_mark(event.data.u64)) {
			events[turn.done++] = event;
			if (set)
				own_told(set, event.data.u64);
			continue;
		}
		r = set ? marked(set, event.data.u64, &at, &queue) : NULL;
		if (r && !r->disarmed)
			hand_out(&turn, &(struct held){.fd = -1, .at = at, .queue = queue}, event.events);
	}
	return turn.done;
}
