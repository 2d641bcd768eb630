/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Descriptors: a container is an unbound AF_INET datagram socket whose storage names it.
 *
 * Problem: applications need containers without privilege and without a daemon, with the life of a file descriptor.
 * How: socket options at level FIEF_SOL, served here; the last close is told by cgroup/sock_release. The caller's
 * current container is the implicit second operand, so that no option takes an id that could be forged.
 * Limits: hooks run for sockets made inside managed cgroups; a descriptor keeps its hooks wherever it is passed.
 * Errors: -EINVAL wrong socket, value or option; -EBADF not a container descriptor; -ESTALE the container has ended;
 * -EPERM a right is missing; -EDQUOT a quota is full; -ENFILE the table is full; -EOPNOTSUPP too deep; -ESRCH no such
 * thread, or one that is not managed; -EBUSY shares that do not fit, a loop of parents, or too many entered at once;
 * -EAGAIN the tree is being changed, try again; -EEXIST the socket is a descriptor already; -EMFILE too many
 * descriptors of one container; -ENOMEM no storage.
 */
#pragma once

#include "attributes.bpf.h"
#include "labels.bpf.h"
#include "switch.bpf.h"
#include "usage.bpf.h"
#include "maps/descriptors.bpf.h"

#define SOCK_DGRAM 2
#define CAP_KILL   5

static __always_inline struct fief_descriptor *descriptor_of(struct bpf_sock *sk)
{
	return bpf_sk_storage_get(&descriptors, sk, 0, 0);
}

/* The caller's record as its CPU holds it; made for a stranger who was passed a descriptor. */
static __always_inline struct fief_cpu *caller(void)
{
	struct fief_cpu *cs = task_storage_in_cgroup ? this_thread() : this_cpu();

	if (!cs)
		return NULL;
	if (!cs->has_task) {
		struct task_struct *p = bpf_get_current_task_btf();
		unsigned long flags;

		if (!task_storage_in_cgroup)
			return NULL;
		struct fief_unit *unit = unit_of(p->cgroups->dfl_cgrp);
		if (task_adopt(p, unit ? unit->home : ref_of(FIEF_ROOT), unit ? unit->task_flags : 0, false))
			return NULL;
		struct fief_task *v = bpf_task_storage_get(&tasks, p, 0, 0);
		if (!v)
			return NULL;
		irq_save(&flags);
		cs = this_cpu();
		if (cs) {
			charge_until(cs, bpf_ktime_get_ns());
			task_copy(&cs->task, v);
			cs->has_task = 1;
			cs->refresh = 0;
			cs->current_ = v->binding;
		}
		irq_restore(&flags);
	}
	return cs;
}

/* A descriptor can be made of a socket that is nothing yet. */
static __always_inline int fresh_check(struct bpf_sock *sk)
{
	if (sk->family != AF_INET || sk->type != SOCK_DGRAM || sk->src_port || sk->state == BPF_TCP_ESTABLISHED)
		return -EINVAL;
	if (descriptor_of(sk))
		return -EEXIST;
	return 0;
}

/* Stores `ref`, for which the caller has taken a handle, in a fresh socket. */
static __always_inline int descriptor_make(struct bpf_sock *sk, struct fief_ref ref, __u32 rights)
{
	struct fief_descriptor made = {ref, rights, 0};

	if (bpf_sk_storage_get(&descriptors, sk, &made, BPF_SK_STORAGE_GET_F_CREATE))
		return 0;
	container_put(ref.id, FIEF_HANDLE);
	return -ENOMEM;
}

static __always_inline __u64 ref_word(struct fief_ref ref)
{
	return (__u64)ref.generation << 32 | ref.id;
}

/* The parent of what an unprivileged user makes outside of every unit: user/<uid>. */
static __noinline int user_parent(__u32 uid, struct fief_ref *parent)
{
	struct fief_container *c;
	struct fief_ref made, was;
	struct fief_user *u;
	int err;

	err = user_room(uid, 0);
	if (err)
		return err;
	u = bpf_map_lookup_elem(&users, &uid);
	if (!u)
		return -ENFILE;
	was = u->parent;
	if (was.id >= FIEF_FIRST_ID && container_alive(was)) {
		*parent = was;
		return 0;
	}
	err = container_create(ref_of(FIEF_USERS), 0, &made);
	if (err)
		return err;
	c = container_at(made.id);
	if (c) {
		c->flags |= FIEF_CONTAINER_USER;
		BPF_SNPRINTF(c->name, sizeof(c->name), "%u", uid);
	}
	__u64 old = ref_word(was), new = ref_word(made), seen;
	seen = __sync_val_compare_and_swap((__u64 *)&u->parent, old, new);
	if (seen != old) {
		container_put(made.id, FIEF_HANDLE); /* another of the user's threads was faster */
		made = (struct fief_ref){(__u32)seen, seen >> 32};
	}
	*parent = made;
	return 0;
}

/* The root is the machine's: what an unprivileged user puts there comes below user/<uid>. */
static __always_inline int parent_for(__u32 uid, struct fief_ref *parent)
{
	return parent->id == FIEF_ROOT && uid ? user_parent(uid, parent) : 0;
}

static __always_inline int create(struct bpf_sock *sk, struct fief_create *args)
{
	__u32 uid = bpf_get_current_uid_gid();
	struct fief_cpu *cs = caller();
	struct fief_ref parent, made;
	int err;

	if (!cs)
		return -ESRCH;
	err = fresh_check(sk);
	if (err)
		return err;
	if (!(cs->task.rights & FIEF_RIGHT_CHILDREN))
		return -EPERM;
	parent = cs->task.binding;
	err = parent_for(uid, &parent);
	if (err)
		return err;
	err = container_create(parent, uid, &made);
	if (err)
		return err;
	struct fief_container *c = container_at(made.id);
	if (c && args) {
		c->attributes[0].pass_up = !!(args->flags & FIEF_CREATE_PASS_UP);
		if (args->weight && args->weight <= 10000)
			c->attributes[0].weight = args->weight;
	}
	return descriptor_make(sk, made, FIEF_RIGHTS_ALL);
}

static __always_inline int bind_self(struct fief_descriptor *d)
{
	struct fief_container *c = container_get(d->container);
	struct fief_cpu *cs = caller();
	struct fief_ref was;
	unsigned long flags;

	if (!cs)
		return -ESRCH;
	if (!c)
		return -ESTALE;
	if (!(d->rights & FIEF_RIGHT_USE))
		return -EPERM;
	container_hold(c, FIEF_THREAD);
	irq_save(&flags);
	cs = this_cpu();
	if (!cs || !cs->has_task) {
		irq_restore(&flags);
		container_put(d->container.id, FIEF_THREAD);
		return -ESRCH;
	}
	was = task_rebind(cs, bpf_get_current_task_btf(), d->container, d->rights, bpf_ktime_get_ns());
	cs->task.flags |= FIEF_TASK_EXPLICIT;
	irq_restore(&flags);
	container_put(was.id, FIEF_THREAD);
	return 0;
}

static __always_inline int unbind_self(void)
{
	struct fief_cpu *cs = caller();
	struct fief_container *c;
	struct fief_ref was, home;
	__u32 left[FIEF_NEST];
	unsigned long flags;

	if (!cs)
		return -ESRCH;
	home = cs->task.home; /* held by the thread as long as it lives */
	c = container_at(home.id);
	if (!c)
		return -ESTALE;
	container_hold(c, FIEF_THREAD);
	irq_save(&flags);
	cs = this_cpu();
	if (!cs || !cs->has_task) {
		irq_restore(&flags);
		container_put(home.id, FIEF_THREAD);
		return -ESRCH;
	}
	was = task_rebind(cs, bpf_get_current_task_btf(), home, FIEF_RIGHT_USE | FIEF_RIGHT_READ | FIEF_RIGHT_CHILDREN,
			  bpf_ktime_get_ns());
	cs->task.flags &= ~FIEF_TASK_EXPLICIT;
	/* what was entered is left too */
	for (int i = 0; i < FIEF_NEST; i++)
		left[i] = i < cs->task.nested ? cs->task.nest[i].container.id : FIEF_NO_ID;
	cs->task.nested = 0;
	irq_restore(&flags);
	container_put(was.id, FIEF_THREAD);
	for (int i = 0; i < FIEF_NEST; i++)
		container_put(left[i], FIEF_THREAD);
	return 0;
}

/* As bind_self; what the thread was bound to keeps its reference on the nest. */
static __always_inline int enter(struct fief_descriptor *d)
{
	struct fief_container *c = container_get(d->container);
	struct fief_cpu *cs = caller();
	struct fief_nest was;
	unsigned long flags;
	int err = -EBUSY;
	__u32 at;

	if (!cs)
		return -ESRCH;
	if (!c)
		return -ESTALE;
	if (!(d->rights & FIEF_RIGHT_USE))
		return -EPERM;
	container_hold(c, FIEF_THREAD);
	irq_save(&flags);
	cs = this_cpu();
	if (cs && cs->has_task && cs->task.nested < FIEF_NEST) {
		was.rights = cs->task.rights;
		was.flags = cs->task.flags & FIEF_TASK_EXPLICIT;
		was.container =
		    task_rebind(cs, bpf_get_current_task_btf(), d->container, d->rights, bpf_ktime_get_ns());
		cs->task.flags |= FIEF_TASK_EXPLICIT;
		at = cs->task.nested;
		if (at < FIEF_NEST) {
			cs->task.nest[at] = was;
			cs->task.nested = at + 1;
			err = 0;
		}
	}
	irq_restore(&flags);
	if (err)
		container_put(d->container.id, FIEF_THREAD);
	return err;
}

static __always_inline int leave(void)
{
	struct fief_cpu *cs = caller();
	struct fief_ref was = {FIEF_NO_ID, 0};
	unsigned long flags;
	__u32 at;

	if (!cs)
		return -ESRCH;
	irq_save(&flags);
	cs = this_cpu();
	if (cs && cs->has_task && cs->task.nested) {
		at = cs->task.nested - 1;
		if (at < FIEF_NEST) {
			struct fief_nest *to = &cs->task.nest[at];

			was =
			    task_rebind(cs, bpf_get_current_task_btf(), to->container, to->rights, bpf_ktime_get_ns());
			cs->task.flags &= ~FIEF_TASK_EXPLICIT;
			cs->task.flags |= to->flags;
			cs->task.nested = at;
		}
	}
	irq_restore(&flags);
	if (was.id == FIEF_NO_ID)
		return -EINVAL;
	container_put(was.id, FIEF_THREAD);
	return 0;
}

/* kernel/signal.c kill_ok_by_cred, and CAP_KILL of the caller */
static __always_inline bool may_signal(struct task_struct *p, struct task_struct *target)
{
	const struct cred *mine = p->cred, *its = target->real_cred;

	if (mine->euid.val == its->suid.val || mine->euid.val == its->uid.val || mine->uid.val == its->suid.val ||
	    mine->uid.val == its->uid.val)
		return true;
	return mine->user_ns->level == 0 && (mine->cap_effective.val & (1ull << CAP_KILL));
}

/* Leaves a request with another thread, taken at its next boundary (L2). */
static __always_inline int bind_other(struct fief_descriptor *d, __s32 number)
{
	struct fief_container *c = container_get(d->container);
	struct task_struct *target = NULL, *p = bpf_get_current_task_btf();
	struct fief_cpu *cs = caller(), *its;
	struct fief_task *v;
	int err = -ESRCH;

	if (!cs || !task_storage_in_cgroup)
		return -ESRCH;
	if (!c)
		return -ESTALE;
	if (!(d->rights & FIEF_RIGHT_USE))
		return -EPERM;
	if (bpf_ksym_exists(bpf_task_from_vpid))
		target = bpf_task_from_vpid(number);
	else if (bpf_ksym_exists(bpf_task_from_pid))
		target = bpf_task_from_pid(number);
	if (!target)
		return -ESRCH;
	if (!may_signal(p, target)) {
		err = -EPERM;
		goto out;
	}
	v = bpf_task_storage_get(&tasks, target, 0, 0);
	if (!v)
		goto out;
	if (!container_below(v->home, cs->task.home)) {
		err = -EPERM;
		goto out;
	}
	container_hold(c, FIEF_THREAD);
	err = request_leave(v, d->container, d->rights);
	if (err)
		goto out;
	its = cpu_at(target->thread_info.cpu);
	if (its)
		its->refresh = 1;
out:
	bpf_task_release(target);
	return err;
}

static __always_inline int stage(struct fief_descriptor *d)
{
	struct fief_cpu *cs = caller();
	unsigned long flags;

	if (!cs)
		return -ESRCH;
	irq_save(&flags);
	cs = this_cpu();
	if (cs && cs->has_task) {
		cs->task.staged = d->container;
		cs->task.staged_rights = d->rights;
	}
	irq_restore(&flags);
	return 0;
}

/* A fresh socket becomes a descriptor of the staged container, or of the one the caller is bound to. */
static __always_inline int duplicate(struct bpf_sock *sk, bool of_binding)
{
	struct fief_cpu *cs = caller();
	struct fief_container *c;
	struct fief_ref ref;
	__u32 rights;
	int err;

	if (!cs)
		return -ESRCH;
	err = fresh_check(sk);
	if (err)
		return err;
	if (of_binding) {
		ref = cs->task.binding;
		rights = cs->task.rights & (FIEF_RIGHT_USE | FIEF_RIGHT_READ);
		/* nobody else's work may be charged to the machine */
		if (ref.id == FIEF_ROOT && (__u32)bpf_get_current_uid_gid())
			rights &= ~FIEF_RIGHT_USE;
	} else {
		ref = cs->task.staged;
		rights = cs->task.staged_rights;
	}
	if (ref.id == FIEF_NO_ID)
		return -EINVAL;
	c = container_get(ref);
	if (!c || (ref.id >= FIEF_FIRST_ID && !container_hold_live(c, FIEF_HANDLE)))
		return -ESTALE;
	if ((c->refs & FIEF_HANDLES_MASK) > FIEF_HANDLES_MAX) {
		container_put(ref.id, FIEF_HANDLE);
		return -EMFILE;
	}
	return descriptor_make(sk, ref, rights);
}

/* The label's reference, so that a labelled socket keeps its container alive; clones do not hold. */
static __always_inline int unassign(struct bpf_sock *sk)
{
	label_release(sk, (__u64)(unsigned long)sk);
	bpf_sk_storage_delete(&labels, sk);
	return 0;
}

/* Labels any socket with the caller's container. */
static __always_inline int assign(struct bpf_sock *sk)
{
	struct fief_cpu *cs = caller();
	struct fief_label *label, fresh = {};
	struct fief_container *c;
	struct fief_ref ref;

	if (!cs)
		return -ESRCH;
	if (descriptor_of(sk))
		return -EINVAL; /* a container is not a socket to label */
	ref = cs->task.binding;
	c = container_get(ref);
	if (!c)
		return -ESTALE;
	if (ref.id >= FIEF_FIRST_ID && !container_hold_live(c, FIEF_HANDLE))
		return -ESTALE;
	if ((c->refs & FIEF_HANDLES_MASK) > FIEF_HANDLES_MAX) {
		container_put(ref.id, FIEF_HANDLE);
		return -EMFILE;
	}
	unassign(sk);
	fresh.container = ref;
	fresh.listener = FIEF_NO_LISTENER;
	fresh.owner = (__u64)(unsigned long)sk;
	fresh.flags = FIEF_LABEL_HOLDS | FIEF_LABEL_COUNTED;
	label = bpf_sk_storage_get(&labels, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (!label) {
		container_put(ref.id, FIEF_HANDLE);
		return -ENOMEM;
	}
	__sync_fetch_and_add(&c->sockets, 1);
	return 0;
}

/* The descriptor's container becomes a child of the caller's. */
static __always_inline int adopt(struct fief_descriptor *d)
{
	struct fief_cpu *cs = caller();
	struct fief_ref parent;
	int err;

	if (!cs)
		return -ESRCH;
	if (!(d->rights & FIEF_RIGHT_ADMINISTER) || !(cs->task.rights & FIEF_RIGHT_CHILDREN))
		return -EPERM;
	parent = cs->task.binding;
	err = parent_for(bpf_get_current_uid_gid(), &parent);
	return err ? err : container_adopt(d->container, parent);
}

static __always_inline int set_name(struct fief_descriptor *d, void *value, void *end)
{
	struct fief_container *c = container_get(d->container);
	char *from = value;

	if (!c)
		return -ESTALE;
	if (!(d->rights & FIEF_RIGHT_ADMINISTER) || c->flags & FIEF_CONTAINER_POLICY)
		return -EPERM;
	for (int i = 0; i < FIEF_NAME_LEN - 1; i++) {
		if (from + i + 1 > (char *)end || !from[i])
			break;
		if (from[i] == '/' || from[i] < ' ')
			return -EINVAL;
	}
	for (int i = 0; i < FIEF_NAME_LEN - 1; i++) {
		if (from + i + 1 > (char *)end || !from[i]) {
			c->name[i] = 0;
			break;
		}
		c->name[i] = from[i];
	}
	return 0;
}

/* Operations on a container descriptor; 0, or an error of the list above. */
static __always_inline int descriptor_set(struct bpf_sockopt *ctx, struct bpf_sock *sk)
{
	struct fief_descriptor *d = descriptor_of(sk);
	void *value = ctx->optval, *end = ctx->optval_end;

	if (!d)
		return -EBADF;
	switch (ctx->optname) {
	case FIEF_BIND:
		if (value + sizeof(struct fief_bind) <= end && ctx->optlen >= (int)sizeof(struct fief_bind))
			return bind_other(d, ((struct fief_bind *)value)->thread);
		return ctx->optlen ? -EINVAL : bind_self(d);
	case FIEF_UNBIND:
		return unbind_self();
	case FIEF_ENTER:
		return enter(d);
	case FIEF_LEAVE:
		return leave();
	case FIEF_STAGE:
		return stage(d);
	case FIEF_ADOPT:
		return adopt(d);
	case FIEF_SET_ATTRIBUTE:
		if (value + sizeof(struct fief_set_attribute) > end)
			return -EINVAL;
		if (!(d->rights & FIEF_RIGHT_ADMINISTER))
			return -EPERM;
		return attribute_set(d->container, (struct fief_set_attribute *)value);
	case FIEF_DROP_RIGHTS:
		if (value + sizeof(__u32) > end)
			return -EINVAL;
		d->rights &= *(__u32 *)value;
		return 0;
	case FIEF_SET_NAME:
		return set_name(d, value, end);
	}
	return -EINVAL;
}

static __always_inline int socket_set(struct bpf_sockopt *ctx, struct bpf_sock *sk)
{
	void *value = ctx->optval, *end = ctx->optval_end;

	switch (ctx->optname) {
	case FIEF_CREATE:
		if (ctx->optlen && value + sizeof(struct fief_create) > end)
			return -EINVAL;
		return create(sk, ctx->optlen && value + sizeof(struct fief_create) <= end ? value : NULL);
	case FIEF_DUP:
		return duplicate(sk, false);
	case FIEF_OPEN_BINDING:
		return duplicate(sk, true);
	case FIEF_ASSIGN:
		return assign(sk);
	case FIEF_UNASSIGN:
		return unassign(sk);
	}
	return descriptor_set(ctx, sk);
}

static __always_inline int setsockopt_serve(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	int err;

	if (ctx->level != FIEF_SOL) {
		if (ctx->optlen > 4096)
			ctx->optlen = 0; /* longer than the hook's buffer: the kernel takes the caller's own */
		return 1;
	}
	err = sk ? socket_set(ctx, sk) : -EINVAL;
	if (err) {
		bpf_set_retval(err);
		return 0;
	}
	ctx->optlen = -1; /* the kernel's own handler is not asked */
	return 1;
}

static __always_inline int info_get(struct fief_descriptor *d, struct fief_info *info)
{
	struct fief_container *c = container_get(d->container), *p;
	__u64 refs;

	if (!c)
		return -ESTALE;
	__builtin_memset(info, 0, sizeof(*info));
	p = container_get(c->parent);
	refs = c->refs;
	info->self = d->container;
	info->parent = c->parent;
	info->state = c->state;
	if (!p || p->state != FIEF_ALIVE) {
		info->parent = (struct fief_ref){FIEF_NO_ID, 0};
		if (info->state == FIEF_ALIVE)
			info->state = FIEF_ORPHAN;
	}
	info->rights = d->rights;
	info->depth = container_depth(d->container);
	info->holders = refs & FIEF_HANDLES_MASK;
	info->threads = (refs & FIEF_HOLDERS_MASK) / FIEF_THREAD;
	info->children = refs / FIEF_CHILD;
	info->processes = c->processes;
	info->sockets = c->sockets;
	__builtin_memcpy(info->name, c->name, sizeof(info->name));
	return 0;
}

/* Charges the caller's own stint, so that it reads itself to the nanosecond. */
static __always_inline void self_charge(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_cpu *cs;
	unsigned long flags;

	irq_save(&flags);
	cs = this_cpu();
	if (cs && cs->has_task) {
		charge_until(cs, bpf_ktime_get_ns());
		counters_settle(cs, p);
	}
	irq_restore(&flags);
}

static __always_inline int socket_get(struct bpf_sockopt *ctx, struct bpf_sock *sk)
{
	void *value = ctx->optval, *end = ctx->optval_end;
	struct fief_descriptor *d;

	if (ctx->optname == FIEF_BINDING || ctx->optname == FIEF_LABEL) {
		struct fief_ref *ref = value;
		struct fief_label *label;
		struct fief_cpu *cs;

		if ((void *)(ref + 1) > end)
			return -EINVAL;
		if (ctx->optname == FIEF_BINDING) {
			cs = caller();
			if (!cs)
				return -ESRCH;
			*ref = cs->task.binding;
		} else {
			label = bpf_sk_storage_get(&labels, sk, 0, 0);
			if (!label)
				return -ENOENT;
			*ref = label->container;
		}
		ctx->optlen = sizeof(*ref);
		return 0;
	}
	d = descriptor_of(sk);
	if (!d)
		return -EBADF;
	if (!(d->rights & FIEF_RIGHT_READ))
		return -EPERM;
	switch (ctx->optname) {
	case FIEF_USAGE:
		if (value + sizeof(struct fief_usage) > end)
			return -EINVAL;
		self_charge();
		ctx->optlen = sizeof(struct fief_usage);
		return usage_read(d->container, value);
	case FIEF_ATTRIBUTES: {
		struct fief_container *c = container_get(d->container);
		struct fief_attributes *answer = value;

		if ((void *)(answer + 1) > end)
			return -EINVAL;
		if (!c)
			return -ESTALE;
		*answer = *attributes_of(c);
		answer->reserved_ppm += c->reserved_ppm;
		ctx->optlen = sizeof(struct fief_attributes);
		return 0;
	}
	case FIEF_INFO:
		if (value + sizeof(struct fief_info) > end)
			return -EINVAL;
		ctx->optlen = sizeof(struct fief_info);
		return info_get(d, value);
	}
	return -EINVAL;
}

static __always_inline int getsockopt_serve(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	int err;

	if (ctx->level != FIEF_SOL) {
		if (ctx->optlen > 4096)
			ctx->optlen = 0;
		return 1;
	}
	err = sk ? socket_get(ctx, sk) : -EINVAL;
	ctx->retval = err;
	return err ? 0 : 1;
}

/* The last close of a socket of ours. */
static __always_inline void release_serve(struct bpf_sock *sk)
{
	struct fief_descriptor *d = descriptor_of(sk);

	if (d)
		container_put(d->container.id, FIEF_HANDLE);
	label_release(sk, (__u64)(unsigned long)sk);
}

/* bind(), connect() and sendto() would give the descriptor an address; it has none. */
static __always_inline int address_refuse(struct bpf_sock *sk)
{
	return !sk || !descriptor_of(sk);
}
