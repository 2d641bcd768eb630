/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An order among the threads of a container, built outside of Fief and loaded into its scheduler while that runs.
 *
 *	#include "vmlinux.h"
 *	#include <bpf/bpf_helpers.h>
 *	#include <fief_policy.h>
 *
 *	// last come, first served
 *	static int lifo(struct fief_turn *turn)
 *	{
 *		if (turn->verb == FIEF_TURN_PLACE && turn->slept)
 *			turn->at = turn->clock - (turn->now_ns >> 20);
 *		return 1;
 *	}
 *
 *	FIEF_POLICY(lifo);
 *	char LICENSE[] SEC("license") = "GPL";
 *
 *	clang -target bpf -O2 -g -c lifo.bpf.c		and in the policy	[cpu-policy.lifo]
 *								object = "/etc/fief/lifo.bpf.o"
 *								[container.batch]
 *								cpu.policy = "lifo"
 *
 * The function is asked about one thread, or told of a container, each time (turn->verb). It answers by 1; by 0 it leaves the
 * thread to its nice value. Of the threads that wait, the one with the least `at` goes first; `at` is in nanoseconds, within a
 * minute of `clock` or of now. At FIEF_TURN_BEGIN it stands where a thread of Fief's own order begins.
 *
 * Data of its own lies in its own maps: by `container` and `generation`, or by `pid`, in a map that forgets (LRU), since the end of a
 * thread is not told. FIEF_TURN_DELETE comes when the container has another order, or its number is another container's.
 * It runs under the lock of a run queue, with interrupts off, and has half a millisecond. It must not wake threads (bpf_wq), and one that
 * does not return stops its CPU. An object that answers too late or beyond reach too often is not asked any more; `fief status` says
 * so.
 */
#ifndef FIEF_POLICY_H
#define FIEF_POLICY_H

@RECORDS@

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_TURN_VERSION); /* Fief has its own in place of this one */
	__type(key, __u32);
	__type(value, struct fief_turn);
} sched_turns SEC(".maps");

#define FIEF_POLICY_AT(turn_function, place)                                                                           \
	SEC("fentry/fief")                                                                                             \
	int place(void *ctx)                                                                                           \
	{                                                                                                              \
		__u32 cpu = bpf_get_smp_processor_id();                                                                \
		struct fief_turn *turn = bpf_map_lookup_elem(&sched_turns, &cpu);                                      \
                                                                                                                       \
		if (turn)                                                                                              \
			turn->answered = turn_function(turn);                                                          \
		return 0;                                                                                              \
	}

/* One program for each place where the scheduler asks. */
#define FIEF_POLICY(turn_function)                                                                                     \
	FIEF_POLICY_AT(turn_function, wakeup_places)                                                                   \
	FIEF_POLICY_AT(turn_function, enqueue_waits)                                                                   \
	FIEF_POLICY_AT(turn_function, dispatch_picks)                                                                  \
	FIEF_POLICY_AT(turn_function, stopping_ends)                                                                   \
	FIEF_POLICY_AT(turn_function, yield_gives)

#endif
