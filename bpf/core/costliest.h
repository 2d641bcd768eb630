/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Costliest: which of any number of clients have cost most, in places that are too few for all. Numbers alone; no kernel.
 *
 * Problem: sources are invented at no cost. A table of those seen last, or of the first to come, shows a flood instead of the client
 * that costs most.
 * How: a keyed hash chooses a set, and a client finds its place in it. Where the set is full, a new one takes the place of the client
 * that cost least lately, and takes over its rank (Metwally, Agrawal, El Abbadi, Efficient Computation of Frequent and Top-k
 * Elements, 2005: Space-Saving): so those that come and go push out each other, and nobody takes the place of a client that had,
 * lately and since it has the place, more than a sixth of what its set had. Ranks are halved every 69 s, or what is long past would
 * keep new ones out. The two of a set that cost most in all are not pushed out at all. What a place had goes to the set's sum of
 * what is forgotten:
 *
 *      what is shown of a client  <=  what it cost  <=  what is shown + what its set has forgotten
 *
 * and a client that is not shown cost no more than its set has forgotten. All places and sums together are all that was told.
 * CPUs tell a set in any order, so a time may be a little before the one that was told last.
 * Limits: a client that can choose its set could fill it; the key is the kernel's secret.
 */
#pragma once

#define COST_HALVES 36 /* of nanoseconds, as a shift */

#ifndef cost_goes_on
#define cost_goes_on true
#endif

static inline struct fief_cost *cost_at(struct fief_cost_set *set, __u32 way)
{
	return &set->ways[way & (FIEF_COST_WAYS - 1)];
}

/* Since the rank was told. */
static inline __s32 cost_steps(const struct fief_cost *cost, __u64 now)
{
	__s32 steps = (__s32)((__u32)(now >> COST_HALVES) - cost->rank_at);

	return steps > 0 ? steps : 0;
}

static inline __u64 cost_rank(const struct fief_cost *cost, __u64 now)
{
	__s32 steps = cost_steps(cost, now);

	return steps < 64 ? cost->rank_ns >> steps : 0;
}

/* Whether the client has a place; else `found` is one that nobody has, if there is any. The passes' state is in memory, so that the
 * verifier sees one pass. */
static inline bool cost_find(struct fief_cost_set *set, struct fief_cost_room *room)
{
	room->found = FIEF_COST_WAYS;
	room->way = 0;
	while (room->way < FIEF_COST_WAYS && cost_goes_on) {
		__u64 client = cost_at(set, room->way)->client;

		if (client == room->client) {
			room->found = room->way;
			return true;
		}
		if (!client)
			room->found = room->way;
		room->way++;
	}
	return false;
}

/* The two that have cost most in all. */
static inline void cost_most(struct fief_cost_set *set, struct fief_cost_room *room)
{
	room->most[0] = room->most[1] = FIEF_COST_WAYS;
	room->most_ns[0] = room->most_ns[1] = 0;
	room->way = 0;
	while (room->way < FIEF_COST_WAYS && cost_goes_on) {
		__u64 ns = cost_at(set, room->way)->ns;

		if (ns > room->most_ns[0]) {
			room->most_ns[1] = room->most_ns[0];
			room->most[1] = room->most[0];
			room->most_ns[0] = ns;
			room->most[0] = room->way;
		} else if (ns > room->most_ns[1]) {
			room->most_ns[1] = ns;
			room->most[1] = room->way;
		}
		room->way++;
	}
}

/* Of the others, the one that has cost least lately. */
static inline void cost_least(struct fief_cost_set *set, struct fief_cost_room *room)
{
	room->least = 0;
	room->least_ns = ~0ull;
	room->way = 0;
	while (room->way < FIEF_COST_WAYS && cost_goes_on) {
		__u64 rank = cost_rank(cost_at(set, room->way), room->now);

		if (room->way != room->most[0] && room->way != room->most[1] && rank < room->least_ns) {
			room->least_ns = rank;
			room->least = room->way;
		}
		room->way++;
	}
}

static inline void cost_enter(struct fief_cost_set *set, struct fief_cost_room *room)
{
	struct fief_cost *cost;

	if (room->found >= FIEF_COST_WAYS) {
		cost_most(set, room);
		cost_least(set, room);
		room->found = room->least;
	}
	cost = cost_at(set, room->found);
	set->forgotten_ns += cost->ns;
	cost->client = room->client;
	cost->ns = 0;
	cost->receive_ns = 0;
	cost->since_ns = room->now;
}

/* The client room->client cost `ns` until room->now. The set is the caller's alone. */
static inline void cost_add(struct fief_cost_set *set, struct fief_cost_room *room, __u64 ns, __u64 receive_ns)
{
	struct fief_cost *cost;

	if (!cost_find(set, room))
		cost_enter(set, room);
	cost = cost_at(set, room->found);
	cost->ns += ns;
	cost->receive_ns += receive_ns;
	cost->rank_ns = cost_rank(cost, room->now) + ns;
	cost->rank_at += cost_steps(cost, room->now);
}
