/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Costly: what was gathered for a client (cost.bpf.h) is told to the clients that cost most.
 *
 * Problem: an entry for each client would cost every charge a lookup, and a client that invents sources would fill any table.
 * How: a CPU tells what it gathered for a client when another one's turn comes, or after a millisecond: one change of a set for each
 * turn, under its lock. Clients and their networks have sets apart, so that a client that spreads work over a network is seen too.
 * costliest.h says which client keeps a place. Where interrupts cannot be off (compat.bpf.h), what comes in between tells nothing, and its
 * time finds no place.
 * Limits: what a CPU charged since its last switch or packet may not be told.
 */
#pragma once

#include "flow/address.bpf.h"
#include "loop.bpf.h"
#include "maps/costs.bpf.h"
#include "maps/cpus.bpf.h"
#include "maps/secrets.bpf.h"

#define cost_goes_on can_loop
#include "costliest.h"

#define COST_LOCK_TRIES 64 /* a set is changed in less */
#define COST_IPV4_LAST	0xffull
#define COST_IPV6_LAST	0xffffull

/* An address as one word. */
static __always_inline __u64 client_word(const __u8 *address)
{
	const __u32 *words = (const __u32 *)address;
	__u64 word;

	if (is_mapped(address))
		return 0xffffull << 32 | bpf_ntohl(words[3]);
	word = (__u64)bpf_ntohl(words[0]) << 32 | bpf_ntohl(words[1]);
	if (word >> 56)
		return word;
	return !word && !words[2] && words[3] == bpf_htonl(1) ? FIEF_COST_LOOPBACK : 0;
}

/* Loopback is its own network. */
static __always_inline __u64 client_network(__u64 client)
{
	__u64 last = client >> 32 == 0xffff ? COST_IPV4_LAST : COST_IPV6_LAST;

	return client == FIEF_COST_LOOPBACK ? client : client & ~last;
}

static __always_inline bool cost_lock(struct fief_cost_set *set)
{
	int i;

	bpf_for (i, 0, COST_LOCK_TRIES) {
		if (!__sync_val_compare_and_swap(&set->lock, 0, 1))
			return true;
	}
	return false;
}

/* Tells a set `ns` of the gather's client; `first`: the first set of its kind. */
static __noinline int cost_tell(struct fief_cost_room *room, struct fief_cost_gather *of, __u64 ns, __u32 first)
{
	__u64 words[2] = {first, first};
	struct fief_secret *secret;
	struct fief_cost_set *set;
	__u32 zero = 0, at;

	secret = bpf_map_lookup_elem(&secrets, &zero);
	if (!room || !of || !secret)
		return 0;
	words[0] = first ? client_network(of->client) : of->client;
	at = first + (address_hash(secret, words) >> 32 & (FIEF_COST_SETS - 1));
	set = bpf_map_lookup_elem(&costs, &at);
	if (!set)
		return 0;
	if (!cost_lock(set)) {
		room->unplaced_ns[!!first] += ns;
		return 0;
	}
	room->client = words[0];
	(*(volatile __u64 *)&set->begun)++;
	barrier();
	cost_add(set, room, ns, of == &room->packet ? ns : 0);
	barrier();
	(*(volatile __u64 *)&set->done)++;
	__sync_lock_test_and_set(&set->lock, 0);
	return 0;
}

static __always_inline void cost_flush(struct fief_cost_room *room, struct fief_cost_gather *of, __u64 now)
{
	__u64 ns = of->ns;

	if (!ns || room->telling)
		return;
	room->telling = 1;
	barrier();
	of->ns = 0;
	room->now = now;
	cost_tell(room, of, ns, 0);
	cost_tell(room, of, ns, FIEF_COST_SETS);
	barrier();
	room->telling = 0;
}

/* Somebody asks anew: the set is nobody's. */
static __noinline __attribute__((unused)) int cost_empty(__u32 at)
{
	struct fief_cost_set *set = bpf_map_lookup_elem(&costs, &at);
	unsigned long flags;

	if (!set)
		return 0;
	irq_save(&flags);
	if (cost_lock(set)) {
		(*(volatile __u64 *)&set->begun)++;
		barrier();
		set->forgotten_ns = 0;
		__builtin_memset(set->ways, 0, sizeof(set->ways));
		barrier();
		(*(volatile __u64 *)&set->done)++;
		__sync_lock_test_and_set(&set->lock, 0);
	}
	irq_restore(&flags);
	return 0;
}

static __always_inline void cost_placed_anew(__u32 cpu)
{
	__u32 zero = 0;
	struct fief_cost_room *room = bpf_map_lookup_percpu_elem(&cost_rooms, &zero, cpu);

	if (room)
		room->unplaced_ns[0] = room->unplaced_ns[1] = 0;
}

/* Tells what is gathered for the thread, if it leaves or another client's turn comes, and what was gathered for long. */
static __noinline int cost_settle(struct fief_cpu *cs, bool leaves)
{
	struct fief_cost_control *control = cost_control();
	struct fief_cost_room *room = cost_room();
	__u64 now = cs->last_ns;
	bool over;

	if (!room || !control)
		return 0;
	over = now >= control->until_ns;
	if (over || leaves || now - room->thread.from_ns >= FIEF_COST_ROOM_NS)
		cost_flush(room, &room->thread, now);
	if (over || now - room->packet.from_ns >= FIEF_COST_ROOM_NS)
		cost_flush(room, &room->packet, now);
	if (over) {
		cs->by_client = 0;
		/* an owner that asks again moves the end on first */
		if (now < __sync_fetch_and_add(&control->until_ns, 0))
			cs->by_client = 1;
	}
	return 0;
}

/* Packets that are received from now on are this client's. */
static __noinline __attribute__((unused)) int cost_packet(struct fief_cpu *cs, __u64 client)
{
	struct fief_cost_room *room = cost_room();

	if (!room)
		return 0;
	if (client && room->packet.client != client)
		cost_flush(room, &room->packet, cs->last_ns);
	room->received = client;
	return 0;
}
