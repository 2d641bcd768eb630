/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Object: an order among a container's own threads that was built outside of Fief.
 *
 * Problem: such an order is a program of somebody else's, for some containers, exchanged while the scheduler runs; and the kernel
 * takes no part of a scheduler from another object.
 * How: each object has a function here that does nothing, of which the kernel lets tracing programs see the entry (fentry). What
 * the object is told and what it says stands in a record of the CPU (abi/turn.h), since such a program sees numbers only. The
 * function is in each program of the scheduler that asks, so an object has a tracing program for each of these.
 * A line is told of by the object that it began with alone: one that was idle while another object got the number begins anew.
 * An answer that no line can have, or that took too long, is a fault, and `fair` says the place. After OBJECT_BAD_MOST, by which a
 * good answer takes off one and a fault adds OBJECT_FAULT, the object is not asked any more.
 * Limits: where nobody answers, as before the object is attached, `fair` says the place, and nothing is a fault. A container that
 * ends is told when its number is another one's.
 */
#pragma once

#include "line.h"
#include "state.bpf.h"
#include "policies/fair.h"

#define OBJECT_SLOW_NS	500000ull
#define OBJECT_REACH_NS 60000000000ull /* from the line's clock, or from now */
#define OBJECT_FAULT	16
#define OBJECT_BAD_MOST 256

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct fief_turn);
} sched_turns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_OBJECT_SETS);
	__type(key, __u32);
	__type(value, struct fief_object);
} sched_objects SEC(".maps");

#ifndef OBJECT /* of tests */
/* Global, so that it has an entry; the compiler must not see that it does nothing. */
#define OBJECT(number)                                                                                                 \
	__noinline int object_##number(__u32 cpu)                                                                      \
	{                                                                                                              \
		asm volatile("" : "+r"(cpu));                                                                          \
		return cpu;                                                                                            \
	}
#endif

_Static_assert(FIEF_OBJECT_SETS == 8, "a function for each number, here and in object_call()");
OBJECT(0)
OBJECT(1)
OBJECT(2)
OBJECT(3)
OBJECT(4)
OBJECT(5)
OBJECT(6)
OBJECT(7)

static __always_inline void object_call(__u32 number, __u32 cpu)
{
	switch (number) {
	case 0:
		object_0(cpu);
		break;
	case 1:
		object_1(cpu);
		break;
	case 2:
		object_2(cpu);
		break;
	case 3:
		object_3(cpu);
		break;
	case 4:
		object_4(cpu);
		break;
	case 5:
		object_5(cpu);
		break;
	case 6:
		object_6(cpu);
		break;
	case 7:
		object_7(cpu);
		break;
	}
}

/* Which of those that had the number it is; it is counted when it answers. */
static __always_inline __u32 object_instance(__u32 policy)
{
	__u32 number = policy - FIEF_POLICY_OBJECT;
	struct fief_object *o = policy < FIEF_POLICY_OBJECT ? NULL : bpf_map_lookup_elem(&sched_objects, &number);

	return o ? o->instance : 0;
}

static __always_inline bool in_reach(__u64 at, __u64 from)
{
	return at == within(at, from, OBJECT_REACH_NS, OBJECT_REACH_NS);
}

/* Asks the line's object. Whether it has answered, and as a line can have it; then the thread has its place. */
__noinline int object_turn(struct sched_line *l __arg_nonnull, struct line_thread *t, __u32 verb, __u64 now, __u64 ns)
{
	__u32 number = l->policy - FIEF_POLICY_OBJECT, cpu = bpf_get_smp_processor_id();
	struct fief_turn *turn = bpf_map_lookup_elem(&sched_turns, &cpu);
	struct fief_object *o = bpf_map_lookup_elem(&sched_objects, &number);
	__u64 asked, took, at;

	if (!turn || !o || o->removed || o->instance != l->instance)
		return 0;
	*turn = (struct fief_turn){
	    .verb = verb,
	    .container = l->container,
	    .generation = l->generation,
	    .now_ns = now,
	    .clock = l->clock,
	    .period_ns = l->period_ns,
	    .budget_ns = l->budget_ns,
	    .ran_ns = ns,
	};
	if (t) {
		turn->pid = t->pid;
		turn->weight = t->weight;
		turn->slept = t->slept;
		turn->random = t->random;
		turn->at = t->at;
		turn->left = t->left;
	}
	asked = bpf_ktime_get_ns();
	object_call(number, cpu);
	took = bpf_ktime_get_ns() - asked;
	/* once: the object has the record also when it is not asked */
	at = *(volatile __u64 *)&turn->at;
	o->turns++;
	if (!turn->answered && took < OBJECT_SLOW_NS) {
		o->unanswered++;
		return 0;
	}
	/* a place that it left alone is none of its answers */
	if (took >= OBJECT_SLOW_NS || (t && at != t->at && !in_reach(at, l->clock) && !in_reach(at, now))) {
		o->faults++;
		o->bad += OBJECT_FAULT;
		if (o->bad > OBJECT_BAD_MOST)
			o->removed = 1;
		return 0;
	}
	if (o->bad)
		o->bad--;
	if (t) {
		t->at = at;
		t->left = turn->left;
	}
	return 1;
}

static inline void object_begin(struct sched_line *l, struct line_thread *t, __u64 now)
{
	fair_begin(l, t, now);
	t->left = 0;
	object_turn(l, t, FIEF_TURN_BEGIN, now, 0);
}

static inline void object_place(struct sched_line *l, struct line_thread *t, __u64 now)
{
	if (!object_turn(l, t, FIEF_TURN_PLACE, now, 0))
		fair_place(l, t, now);
}

static inline void object_ran(struct sched_line *l, struct line_thread *t, __u64 ns)
{
	if (!object_turn(l, t, FIEF_TURN_RAN, bpf_ktime_get_ns(), ns))
		fair_ran(l, t, ns);
}

static inline void object_yields(struct sched_line *l, struct line_thread *t)
{
	if (!object_turn(l, t, FIEF_TURN_YIELDS, bpf_ktime_get_ns(), 0))
		fair_yields(l, t);
}
