/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Watched: whether a charge is one that somebody watches, and what its source is (core/watch.bpf.h). */
#pragma once

#include "maps/containers.bpf.h"
#include "maps/cpus.bpf.h"
#include "maps/watches.bpf.h"

static __always_inline bool watch_covers(const struct fief_watch *w, struct fief_ref to)
{
	bool covers = same_ref(to, w->container);
	int i;

	bpf_for (i, 0, FIEF_MAX_DEPTH) {
		struct fief_container *c;

		if (covers || !w->below || to.id < FIEF_FIRST_ID)
			break;
		c = container_get(to);
		if (!c)
			break;
		to = c->parent;
		covers = same_ref(to, w->container);
	}
	return covers;
}

static __always_inline bool why_has_thread(__u32 why)
{
	return why != FIEF_WHY_PACKET && why != FIEF_WHY_LANE && why != FIEF_WHY_KERNEL;
}

/* What is received belongs to a packet, or was received for nobody known. */
static __always_inline __u32 why_received(const struct fief_cpu *cs, struct fief_ref to)
{
	if (to.id == FIEF_SYSTEM)
		return FIEF_WHY_KERNEL;
	return cs->has_task && !cs->softirq_vector ? FIEF_WHY_LANE : FIEF_WHY_PACKET;
}

static __always_inline __u32 why_ran(const struct fief_cpu *cs, struct fief_ref to)
{
	if (to.id == FIEF_SYSTEM)
		return cs->kind > FIEF_SYSTEM_HARDIRQ ? FIEF_WHY_KTHREAD : FIEF_WHY_KERNEL;
	if (!cs->has_task)
		return FIEF_WHY_UNMANAGED;
	if (cs->task.flags & FIEF_TASK_WRITES)
		return FIEF_WHY_WRITEBACK;
	if (cs->task.flags & FIEF_TASK_EXPLICIT)
		return FIEF_WHY_CALL;
	if (!same_ref(to, cs->task.home))
		return FIEF_WHY_FOLLOW;
	return cs->task.flags & FIEF_TASK_PROGRAM ? FIEF_WHY_PROGRAM : FIEF_WHY_HOME;
}

static __always_inline void charge_source(struct fief_charge_source *source, const struct fief_cpu *cs,
					  struct fief_ref to, const struct fief_watch_room *room)
{
	source->why = cs->receive ? why_received(cs, to) : why_ran(cs, to);
	if (why_has_thread(source->why))
		source->number = cs->running;
	else if (source->why == FIEF_WHY_KERNEL)
		source->number = cs->receive ? FIEF_SYSTEM_NET_RX : cs->kind;
	else
		source->number = room->port;
}

/* A source is new: its thread may have ended before anybody reads its name. */
static __always_inline void sum_begin(const struct fief_charge_source *source, const struct fief_cpu *cs,
				      struct fief_charge_sum *fresh)
{
	struct task_struct *p = (struct task_struct *)cs->thread;

	fresh->process = 0;
	fresh->name[0] = 0;
	/* one that left unseen may be gone, and another one be in its place */
	if (why_has_thread(source->why) && BPF_CORE_READ(p, pid) == (__s32)source->number) {
		fresh->process = BPF_CORE_READ(p, tgid);
		bpf_core_read_str(fresh->name, sizeof(fresh->name), &p->comm);
	}
	bpf_map_update_elem(&watch_sums, source, fresh, BPF_NOEXIST);
}
