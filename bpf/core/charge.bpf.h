/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Charge: one state machine per CPU; every nanosecond goes to exactly one container.
 *
 * Problem: time, packets and bytes belong to a container that changes at context switches, system calls, softirqs and within a
 * list of packets; a counter per container and CPU would take gigabytes.
 * How: the CPU's record names the owner of the time since `last_ns`; each boundary charges up to now. Counters exist once per
 * container. Each CPU gathers charges in a small write-back cache and flushes a line when another container needs it. Readers
 * add the caches and the open stint (usage.bpf.h); `sequence` tells them that a charge is under way.
 * Limits: the memory order of `sequence` is x86's (stores in order); other machines need a barrier here.
 */
#pragma once

#include "containers.bpf.h"
#include "maps/charge_pauses.bpf.h"
#include "maps/cpus.bpf.h"
#include "watch.bpf.h"
#include "cost.bpf.h"
#include "served.bpf.h"

const volatile __u32 cpu_count = 1;

static __always_inline void charge_begin(struct fief_cpu *cs)
{
	(*(volatile __u32 *)&cs->sequence)++;
	barrier();
}

static __always_inline void charge_end(struct fief_cpu *cs)
{
	barrier();
	(*(volatile __u32 *)&cs->sequence)++;
}

/* Moves one counter out of a cache; the one that swaps it out adds it, so that it is added once. */
static __always_inline void counter_move(__u64 *from, __u64 *to)
{
	__u64 n;

	if (!*from)
		return;
	n = __sync_lock_test_and_set(from, 0);
	if (n)
		__sync_fetch_and_add(to, n);
}

static __always_inline void slot_empty(struct fief_cache_slot *slot, struct fief_usage *to)
{
	counter_move(&slot->thread_ns, &to->thread_ns);
	counter_move(&slot->receive_ns, &to->receive_ns);
	counter_move(&slot->packets_in, &to->packets_in);
	counter_move(&slot->bytes_in, &to->bytes_in);
	counter_move(&slot->packets_out, &to->packets_out);
	counter_move(&slot->bytes_out, &to->bytes_out);
}

/*
 * Where the counters of a line go, whose container was `c`. Nobody else gets them who came into the slot of that one, or of its heir, since.
 */
static __always_inline struct fief_container *line_goes_to(const struct fief_cache_slot *slot, struct fief_container *c)
{
	if (c->generation != slot->container.generation)
		c = container_get(slot->heir);
	if (!c)
		return container_at(FIEF_RETIRED);
	return c->state == FIEF_ALIVE ? c : container_at(container_heir(c));
}

/* Writes one cache line back. Between begun and done a reader of this container tries again. */
static __noinline int slot_flush(struct fief_cache_slot *slot)
{
	struct fief_container *c = container_at(slot->container.id), *to;

	if (!c)
		return 0;
	__sync_fetch_and_add(&c->flushes_begun, 1);
	to = line_goes_to(slot, c);
	if (to)
		slot_empty(slot, &to->usage);
	__sync_fetch_and_add(&c->flushes_done, 1);
	return 0;
}

/*
 * The line that another container had is this one's from now on. Global: programs charge in many places, and the verifier would
 * follow it from each.
 */
__noinline int slot_take(struct fief_cpu *cs __arg_nonnull, __u64 whose)
{
	struct fief_ref ref = ref_read(whose);
	struct fief_cache_slot *slot = &cs->cache[ref.id & (FIEF_CACHE_SLOTS - 1)];
	struct fief_container *c = container_get(ref), *up = NULL;
	struct fief_ref heir = {.id = FIEF_RETIRED};

	slot_flush(slot);
	if (c) {
		__u32 mark = 1u << (bpf_get_smp_processor_id() & 31);

		heir.id = container_heir(c);
		up = container_at(heir.id);
		if (!(c->cached & mark))
			__sync_fetch_and_or(&c->cached, mark);
	}
	if (up)
		heir.generation = up->generation;
	charge_begin(cs);
	slot->container = ref;
	slot->heir = heir;
	charge_end(cs);
	return 0;
}

/*
 * The line of a container in this CPU's cache. Interrupts are off. Before a charge begins, not within: to take the line from
 * another container takes longer than a reader tries.
 */
static __always_inline struct fief_cache_slot *slot_of(struct fief_cpu *cs, struct fief_ref ref)
{
	struct fief_cache_slot *slot = &cs->cache[ref.id & (FIEF_CACHE_SLOTS - 1)];

	if (!same_ref(slot->container, ref))
		slot_take(cs, ref_word(ref));
	return slot;
}

/* Global, as slot_take. */
__noinline int charged_tell(struct fief_cpu *cs __arg_nonnull, __u64 whose, __u64 ns, __u32 clients)
{
	struct fief_ref to = ref_read(whose);

	if (cs->scheduled && is_scheduled(to.id))
		charged_gather(cs, to, ns);
	if (cs->watched)
		charge_watch(cs, to, ns);
	if (cs->by_client && clients)
		cost_charge(cs, to, ns);
	return 0;
}

/* Every nanosecond that a container is charged passes here, so that budgets and sources are of the same time as accounts. */
static __always_inline void charged_apart(struct fief_cpu *cs, struct fief_ref to, __u64 ns)
{
	if (cs->scheduled || cs->watched)
		charged_tell(cs, ref_word(to), ns, false);
}

/* As charged_apart, for what may be some client's. */
static __always_inline void charged(struct fief_cpu *cs, struct fief_ref to, __u64 ns)
{
	if (cs->scheduled || cs->watched || cs->by_client)
		charged_tell(cs, ref_word(to), ns, true);
}

/* Whether the time is of packets whose sockets are not known yet. */
static __always_inline bool is_pooled(const struct fief_cpu *cs)
{
	return cs->receive & FIEF_RX_OPEN;
}

/* Charges the time since last_ns to whom it belongs. Interrupts are off. */
static __always_inline void charge_until(struct fief_cpu *cs, __u64 now)
{
	struct fief_cache_slot *slot = NULL;
	__s64 d = now - cs->last_ns;

	if (d <= 0)
		return;
	if (cs->current_.id != FIEF_NO_ID && !is_pooled(cs))
		slot = slot_of(cs, cs->current_);
	charge_begin(cs);
	cs->last_ns = now;
	if (cs->current_.id == FIEF_NO_ID) {
		cs->task.pending_ns += d;
	} else if (!slot) {
		cs->pool_ns += d;
	} else {
		if (cs->receive)
			slot->receive_ns += d;
		else
			slot->thread_ns += d;
		if (cs->current_.id == FIEF_SYSTEM)
			cs->system_kind_ns[cs->kind & (FIEF_SYSTEM_KINDS - 1)] += d;
	}
	charge_end(cs);
	if (slot)
		charged(cs, cs->current_, d);
}

/* The next `ns` of the uncharged time, before `until`, belong to `to`; how many there were. Interrupts are off. */
static __always_inline __u64 charge_take(struct fief_cpu *cs, struct fief_ref to, __s64 ns, __u64 until)
{
	__s64 room = until - cs->last_ns;
	struct fief_cache_slot *slot;

	if (ns > room)
		ns = room;
	if (ns <= 0)
		return 0;
	slot = slot_of(cs, to);
	charge_begin(cs);
	cs->last_ns += ns;
	slot->thread_ns += ns;
	charge_end(cs);
	return ns;
}

/*
 * Whose the receive time is that found no packet of a known container: the system's, or, in the thread of a lane, its
 * container's. Of the threads that receive only those of lanes have a record.
 */
static __always_inline struct fief_ref pool_owner(struct fief_cpu *cs)
{
	if (cs->has_task && !cs->softirq_vector)
		return cs->task.home;
	return (struct fief_ref){FIEF_SYSTEM, 0};
}

/* One packet's part of the pool, which it takes with it. */
static __always_inline __u64 pool_take(struct fief_cpu *cs)
{
	__u64 part = cs->pool_packets > 1 ? cs->pool_ns / cs->pool_packets : cs->pool_ns;

	cs->pool_packets--;
	cs->pool_ns -= part;
	return part;
}

/* The packet that waits at the front door takes its part of the pool, which has the time up to now. */
static __always_inline void door_settle(struct fief_cpu *cs)
{
	struct fief_cache_slot *slot;
	struct fief_ref to;
	__u64 part;

	if (cs->receive != FIEF_RX_DOOR)
		return;
	to = cs->kept_for;
	slot = slot_of(cs, to);
	charge_begin(cs);
	part = pool_take(cs);
	slot->receive_ns += part;
	cs->receive = FIEF_RX_OPEN;
	charge_end(cs);
	charged_apart(cs, to, part);
}

static __always_inline void pool_close(struct fief_cpu *cs)
{
	door_settle(cs);
	if (cs->pool_ns) {
		struct fief_ref owner = pool_owner(cs);
		struct fief_cache_slot *slot = slot_of(cs, owner);

		charged_apart(cs, owner, cs->pool_ns);
		charge_begin(cs);
		slot->receive_ns += cs->pool_ns;
		if (owner.id == FIEF_SYSTEM)
			cs->system_kind_ns[FIEF_SYSTEM_NET_RX] += cs->pool_ns;
		cs->pool_ns = 0;
		charge_end(cs);
	}
	cs->pool_packets = 0;
}

static __always_inline void set_system(struct fief_cpu *cs, __u32 kind)
{
	cs->current_ = (struct fief_ref){FIEF_SYSTEM, 0};
	cs->kind = kind;
}

/* A CPU's first event, also after a pause: nothing before it can be charged. In a pause each is one, and the CPU stays offline. */
static __always_inline bool cpu_first_event(struct fief_cpu *cs, __u64 now)
{
	if (cs->online)
		return false;
	if (charge_paused())
		return true;
	cs->online = 1;
	cs->last_ns = now;
	return true;
}

/* What was open since the wake-up belongs to `to`. Interrupts are off, time is charged up to now. */
static __always_inline void pending_settle(struct fief_cpu *cs, struct fief_ref to)
{
	struct fief_cache_slot *slot;

	if (!cs->task.pending_ns)
		return;
	slot = slot_of(cs, to);
	charged(cs, to, cs->task.pending_ns);
	charge_begin(cs);
	slot->thread_ns += cs->task.pending_ns;
	cs->task.pending_ns = 0;
	charge_end(cs);
}
