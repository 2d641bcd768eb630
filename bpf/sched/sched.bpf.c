/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The scheduler: containers have the shares, weights, limits and priorities of the CPU that their policy gives them. This file
 * is a table of contents of the parts:
 *
 *   order    the arithmetic                 state    the scheduler's records
 *   tree     which containers wait          limit    budgets
 *   pick     whose thread is next           alone    the same where one container's alone wait
 *   thread   which container a thread is scheduled for
 *   floor    no thread waits for ever       scx      the kernel's functions for schedulers
 *   served   what a thread served lately    combined whose allocation it has, of several
 *   turns    in whose line a thread's comes first  lent  that of a better container whose request waits for the thread
 *   leaves   threads that are to wait elsewhere    kthread  the kernel's own threads
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
#include "tree.bpf.h"
#include "limit.bpf.h"
#include "pick.bpf.h"
#include "alone.bpf.h"
#include "thread.bpf.h"
#include "policy.bpf.h"
#include "combined.bpf.h"
#include "leaves.bpf.h"
#include "stays.bpf.h"
#include "floor.bpf.h"
#include "kthread.bpf.h"

#define PICKS		256    /* queues in a row that have no thread for this CPU, */
#define PICKS_FEW	16     /* and more than so many only for */
#define PICKS_NS	200000 /* so long: interrupts are off */
#define RESTS_MOST	64     /* so often in a row a search goes on */
#define CLOCK_MONOTONIC 1

/* The running thread's time up to now is charged. Interrupts are off. */
__noinline int charge_now(__u64 now)
{
	struct fief_cpu *cs = this_cpu();

	ring_look(cs, now);
	if (cs && cs->online && !cs->in_irq && !cs->softirq_vector)
		charge_until(cs, now);
	return 0;
}

SEC("struct_ops/select_cpu")
s32 BPF_PROG(wakeup_places, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
	__u64 slice = SLICE_NS;

	if (!idle)
		return cpu;
	if (!(p->flags & PF_KTHREAD)) {
		struct sched_waiting *w = waiting_of(p);
		__u32 id = allocation_of(p, w);

		if (!limits_allow(id))
			return cpu;
		if (w) {
			w->thread.pid = p->pid; /* it may have become another's (exec) */
			w->thread.slept = 1;
			place_take(id, w, p->scx.weight, bpf_ktime_get_ns());
		}
		slice = slice_of(id, w);
	}
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice, 0);
	return cpu;
}

SEC("struct_ops/enqueue")
void BPF_PROG(enqueue_waits, struct task_struct *p, u64 flags)
{
	struct sched_waiting *w = waiting_of(p);
	__u64 place = bpf_ktime_get_ns(), slice = SLICE_NS;
	__u32 id, queue, rank, cpu;
	s32 idle;

	if (p->flags & PF_KTHREAD) {
		kthread_waits(p, flags);
		return;
	}
	wait_end(w);
	if (w && flags & SCX_ENQ_WAKEUP)
		w->thread.slept = 1;
	id = allocation_of(p, w);
	queue = wait_begin(w, id, place);
	if (w && queue != QUEUE_ROOT) {
		w->thread.pid = p->pid;
		place = place_take(id, w, p->scx.weight, place);
		slice = slice_of(id, w);
	}
	scx_bpf_dsq_insert_vtime(p, DSQ(queue), slice, place, flags);
	rank = rank_unheld(id);
	if (rank == RANK_HELD) {
		budgets_settle(id, bpf_ktime_get_ns()); /* it may have slept since its budget was last looked at */
		rank = rank_unheld(id);
	}
	if (w)
		w->ranked = rank == RANK_HELD ? 0 : rank + 1;
	if (rank == RANK_HELD)
		return;
	idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return;
	}
	if (flags & SCX_ENQ_LAST) {
		scx_bpf_kick_cpu(scx_bpf_task_cpu(p), 0);
		return;
	}
	for (cpu = 0; cpu < cpu_count && can_loop; cpu++) {
		struct sched_place *there = place_at(cpu);

		if (!there)
			break;
		if ((there->rank < rank || is_overtaken(there, id, w)) && bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
			state_count(preempted);
			break;
		}
	}
}

/* The thread of the one container that waits, where it is known without a choice. */
static __always_inline bool alone_takes(struct sched_machine *m, struct sched_place *here)
{
	struct sched_node *n;
	__u32 queue;
	int found;

	if (!*(volatile __u32 *)&m->alone || !machine_lock())
		return false;
	found = alone_pick();
	n = found >= 0 ? node_at(found) : NULL;
	queue = found == FIEF_ROOT ? QUEUE_ROOT + 1 : n ? n->queue : 0;
	machine_unlock(m);
	if (!queue || !scx_bpf_dsq_move_to_local(DSQ(queue - 1)))
		return false;
	here->row = 0;
	state_count(picked);
	return true;
}

/*
 * A search that has had its time without an end goes on with the next choice, at once: else the CPU would be idle although somebody waits
 * for it. What it has seen is marked with its number; who came there since is seen by another search, from the begin.
 */
static __always_inline void search_rests(struct sched_place *here, s32 cpu, __u32 search, bool over)
{
	if ((over && !here->search) || here->rests >= RESTS_MOST) {
		here->search = 0;
		here->rests = 0;
		return;
	}
	here->search = over ? 0 : search;
	here->rests++;
	scx_bpf_kick_cpu(cpu, 0);
}

SEC("struct_ops/dispatch")
void BPF_PROG(dispatch_picks, s32 cpu, struct task_struct *prev)
{
	struct sched_machine *m = machine_get();
	struct sched_place *here = place_at(cpu);
	bool given = false, over = false;
	__u32 stays, search;
	int i, found;
	__u64 now;

	if (!m || !here)
		return;
	if (!may_stay(prev) && !m->serving && !m->late && !m->kernel && alone_takes(m, here))
		return;
	now = bpf_ktime_get_ns();
	charge_now(now);
	stays = prev_waits(prev);
	lent_look(m, now);
	if (kthread_let_in(m, here, prev, now) || floor_let_in(m, here))
		return;
	if (!machine_lock()) {
		if (!scx_bpf_dsq_move_to_local(DSQ(QUEUE_ROOT)) && stays)
			slice_set(prev, SLICE_NS);
		return;
	}
	search = here->search ? here->search : ++m->searches;
	if (stays)
		waits_more(stays - 1);
	machine_unlock(m);
	bpf_for (i, 0, PICKS) {
		__u32 queue = QUEUE_ROOT;
		struct sched_node *n;

		if ((i >= PICKS_FEW && bpf_ktime_get_ns() - now > PICKS_NS) || !machine_lock())
			break;
		m->search = search;
		alone_joins(m);
		found = tree_pick(now);
		n = found >= 0 ? node_at(found) : NULL;
		if (n) {
			n->own_passed = search;
			if (!n->first)
				n->passed = search; /* nothing is below it */
			queue = n->queue;
		}
		machine_unlock(m);
		over = found == PICK_NONE;
		if (over)
			break;
		if (found == PICK_AGAIN)
			continue;
		if (found == FIEF_ROOT)
			queue = QUEUE_ROOT + 1;
		if (stays == found + 1 && place_stays(prev, cpu, found, queue)) {
			slice_set(prev, slice_of(found, waiting_of(prev)));
			allocation_keeps(prev, here, found);
			state_count(kept);
			given = true;
			break;
		}
		if (queue && scx_bpf_dsq_move_to_local(DSQ(queue - 1))) {
			state_count(picked);
			given = true;
			break;
		}
		if (stays == found + 1) {
			slice_set(prev, SLICE_NS);
			allocation_keeps(prev, here, found);
			state_count(kept);
			given = true;
			break;
		}
	}
	if (!given)
		given = kthread_take(m, here, now);
	if (given) {
		here->search = 0;
		here->rests = 0;
	} else {
		search_rests(here, cpu, search, over);
	}
	if (stays && machine_lock()) {
		waits_less(stays - 1);
		queue_return(stays - 1);
		machine_unlock(m);
	}
}

SEC("struct_ops/running")
void BPF_PROG(running_begins, struct task_struct *p)
{
	struct sched_place *here = place_at(bpf_get_smp_processor_id());
	struct sched_waiting *w = waiting_of(p);

	wait_end(w);
	if (w) {
		w->since_ns = 0;
		place_runs(w, p->se.sum_exec_runtime);
	}
	if (!here)
		return;
	here->at = w ? w->thread.at : 0;
	here->of = w ? w->of : 0;
	here->rank = p->flags & PF_KTHREAD ? ~0u : rank_runs(p, w);
	here->own = p->flags & PF_KTHREAD ? 0 : own_of(w);
	here->turn = p->flags & PF_KTHREAD ? 0 : turn_of(w);
	here->lent = w && w->lent;
	here->thread = (__u64)p;
	if (here->brief && !(p->flags & PF_KTHREAD)) {
		here->brief = 0;
		if (!is_dying(p))
			scx_bpf_kick_cpu(bpf_get_smp_processor_id(), SCX_KICK_PREEMPT);
	}
}

SEC("struct_ops/stopping")
void BPF_PROG(stopping_ends, struct task_struct *p, bool runnable)
{
	struct sched_place *here = place_at(bpf_get_smp_processor_id());
	struct sched_waiting *w = waiting_of(p);

	if (w) {
		place_ran(w, p->se.sum_exec_runtime);
		served_ends(w, p);
	}
	/* nobody is to be preempted until the next one runs */
	if (here) {
		here->rank = ~0u;
		here->of = 0;
		here->own = 0;
		here->turn = 0;
		if (runnable)
			here->thread = 0;
	}
}

SEC("struct_ops/tick")
void BPF_PROG(tick_stops, struct task_struct *p)
{
	__u32 id;

	if (p->flags & PF_KTHREAD)
		return;
	charge_now(bpf_ktime_get_ns());
	served_take(waiting_of(p), p->pid, p->se.sum_exec_runtime);
	id = container_of_thread(p);
	if (is_held(id))
		slice_set(p, 0);
}

/* sched_yield(): the others of its container first. */
SEC("struct_ops/yield")
bool BPF_PROG(yield_gives, struct task_struct *from, struct task_struct *to)
{
	struct sched_waiting *w = waiting_of(from);

	if (w)
		place_yields(w);
	slice_set(from, 0);
	return false;
}

/* It goes to sleep, to another CPU, or changes what it is. */
SEC("struct_ops/quiescent")
void BPF_PROG(quiescent_ends, struct task_struct *p, u64 flags)
{
	struct sched_place *here = place_at(bpf_get_smp_processor_id());
	struct sched_waiting *w;

	/* the one that runs here waits nowhere: its storage need not be asked for */
	if (here && here->thread == (__u64)p) {
		here->thread = 0;
		if (!here->lent)
			return;
	}
	w = waiting_of(p);
	wait_end(w);
	if (w && flags & SCX_DEQ_SLEEP)
		w->lent = 0;
}

SEC("struct_ops.s/init_task")
s32 BPF_PROG(task_begins, struct task_struct *p, struct scx_init_task_args *args)
{
	struct sched_waiting *w = bpf_task_storage_get(&sched_threads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!w)
		return -ENOMEM;
	w->allocation.id = FIEF_NO_ID;
	return 0;
}

/* What the core has to know: whether its charges gather for the scheduler, and for how many CPUs a limit is. */
static __always_inline void core_tell(bool on, __u32 cpus)
{
	__u32 cpu;

	bpf_for (cpu, 0, cpu_count) {
		struct fief_cpu *cs = cpu_at(cpu);

		if (!cs)
			break;
		cs->limit_cpus = cpus;
		cs->scheduled = on;
	}
}

/* A CPU that the kernel could not take away after all is not told to come back. */
static __always_inline void cpu_changes(s32 cpu, bool away)
{
	struct sched_machine *m = machine_get();
	struct sched_place *there = place_at(cpu);

	if (!m || !there || there->away == away)
		return;
	there->away = away;
	__sync_fetch_and_add(&m->cpus, away ? -1 : 1);
	core_tell(true, m->cpus);
}

/* Those that are there when the scheduler begins. */
static __always_inline __u32 cpus_count(void)
{
	const struct cpumask *mask = scx_bpf_get_online_cpumask();
	__u32 cpu, count = 0;

	bpf_for (cpu, 0, cpu_count) {
		struct sched_place *there = place_at(cpu);

		if (!there)
			break;
		there->away = !bpf_cpumask_test_cpu(cpu, mask);
		count += !there->away;
	}
	scx_bpf_put_cpumask(mask);
	return count;
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
	struct sched_place *there = place_at(cpu);

	if (there)
		there->rank = ~0u;
	cpu_changes(cpu, true);
}

/* A period has passed: what was held may go on, and what waited too long is found. */
static int period_begins(void *map, int *key, struct sched_machine *m)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 cpu;

	m->must_look = m->serving != 0;
	if (scx_bpf_dsq_nr_queued(DSQ(QUEUE_KERNEL)) > 0)
		m->kernel = 1;
	if (foreign_look(m) || m->must_look || m->held || m->kernel) {
		m->held = 0;
		bpf_for (cpu, 0, cpu_count)
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
	m->beats++;
	if (m->beats % FLOOR_BEATS == 0 && floor_look(m, now)) {
		bpf_for (cpu, 0, cpu_count)
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
	bpf_timer_start(&m->timer, PERIOD_NS, 0);
	return 0;
}

SEC("struct_ops.s/init")
s32 BPF_PROG(init_begins)
{
	struct sched_machine *m = machine_get();
	__u32 number, at;
	s32 err;

	if (!m)
		return -ENOENT;
	err = scx_bpf_create_dsq(DSQ(QUEUE_LATE), -1);
	if (!err)
		err = scx_bpf_create_dsq(DSQ(QUEUE_KERNEL), -1);
	if (err)
		return err;
	bpf_for (number, 0, QUEUES) {
		err = scx_bpf_create_dsq(DSQ(number), -1);
		if (err)
			return err;
		/* low numbers are taken first, so that few have to be looked at */
		at = number;
		if (number != QUEUE_ROOT) {
			__u32 value = QUEUES - number;

			at = number - 1;
			bpf_map_update_elem(&sched_free, &at, &value, BPF_ANY);
		}
	}
	m->free = QUEUES - 1;
	m->top = 1;
	m->cpus = cpus_count();
	core_tell(true, m->cpus);
	err = bpf_timer_init(&m->timer, &sched_machines, CLOCK_MONOTONIC);
	if (err)
		return err;
	bpf_timer_set_callback(&m->timer, period_begins);
	return bpf_timer_start(&m->timer, PERIOD_NS, 0);
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
    .quiescent = (void *)quiescent_ends,
    .cpu_online = (void *)cpu_comes,
    .cpu_offline = (void *)cpu_goes,
    .init_task = (void *)task_begins,
    .init = (void *)init_begins,
    .exit = (void *)exit_tells,
    .timeout_ms = 30000, /* the most that the kernel takes; floor.bpf.h */
    .flags = SCX_OPS_ENQ_LAST,
    .name = "fief",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
