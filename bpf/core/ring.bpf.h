/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ring: a thread is bound by what it writes in its own memory.
 *
 * Problem: an event loop that works for another container with each request pays a system call for each.
 * How: the thread writes records, a place and a moment each, to a page of its own (abi/ring.h draws one). Before its time is
 * charged (at a switch, a softirq, an interrupt, a call, when it ends) the records are read on its own CPU, where its memory is
 * mapped, and the time since the last charge is divided by them. A place is an entry of the ring's own table here, so a
 * thread can name only containers that it held when it put them there. Moments are clamped to what is not charged yet, in the
 * order of the records: a liar divides its own time among its own containers, and nothing else.
 * Limits: a page that is not in memory counts as empty until it is. Other CPUs cannot read it, so readers leave the open stint of a
 * thread with a ring out, and the control plane asks its CPU to charge it first (cpu_drains). Faults, bytes and the kernel's
 * tick samples are the container's that the thread works for when it is looked at. At exit before 6.16 the kernel has let go
 * of the memory when it tells; what was not flushed until then is charged to the container of the last record that was taken.
 */
#pragma once

#include "bits.bpf.h"
#include "bind.bpf.h"
#include "loop.bpf.h"
#include "maps/rings.bpf.h"

#define RING_WORDS  (2 * FIEF_RING_RECORDS) /* twice, so that the verifier sees that both parts fit */
#define RING_BEFORE FIEF_RING_PLACES	    /* in the place of no record: what the thread worked for before */

/* One CPU's room to read in, used with interrupts off. */
struct ring_room {
	__u64 records[RING_WORDS];
	__u64 sums_ns[2 * FIEF_RING_PLACES]; /* by place, and RING_BEFORE; 0 but while records are divided */
	__u64 touched;			     /* a bit for each place that a record names, until it is charged */
	__u64 from;
	__u32 place;
	__u32 turn;
	__u32 wrong; /* a record names nothing */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ring_room);
} ring_rooms SEC(".maps");

/* Whether records count now: the running thread has a ring, and the time is its own. */
static __always_inline bool ring_counts(const struct fief_cpu *cs)
{
	return cs->has_task && cs->task.ring && !cs->softirq_vector && !cs->in_irq;
}

/* Copies records, once: another thread of the process may write them meanwhile. */
static __always_inline int ring_read(struct ring_room *room, const struct fief_ring *ring, __u32 tail, __u32 count)
{
	__u64 records = ring->address + __builtin_offsetof(struct fief_ring_page, records);
	__u64 from = tail & (FIEF_RING_RECORDS - 1), first = FIEF_RING_RECORDS - from, rest;

	if (first > count)
		first = count;
	rest = count - first;
	/* what the verifier would have to work out */
	asm volatile("" : "+r"(first), "+r"(rest));
	if (first > FIEF_RING_RECORDS || rest > FIEF_RING_RECORDS)
		return -EINVAL;
	if (bpf_probe_read_user(room->records, first * sizeof(__u64), (void *)(records + from * sizeof(__u64))))
		return -EFAULT;
	if (rest && bpf_probe_read_user(&room->records[first], rest * sizeof(__u64), (void *)records))
		return -EFAULT;
	return 0;
}

/*
 * Adds up what each place has of the time from `from` to `now`, up to the last record. Returns the place of that. What a pass leaves
 * for the next one lies in the room: so the verifier sees one pass, not all paths through all of them.
 */
static __always_inline __u32 ring_divide(struct ring_room *room, const struct fief_ring *ring, __u32 count, __u64 from,
					 __u64 now)
{
	__u64 filled = ring->filled, clock = (now - ring->clock_ns) << FIEF_RING_PLACE_BITS;

	room->from = from;
	room->place = RING_BEFORE;
	room->turn = 0;
	while (room->turn < count && can_loop) {
		__u64 record = room->records[room->turn++ & (RING_WORDS - 1)], when;
		__u32 next = record & (FIEF_RING_PLACES - 1);

		if (!(filled >> next & 1)) {
			room->wrong = 1;
			continue;
		}
		/* modulo 2^58, as in the record: the shift back extends the sign */
		when = now - ((__s64)(clock - (record - next)) >> FIEF_RING_PLACE_BITS);
		if ((__s64)(now - when) < 0)
			when = now;
		if ((__s64)(when - room->from) < 0)
			when = room->from;
		room->sums_ns[room->place & (2 * FIEF_RING_PLACES - 1)] += when - room->from;
		room->touched |= 1ull << next;
		room->from = when;
		room->place = next;
	}
	return room->place;
}

/* The thread works for what its last record names. Returns the container whose thread reference is to be dropped. */
static __always_inline struct fief_ref ring_bind(struct fief_cpu *cs, const struct fief_ring *ring, __u32 place)
{
	struct fief_ref to = ring_place(cs, ring, place), was = cs->task.binding, home = cs->task.home;
	struct fief_ref none = {FIEF_NO_ID, 0};
	struct fief_container *c;

	cs->task.flags &= ~FIEF_TASK_SLEPT;
	cs->task.flags |= FIEF_TASK_EXPLICIT;
	cs->current_ = to;
	if (same_ref(to, was))
		return none;
	c = container_at(to.id);
	if (c && !same_ref(to, home))
		container_hold(c, FIEF_THREAD);
	cs->task.binding = to;
	cs->task.rights = place == FIEF_RING_HOME ? FIEF_RIGHT_USE | FIEF_RIGHT_READ | FIEF_RIGHT_CHILDREN
						  : ring->places[place_bounded(place)].rights;
	return same_ref(was, home) ? none : was;
}

/* The operator is told once of each ring. */
static __always_inline void ring_wrong(struct fief_ring *ring)
{
	if (ring->unread)
		return;
	ring->unread = 1;
	count_error(FIEF_ERR_RING);
}

/* Takes the records of the running thread. Interrupts are off. */
static __always_inline int ring_take(struct fief_cpu *cs, struct fief_ring *ring, struct ring_room *room, __u64 now,
				     struct fief_ref *left)
{
	__u32 head, tail = ring->tail, count, last;
	int turn;

	if (bpf_probe_read_user(&head, sizeof(head), (void *)ring->address)) {
		ring_wrong(ring);
		return -EFAULT;
	}
	count = head - tail;
	if (!count)
		return 0;
	if (count > FIEF_RING_RECORDS) {
		ring->tail = head; /* none of them can be believed */
		ring_wrong(ring);
		return -EINVAL;
	}
	if (ring_read(room, ring, tail, count)) {
		ring_wrong(ring);
		return -EFAULT;
	}
	ring->tail = head;
	steal_settle(cs, now);
	room->wrong = 0;
	last = ring_divide(room, ring, count, cs->last_ns, now);
	if (room->wrong)
		ring_wrong(ring);
	charge_until(cs, cs->last_ns + room->sums_ns[RING_BEFORE]);
	room->sums_ns[RING_BEFORE] = 0;
	if (last == RING_BEFORE)
		return 0;
	cs->task.client = 0; /* what it writes tells containers, not clients */
	pending_settle(cs, cs->task.binding);
	bpf_for (turn, 0, FIEF_RING_PLACES) {
		__u64 touched = room->touched, ns;
		__u64 place = lowest_bit(touched);
		struct fief_ref to;

		if (!touched)
			break;
		asm volatile("" : "+r"(place)); /* clang knows that it is below 64, the verifier does not */
		place = place_bounded(place);
		room->touched = touched & (touched - 1);
		ns = room->sums_ns[place];
		room->sums_ns[place] = 0;
		to = ring_place(cs, ring, place);
		ns = charge_take(cs, to, ns, now);
		if (ns)
			charged(cs, to, ns);
	}
	*left = ring_bind(cs, ring, last);
	return 0;
}

/*
 * Charges the running thread up to its last record; `now` 0: the clock is read. Global: the verifier walks it once for each
 * program. -EFAULT: the page is not in memory.
 */
__noinline int ring_settle(__u64 now)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_ref left = {FIEF_NO_ID, 0};
	struct fief_ring *ring;
	struct ring_room *room;
	struct fief_cpu *cs;
	unsigned long flags;
	__u32 zero = 0;
	int err = 0;

	cs = record_hold(&flags);
	/* in the midst of another change of the record, of which this interrupt came */
	if (cs && ring_counts(cs) && cs->changing <= 1 && cs->running == p->pid) {
		ring = ring_at(cs->task.ring, cs->task.ring_generation);
		room = bpf_map_lookup_elem(&ring_rooms, &zero);
		if (ring && room)
			err = ring_take(cs, ring, room, now ? now : bpf_ktime_get_ns(), &left);
	}
	record_let_go(cs, &flags);
	if (left.id != FIEF_NO_ID)
		container_put(left.id, FIEF_THREAD);
	return err;
}

/* As ring_settle, where the running thread has a ring; all that others pay is this look. */
static __always_inline int ring_look(const struct fief_cpu *cs, __u64 now)
{
	return cs && ring_counts(cs) ? ring_settle(now) : 0;
}
