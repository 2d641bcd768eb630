/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The scheduler: containers have the shares, weights, limits and priorities of the CPU that their policy gives them. This file
 * is a table of contents of the parts:
 *
 *   order    the arithmetic                 state    the scheduler's records
 *   tree     which containers wait          front    the thread that waits alone on the whole machine
 *   limit    budgets                        fits     whether a line may have a thread for a CPU
 *   numbers  which have a queue, and in whose line the threads of others wait  climbs  the limits below that
 *   pick     whose thread is next           alone    the same where one container's alone wait
 *   thread   which container a thread is scheduled for    plain    one of which nothing need be asked anew
 *   floor    no thread waits for ever       scx      the kernel's functions for schedulers
 *   served   what a thread served lately    combined whose allocation it has, of several
 *   turns    in whose line a thread's comes first  lent  that of a better container whose request waits for the thread
 *   leaves   threads that are to wait elsewhere    kthread  the kernel's own threads
 *   enqueue  where who wakes up waits       dispatch whose turn it is on a CPU
 *   stuck    a thread that may not leave its CPU   idle     CPUs that found nothing, and whom they did not see
 *   run      what is kept of who runs       machine  the CPUs, and the period of budgets
 *   policy   whose turn it is among the threads of one container: line, a file in policies/ for each order, and stays
 *
 * Functions that are not static are verified once for each program that calls them, for any argument; static ones once for each
 * state of their callers, of which there were so many that loading took 33 s on an emulated CPU (now less than one).
 *
 * It reuses the core's maps and is loaded only where a policy wants it. The order is by the core's own charges: what a thread
 * does for a container it bound to in the middle of its stint, and what the kernel receives for one, counts for that one.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "abi.h"
#include "kernel.bpf.h"
#include "compat.bpf.h"
#include "core/stint.bpf.h"
#include "maps/guards.bpf.h"
#include "maps/queues.bpf.h"

#include "scx.bpf.h"
#include "order.h"
#include "state.bpf.h"
#include "front.bpf.h"
#include "fits.bpf.h"
#include "tree.bpf.h"
#include "numbers.bpf.h"
#include "limit.bpf.h"
#include "pick.bpf.h"
#include "alone.bpf.h"
#include "thread.bpf.h"
#include "policy.bpf.h"
#include "plain.bpf.h"
#include "climbs.bpf.h"
#include "combined.bpf.h"
#include "leaves.bpf.h"
#include "stays.bpf.h"
#include "floor.bpf.h"
#include "stuck.bpf.h"
#include "kthread.bpf.h"
#include "charge_now.bpf.h"
#include "idle.bpf.h"
#include "enqueue.bpf.h"
#include "dispatch.bpf.h"
#include "run.bpf.h"
#include "machine.bpf.h"

SEC("struct_ops/select_cpu")
s32 BPF_PROG(wakeup_places, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	return wakeup_place(p, prev_cpu, wake_flags);
}

SEC("struct_ops/enqueue")
void BPF_PROG(enqueue_waits, struct task_struct *p, u64 flags)
{
	enqueue(p, flags);
}

SEC("struct_ops/dispatch")
void BPF_PROG(dispatch_picks, s32 cpu, struct task_struct *prev)
{
	dispatch(cpu, prev);
}

SEC("struct_ops/running")
void BPF_PROG(running_begins, struct task_struct *p)
{
	struct sched_machine *m = machine_get();

	if (!front_runs(m, p))
		run_begins(m, p);
}

SEC("struct_ops/stopping")
void BPF_PROG(stopping_ends, struct task_struct *p, bool runnable)
{
	run_ends(p, runnable);
}

SEC("struct_ops/tick")
void BPF_PROG(tick_stops, struct task_struct *p)
{
	run_ticks(p);
}

SEC("struct_ops/yield")
bool BPF_PROG(yield_gives, struct task_struct *from, struct task_struct *to)
{
	return run_yields(from, to);
}

SEC("struct_ops/disable")
void BPF_PROG(disable_leaves, struct task_struct *p)
{
	run_leaves(p);
}

SEC("struct_ops.s/init_task")
s32 BPF_PROG(task_begins, struct task_struct *p, struct scx_init_task_args *args)
{
	struct sched_waiting *w = bpf_task_storage_get(&sched_threads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!w)
		return -ENOMEM;
	w->allocation.id = FIEF_NO_ID;
	w->self = (__u64)p;
	w->self = front_self(*(volatile __u64 *)&w->self); /* the verifier lets nobody count with a pointer */
	return 0;
}

/* Without these two the kernel takes a scheduler out when a CPU comes or goes. Queues are nobody's; limits are of what is there. */
SEC("struct_ops/cpu_online")
void BPF_PROG(cpu_comes, s32 cpu)
{
	cpu_changes(cpu, false);
}

SEC("struct_ops/cpu_offline")
void BPF_PROG(cpu_goes, s32 cpu)
{
	place_at(cpu)->rank = ~0u;
	cpu_changes(cpu, true);
}

SEC("struct_ops.s/init")
s32 BPF_PROG(init_begins)
{
	return machine_begins();
}

SEC("struct_ops/exit")
void BPF_PROG(exit_tells, struct scx_exit_info *info)
{
	struct fief_sched *state = state_get();

	core_tell(false, 0);
	if (!state)
		return;
	state->exit_kind = info->kind;
	state->exit_code = info->exit_code;
	bpf_probe_read_kernel_str(state->exit_reason, sizeof(state->exit_reason), info->reason);
	bpf_probe_read_kernel_str(state->exit_message, sizeof(state->exit_message), info->msg);
}

/* User space reads it. */
SEC("iter/task")
int threads_tell(struct bpf_iter__task *ctx)
{
	return combined_tell(ctx->meta->seq, ctx->task);
}

SEC(".struct_ops.link")
struct sched_ext_ops sched_ops = {
    .select_cpu = (void *)wakeup_places,
    .enqueue = (void *)enqueue_waits,
    .dispatch = (void *)dispatch_picks,
    .tick = (void *)tick_stops,
    .yield = (void *)yield_gives,
    .running = (void *)running_begins,
    .stopping = (void *)stopping_ends,
    .disable = (void *)disable_leaves,
    .cpu_online = (void *)cpu_comes,
    .cpu_offline = (void *)cpu_goes,
    .init_task = (void *)task_begins,
    .init = (void *)init_begins,
    .exit = (void *)exit_tells,
    .timeout_ms = 30000, /* the most that the kernel takes; floor.bpf.h */
    /*
     * Without the last two the kernel runs threads that end, or that may not leave their CPU now (any system call under a filter), before
     * all others, whatever is theirs. The loader takes out what the kernel does not know.
     */
    .flags = SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING | SCX_OPS_ENQ_MIGRATION_DISABLED,
    .name = "fief",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
