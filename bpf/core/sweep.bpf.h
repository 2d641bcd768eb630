/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Sweep: the references that sockets and threads really hold, to find those that no hook saw end.
 *
 * Problem: a hook on the creator's cgroup reports a descriptor's last close. If that cgroup or its hooks are removed, nothing
 * reports it, and the container would stay for ever.
 * How: iterators walk the storage of all sockets and all threads and record each holder's container. User space compares
 * (sweep.rs) and releases one reference after the other, as long as the container's word is the compared one.
 * Limits: a reference moved from one holder to another during the walk can be missed: two walks have to agree. Thread
 * references are checked once the last handle has gone, since until then they move without a change of the word (kept).
 */
#pragma once

#include "record.bpf.h"
#include "labels.bpf.h"

static __always_inline void mark_write(struct seq_file *to, struct fief_ref container, __u32 handles, __u32 threads)
{
	struct fief_mark mark = {.container = container, .handles = handles, .threads = threads};

	if (container.id >= FIEF_FIRST_ID && container.id != FIEF_NO_ID)
		bpf_seq_write(to, &mark, sizeof(mark));
}

static __always_inline int descriptor_mark(struct seq_file *to, struct fief_descriptor *d)
{
	if (d)
		mark_write(to, d->container, 1, 0);
	return 0;
}

/* A clone's label names the listener as its owner and holds nothing. */
static __always_inline int label_mark(struct seq_file *to, struct fief_label *label, struct sock *sk)
{
	if (label && sk && label->flags & FIEF_LABEL_HOLDS && label->owner == (__u64)(unsigned long)sk)
		mark_write(to, label->container, 1, 0);
	return 0;
}

static __always_inline void binding_mark(struct seq_file *to, struct fief_ref binding, struct fief_ref home)
{
	if (!same_ref(binding, home))
		mark_write(to, binding, 0, 1);
}

static __always_inline void ring_mark(struct seq_file *to, const struct fief_task *v)
{
	struct fief_ring *ring = v->ring ? ring_at(v->ring, v->ring_generation) : NULL;
	int i;

	bpf_for (i, 1, FIEF_RING_PLACES) {
		if (!ring)
			break;
		if (ring->filled >> i & 1)
			mark_write(to, ring->places[place_bounded(i)].container, 0, 1);
	}
}

/* While a thread runs, its CPU has the record that holds. */
static __always_inline int task_mark(struct seq_file *to, struct task_struct *p)
{
	struct fief_task *v, *stored;
	struct fief_cpu *cs;
	__u32 cpu;

	if (!p)
		return 0;
	stored = bpf_task_storage_get(&tasks, p, 0, 0);
	if (!stored || stored->made != RECORD_MADE)
		return 0;
	v = stored;
	cpu = p->thread_info.cpu;
	cs = cpu_at(cpu);
	if (cs && cs->has_task && cs->running == p->pid)
		v = &cs->task;
	binding_mark(to, v->binding, v->home);
	mark_write(to, v->home, 1, 0);
	for (int i = 0; i < FIEF_NEST; i++) {
		if (i < v->nested)
			binding_mark(to, v->nest[i].container, v->home);
	}
	ring_mark(to, v);
	__u64 request = stored->request;
	if (request && request != REQUEST_CLOSED)
		mark_write(to, (struct fief_ref){REQUEST_ID(request), request >> 32}, 0, 1);
	return 0;
}

/* Lets go of one lost reference (a->flags: FIEF_HANDLE or FIEF_THREAD) if the word is still the one compared. */
static __always_inline int admin_let_lost_go(struct fief_admin *a)
{
	struct fief_container *c = container_get(a->container);

	if (!c || c->refs != a->value)
		return -ESTALE;
	container_put(a->container.id, a->flags == FIEF_THREAD ? FIEF_THREAD : FIEF_HANDLE);
	return 0;
}

/* A managed cgroup that is gone lets go of its home. */
static __always_inline int admin_unit_forget(struct fief_admin *a)
{
	__u64 cgroup = a->value;
	struct fief_unit *unit = bpf_map_lookup_elem(&units, &cgroup);
	__u32 home;

	if (!unit)
		return -ENOENT;
	home = unit->home.id;
	if (bpf_map_delete_elem(&units, &cgroup))
		return -ENOENT;
	return container_put(home, FIEF_HANDLE);
}
