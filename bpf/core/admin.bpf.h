/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Admin: the privileged operations of the control plane, run by BPF_PROG_RUN, so that the container table has one
 * implementation.
 */
#pragma once

#include "costly.bpf.h"
#include "descriptors.bpf.h"

static __always_inline void known_init(__u32 id, const char *name)
{
	struct fief_container *c = container_at(id);

	if (!c)
		return;
	c->refs = FIEF_HANDLE;
	c->state = FIEF_ALIVE;
	c->flags = id == FIEF_ROOT ? FIEF_CONTAINER_ROOT : 0;
	for (int slot = 0; slot < 2; slot++) {
		c->attributes[slot].weight = 100;
		c->attributes[slot].priority = 100;
	}
	bpf_probe_read_kernel_str(c->name, sizeof(c->name), name);
}

/*
 * Once, before the first hook is attached: the known containers, and every other slot free. Their generations begin where the loader
 * says (a->container), so that hardly one is that of a container of an installation before (first_generation in bpf/src/admin.rs has the
 * limits).
 */
static __always_inline int table_init(struct fief_admin *a)
{
	__u32 id, last = a->value, generation = a->container.generation;
	struct fief_container *c;

	known_init(FIEF_ROOT, "root");
	known_init(FIEF_SYSTEM, "system");
	known_init(FIEF_IDLE, "idle");
	known_init(FIEF_STEAL, "steal");
	known_init(FIEF_UNATTRIBUTED, "unattributed");
	known_init(FIEF_RETIRED, "retired");
	known_init(FIEF_USERS, "user");
	bpf_for (id, FIEF_FIRST_ID, last) {
		c = container_at(id);
		if (!c || bpf_map_push_elem(&free_slots, &id, 0))
			return -ENFILE;
		c->generation = generation;
	}
	return 0;
}

/* A child of `parent` with the name that the call says; its maker (FIEF_CONTAINER_*) holds it. */
static __always_inline int named_make(struct fief_admin *a, struct fief_ref parent, __u32 owner, __u32 maker)
{
	struct fief_container *c;
	struct fief_ref made;
	int err = container_create(&parent, owner, maker, &made);

	if (err)
		return err;
	c = container_at(made.id);
	if (!c)
		return -ENFILE;
	__builtin_memcpy(c->name, a->name, sizeof(c->name));
	c->name[FIEF_NAME_LEN - 1] = 0;
	a->container = made;
	return 0;
}

static __always_inline int admin_create_named(struct fief_admin *a)
{
	return named_make(a, a->container, FIEF_OWNER_OPERATOR, a->flags);
}

/* Attributes of a policy's container in the slot that is being built. */
static __always_inline int admin_stage(struct fief_admin *a)
{
	struct fief_container *c = container_get(a->container);

	if (!c || !(c->flags & FIEF_CONTAINER_SLOTS))
		return -ESTALE;
	c->attributes[a->slot & 1] = a->attributes;
	return 0;
}

/* One attribute (a->slot, a->value) of a container that no policy names, as its descriptors set it. */
static __always_inline int admin_set_one(struct fief_admin *a)
{
	struct fief_set_attribute set = {.attribute = a->slot, .value = a->value};
	struct fief_container *c = container_get(a->container);

	if (!c || c->state != FIEF_ALIVE)
		return -ESTALE;
	return attribute_set(a->container, &set);
}

/* A policy's container gets another name, and another parent if that is not its own; the threads in it stay. */
static __always_inline int admin_rename_named(struct fief_admin *a)
{
	struct fief_container *c = container_get(a->container);
	int err;

	if (!c || !(c->flags & FIEF_CONTAINER_POLICY))
		return -ESTALE;
	err = container_move(a->container, a->parent, true);
	if (err)
		return err;
	__builtin_memcpy(c->name, a->name, sizeof(c->name));
	c->name[FIEF_NAME_LEN - 1] = 0;
	return 0;
}

/*
 * A policy's container keeps what it is in force with, without what only a policy gives. The lock of the state keeps the flag, and with
 * it the choice of the slot, until this is done.
 */
static __always_inline void policy_leave(struct fief_container *c)
{
	c->attributes[0] = *attributes_of(c);
	c->attributes[0].share_ppm = 0;
	c->attributes[0].reserved_ppm = 0;
	c->attributes[0].named = 0;
	c->attributes[0].programs = 0;
	if (c->attributes[0].policy >= FIEF_POLICY_OBJECT) /* the number is another object's with the next policy */
		c->attributes[0].policy = FIEF_POLICY_FAIR;
}

/*
 * Its maker lets go (a->flags: FIEF_CONTAINER_POLICY, _UNIT or _FOLDER). A container that applications hold stays, without what the
 * policy gave it, below a->parent; if it does not fit there (its room is taken) it stays where it is. A share that no policy gave is
 * counted in the parent's until the container's end. With a->value only if its parent has ended, else -EBUSY.
 */
static __always_inline int admin_let_go(struct fief_admin *a)
{
	struct fief_ref ref = a->container, parent = a->parent;
	struct fief_container *c = container_at(ref.id);
	__u32 maker = a->flags;
	int err = 0;

	if (!c || ref.id < FIEF_FIRST_ID || !child_hold(ref))
		return -ESTALE;
	if (maker & c->flags & FIEF_CONTAINER_POLICY)
		policy_leave(c);
	if (a->value && container_alive(c->parent)) {
		err = -EBUSY;
	} else if (!(__sync_fetch_and_and(&c->flags, ~maker) & maker)) {
		err = -ESTALE; /* its user was faster */
	} else {
		if (parent.id != FIEF_NO_ID)
			container_adopt(ref, parent);
		container_put(ref.id, FIEF_HANDLE);
	}
	child_put(ref);
	return err;
}

/*
 * Removes the entry of a user (a->value) without containers, and lets go of user/<uid>. An entry that is marked is counted
 * in by nobody any more; a container that is made at this moment is refused, and made by the next try.
 */
static __always_inline int admin_user_forget(struct fief_admin *a)
{
	__u32 uid = a->value;
	struct fief_user *u = bpf_map_lookup_elem(&users, &uid);
	struct fief_ref parent;

	if (!u)
		return -ENOENT;
	if (!user_goes(u))
		return -EBUSY;
	parent = u->parent;
	bpf_map_delete_elem(&users, &uid);
	if (parent.id >= FIEF_FIRST_ID)
		container_put(parent.id, FIEF_HANDLE);
	return 0;
}

/* The policy built in the other slot comes into force; other programs may have come before it (a->value). */
static __always_inline int admin_slot(struct fief_admin *a)
{
	struct fief_control *control = control_get();

	if (!control)
		return -ESTALE;
	control->slot = a->slot & 1;
	if (a->value)
		control->build = a->value;
	/* last: who reads it first and this slot then has what is of one policy (front/known.bpf.h) */
	barrier();
	control->epoch++;
	return 0;
}

/* A managed cgroup (a->value) holds the home of its threads, so that later ones find it alive. */
static __always_inline int admin_unit_place(struct fief_admin *a)
{
	struct fief_unit unit = {.home = a->container, .task_flags = a->flags}, *was;
	struct fief_container *c = container_get(a->container);
	__u64 cgroup = a->value;
	__u32 before = FIEF_ROOT;
	int err;

	if (!c || (a->container.id >= FIEF_FIRST_ID && !live_hold(c, a->container, FIEF_HANDLE)))
		return -ESTALE;
	was = bpf_map_lookup_elem(&units, &cgroup);
	if (was)
		before = was->home.id;
	err = bpf_map_update_elem(&units, &cgroup, &unit, BPF_ANY);
	container_put(err ? a->container.id : before, FIEF_HANDLE);
	return err;
}

/* A thread that has a record takes the container at its next boundary: a managed one as its home, with what that allows. */
static __always_inline int task_request(struct fief_task *v, const struct fief_admin *a)
{
	__u32 rights = FIEF_RIGHT_USE | FIEF_RIGHT_READ, flags = 0;

	if (a->flags & FIEF_TASK_MANAGED) {
		rights |= FIEF_RIGHT_CHILDREN;
		flags = a->flags & FIEF_TASK_FOLLOW ? REQUEST_MANAGED | REQUEST_FOLLOW : REQUEST_MANAGED;
	}
	return request_leave(v, a->container, rights, flags);
}

/*
 * Numbers of threads are used again, so the thread found can be another one than was meant: who is to get the home of a cgroup
 * has to be there, and who is to be bound has to be of the process whose descriptor's inode is a->value.
 */
static __always_inline bool is_meant(struct task_struct *target, const struct fief_admin *a)
{
	struct fief_unit *unit;

	if (a->flags & FIEF_TASK_MANAGED) {
		unit = unit_of(cgroup_of(target));
		return unit && same_ref(unit->home, a->container);
	}
	if (!a->flags || !bpf_core_field_exists(struct pid, ino))
		return true;
	return BPF_CORE_READ(target, signal, pids[PIDTYPE_TGID], ino) == a->value;
}

/* While a thread is placed in it, its last holder may let go. */
static __always_inline bool placed_hold(struct fief_container *c, struct fief_ref ref)
{
	if (ref.id >= FIEF_FIRST_ID)
		return live_hold(c, ref, FIEF_THREAD);
	container_hold(c, FIEF_THREAD);
	return true;
}

/*
 * Gives a running thread its home (fief manage), or binds it (fief bind; a->flags FIEF_TASK_EXPLICIT). Kernel threads work for
 * many: of them only those of lanes are placed, with no flags.
 */
static __always_inline int admin_task_place(struct fief_admin *a)
{
	struct fief_container *c = container_get(a->container);
	struct task_struct *target;
	struct fief_task *v;
	struct fief_cpu *its;
	bool handed = false;
	int err = 0;

	if (!c || !placed_hold(c, a->container))
		return -ESTALE;
	target = thread_of(a->pid);
	if (!target) {
		container_put(a->container.id, FIEF_THREAD);
		return -ESRCH;
	}
	v = bpf_task_storage_get(&tasks, target, 0, 0);
	if (target->flags & PF_KTHREAD && a->flags) {
		err = -EPERM;
	} else if (!is_meant(target, a)) {
		err = -ESRCH;
	} else if (v && a->flags & FIEF_TASK_MANAGED && v->flags & FIEF_TASK_PROGRAM) {
		err = 0; /* started for a client: that is its home, whatever its cgroup's is */
	} else if (!v) {
		err = task_adopt(target, a->container, a->flags & ~FIEF_TASK_EXPLICIT, false);
	} else {
		handed = true;
		err = task_request(v, a);
		its = cpu_at(target->thread_info.cpu);
		if (its)
			its->refresh = 1;
	}
	bpf_task_release(target);
	if (!handed)
		container_put(a->container.id, FIEF_THREAD);
	return err;
}

/* The operator asks (a->value: until when; 0: no more) about a container, and whether about what is below it (a->flags). */
static __always_inline int admin_watch_place(struct fief_admin *a)
{
	struct fief_watch *w = watch_get();
	__u32 cpu;

	if (!w || (a->value && !container_alive(a->container)))
		return -ESTALE;
	w->container = a->container;
	w->below = a->flags;
	w->turn = a->slot;
	w->until_ns = a->value;
	bpf_for (cpu, 0, cpu_count) {
		struct fief_cpu *cs = cpu_at(cpu);

		if (!cs)
			break;
		cs->watched = a->value != 0;
	}
	return 0;
}

/* Somebody asks what clients cost, until a->value at least; with a->flags from now on, where nobody did before. */
static __always_inline int admin_cost_place(struct fief_admin *a)
{
	struct fief_cost_control *control = cost_control();
	__u32 cpu, at;

	if (!control)
		return -ENOENT;
	if (a->flags) {
		bpf_for (at, 0, 2 * FIEF_COST_SETS)
			cost_empty(at);
		control->since_ns = bpf_ktime_get_ns();
	}
	if (a->flags || control->until_ns < a->value)
		control->until_ns = a->value;
	bpf_for (cpu, 0, cpu_count) {
		struct fief_cpu *cs = cpu_at(cpu);

		if (!cs)
			break;
		if (a->flags)
			cost_placed_anew(cpu);
		cs->by_client = 1;
	}
	return 0;
}
