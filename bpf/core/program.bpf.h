/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Program: what a server starts for a client (CGI) has a container of its own.
 *
 * Problem: a CGI program computes for seconds, and as a child of the server it takes the CPU from the requests beside it.
 * How: a thread that has received from a client's connection serves. If a process that such a thread forked, itself or through
 * others, runs a program (exec), it gets a new container below the one that the policy names for the client's class
 * (`programs`). That becomes the process's home, so what it forks is born there, whatever becomes of the server and the
 * request; the container ends with the last of them. Where cgroups divide the CPU a process of user space moves programs, which
 * no BPF program can: it is told at each exec and fork of a program that is not in its group yet.
 * It counts against the quota of the user that the program runs as, which may have it for longer than the program lasts: by a descriptor, a
 * child or a process. One that executes another program as another user (suexec) is counted anew.
 * Limits: a thread that bound itself by a call keeps what it said. A server that executes itself in place is no program; a copy that it forks and
 * executes after it has served is one. A child that runs no program stays in its class. Without room in the table, for its user, or among the
 * programs of the policy's container a program is charged to that one itself, and makes no containers there. CPUs that begin a program each at
 * the same moment may go beyond that room by one each. Where the policy has a number for the container, the programs of one user can
 * have all of it.
 */
#pragma once

#include "create.bpf.h"
#include "record.bpf.h"
#include "maps/program_groups.bpf.h"
#include "maps/programs.bpf.h"

#define PID_LEVELS 8 /* nested PID namespaces that are looked at */

/* The number of a process in a PID namespace; 0: it has none there. */
static __noinline __s32 number_in(struct task_struct *p, __u32 namespace)
{
	const void *pid = BPF_CORE_READ(p, thread_pid);
	__u32 level;

	bpf_for (level, 0, PID_LEVELS) {
		struct upid number;
		const void *at = pid + bpf_core_field_offset(struct pid, numbers) + level * sizeof(number);

		if (level > BPF_CORE_READ((const struct pid *)pid, level) ||
		    bpf_probe_read_kernel(&number, sizeof(number), at))
			break;
		if (BPF_CORE_READ(number.ns, ns.inum) == namespace)
			return number.nr;
	}
	return 0;
}

/* The cgroup that divides the CPU for a process. */
static __always_inline __u64 group_of(struct task_struct *p, bool unified)
{
	const void *set = BPF_CORE_READ(p, cgroups);
	struct cgroup_subsys_state *state = NULL;
	__u32 controller;

	if (unified)
		return BPF_CORE_READ(p, cgroups, dfl_cgrp, kn, id);
	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, cpu_cgrp_id))
		return 0;
	controller = bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);
	bpf_probe_read_kernel(&state, sizeof(state),
			      set + bpf_core_field_offset(struct css_set, subsys) + controller * sizeof(state));
	return BPF_CORE_READ(state, cgroup, kn, id);
}

/* Tells the process that moves those of a program, unless it is where it belongs. */
static __noinline int program_tell(struct task_struct *p, struct fief_ref at)
{
	struct fief_program_group *group = NULL;
	struct fief_program told = {};
	int i;

	if (!p)
		return 0;
	bpf_for (i, 0, FIEF_MAX_DEPTH) {
		struct fief_container *c;

		told.container = at.id;
		group = bpf_map_lookup_elem(&program_groups, &told.container);
		if (group || at.id < FIEF_FIRST_ID)
			break;
		c = container_get(at);
		if (!c)
			break;
		at = c->parent;
	}
	if (!group || group_of(p, group->unified) == group->cgroup)
		return 0;
	told.pid = number_in(p, group->pid_namespace);
	if (told.pid)
		bpf_ringbuf_output(&programs, &told, sizeof(told), 0);
	return 0;
}

/* Where programs go that are started for this container: what the nearest one says that says anything; 0: nowhere. */
static __noinline __u32 programs_of(struct fief_ref ref)
{
	__u32 id = 0;
	int i;

	bpf_for (i, 0, FIEF_MAX_DEPTH + 1) {
		struct fief_container *c = container_get(ref);

		if (!c)
			break;
		id = attributes_of(c)->programs;
		if (id || ref.id < FIEF_FIRST_ID)
			break;
		ref = c->parent;
	}
	return id;
}

/*
 * Whether there is no room for one more program of the user. Clients say how many there are: they have half of what the user may have, whose server
 * may make containers too; and those of one of the policy's containers half of what users have together, unless the policy has a number for it.
 */
static __always_inline bool programs_are_full(struct fief_container *into, __u32 uid)
{
	struct fief_control *control = control_get();
	struct fief_user *u = user_get(uid);
	__u32 most, own;

	if (!control)
		return false;
	most = users_part(control) / 2;
	own = control->user_quota;
	if (!own || own > most)
		own = most;
	if (u && u->containers >= (own + 1) / 2)
		return true;
	return !attributes_of(into)->descendants_max && into->refs / FIEF_CHILD >= most;
}

/* Shares the policy's container, which is held then, with all others for which there is no room. */
static __always_inline bool program_share(struct fief_ref into)
{
	struct fief_container *c = container_get(into);

	return c && live_hold(c, into, FIEF_HANDLE);
}

/* A new container for the program that `p` runs now. One that cannot be made is the policy's own. */
static __always_inline bool program_make(struct task_struct *p, struct fief_ref into, struct fief_ref *made)
{
	struct fief_container *c = container_get(into);
	__u32 uid = p->cred->uid.val;
	char program[TASK_COMM_LEN];

	if (c && !programs_are_full(c, uid) && !container_create(&into, uid, FIEF_CONTAINER_PROGRAM, made)) {
		c = container_at(made->id);
		if (!c)
			return false;
		c->attributes[0].pass_up = 1;
		BPF_CORE_READ_STR_INTO(&program, p, comm);
		/* who names the file may not write to the terminal of whoever reads about it */
#pragma unroll
		for (int i = 0; i < TASK_COMM_LEN; i++)
			if (program[i] && !name_may_have(program[i]))
				program[i] = '?';
		BPF_SNPRINTF(c->name, sizeof(c->name), "%s-%d", program, p->tgid);
		return true;
	}
	*made = into;
	return program_share(into);
}

/* The running thread's home is `to` now, which the caller holds. */
static __always_inline void program_enter(struct task_struct *p, struct fief_ref to)
{
	struct fief_ref was = {FIEF_NO_ID, 0}, home = was;
	__u64 now = bpf_ktime_get_ns();
	struct fief_cpu *cs;
	unsigned long flags;

	cs = record_hold(&flags);
	if (cs && cs->has_task && cs->running == p->pid) {
		home = cs->task.home;
		was = task_rebind(cs, p, to, FIEF_RIGHT_USE | FIEF_RIGHT_READ, false, cs->task.client, now);
		home_move(cs, to);
		cs->task.flags &= ~(FIEF_TASK_FOLLOW | FIEF_TASK_SERVES | FIEF_TASK_FORKED | FIEF_TASK_EXPLICIT);
		cs->task.flags |= FIEF_TASK_PROGRAM;
		cs->task.rights = home_rights(&cs->task);
	}
	record_let_go(cs, &flags);
	if (was.id != FIEF_NO_ID)
		binding_put(was, home);
}

/*
 * A program has executed another one: its container counts for the user that it runs as by now, or, where this one has no room, is let go of. Else
 * all programs of a server would count for the user that starts them.
 */
static __always_inline void program_count(struct task_struct *p, struct fief_ref at)
{
	struct fief_container *c = container_get(at), *into;
	__u32 uid = p->cred->uid.val, was;
	struct fief_ref up;

	if (!c || !(c->flags & FIEF_CONTAINER_PROGRAM) || c->owner_uid == uid)
		return;
	was = c->owner_uid;
	up = c->parent;
	into = container_get(up);
	if (!into)
		return;
	if (!programs_are_full(into, uid) && !owner_enter(uid)) {
		owner_count(__sync_val_compare_and_swap(&c->owner_uid, was, uid) == was ? was : uid, -1);
	} else if (program_share(up)) {
		program_enter(p, up);
		container_put(up.id, FIEF_HANDLE);
	}
}

/* A thread has executed a program. */
static __always_inline int program_begin(struct task_struct *p)
{
	struct fief_cpu *cs = this_thread();
	struct fief_ref into, made;
	struct fief_container *c;

	if (!cs || !cs->has_task || cs->softirq_vector)
		return 0;
	served_forget(cs);
	if (cs->task.flags & FIEF_TASK_PROGRAM) {
		program_count(p, cs->task.home);
		return program_tell(p, cs->task.home);
	}
	if ((cs->task.flags & (FIEF_TASK_FORKED | FIEF_TASK_EXPLICIT)) != FIEF_TASK_FORKED)
		return 0;
	into.id = programs_of(cs->task.binding);
	c = into.id < FIEF_FIRST_ID ? NULL : container_at(into.id);
	if (!c)
		return 0;
	into.generation = c->generation;
	if (container_below(cs->task.home, into))
		return 0; /* its server is held there already */
	if (!program_make(p, into, &made))
		return 0;
	program_enter(p, made);
	container_put(made.id, FIEF_HANDLE);
	return program_tell(p, into);
}

/* What a new thread has of its creator, to know later whether it is a program's. */
static __always_inline __u32 program_flags(const struct fief_task *creator, struct task_struct *child)
{
	__u32 flags = creator->flags & (FIEF_TASK_FORKED | FIEF_TASK_PROGRAM);

	if (creator->flags & FIEF_TASK_SERVES && child->pid == child->tgid)
		flags |= FIEF_TASK_FORKED;
	return flags;
}

/* A thread receives from a client's connection. */
static __noinline int serves_note(void)
{
	struct fief_cpu *cs;
	unsigned long flags;

	cs = record_hold(&flags);
	if (cs && cs->has_task && !cs->softirq_vector)
		cs->task.flags |= FIEF_TASK_SERVES;
	record_let_go(cs, &flags);
	return 0;
}
