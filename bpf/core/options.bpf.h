/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Options: finds the call for a socket option at our level, and returns its answer. abi.h describes the records.
 */
#pragma once

#include "descriptors.bpf.h"
#include "file.bpf.h"
#include "grown.bpf.h"
#include "ring_calls.bpf.h"
#include "told.bpf.h"
#include "usage.bpf.h"

/* Operations on a container descriptor; 0, or an error of the list above. */
static __always_inline int descriptor_set(struct bpf_sockopt *ctx, struct bpf_sock *sk)
{
	struct fief_descriptor *d = descriptor_of(sk);
	void *value = ctx->optval, *end = ctx->optval_end;

	if (!d || d->flags & FIEF_DESCRIPTOR_FILE)
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
	case FIEF_RENEW:
		return renew(d);
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
		return rights_drop(d, *(__u32 *)value);
	case FIEF_SET_NAME:
		return set_name(d, value, end);
	case FIEF_RING_PLACE:
		return value + sizeof(__u32) <= end ? ring_put(d, *(__u32 *)value) : -EINVAL;
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
		return duplicate(sk, false, 0);
	case FIEF_OPEN_BINDING:
		if (!ctx->optlen)
			return duplicate(sk, true, OPENED_RIGHTS);
		if (value + sizeof(__u32) > end || ctx->optlen < (int)sizeof(__u32))
			return -EINVAL;
		return duplicate(sk, true, *(__u32 *)value);
	case FIEF_ASSIGN:
		return assign(sk);
	case FIEF_UNASSIGN:
		return unassign(sk);
	case FIEF_ASSIGN_FILE:
		return value + sizeof(__u32) <= end ? file_assign(sk, *(__u32 *)value) : -EINVAL;
	case FIEF_RING:
		if (!ctx->optlen)
			return ring_close();
		return value + sizeof(struct fief_ring_open) <= end ? ring_open(value) : -EINVAL;
	case FIEF_RING_CLEAR:
		return value + sizeof(__u32) <= end ? ring_clear(*(__u32 *)value) : -EINVAL;
	case FIEF_RESET_SCHEDULER_BINDING:
		return scheduler_binding_reset();
	case FIEF_RING_FLUSH:
		return ring_own() ? ring_settle(0) : -ENXIO;
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
	ring_look(caller_cpu(), 0);
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
	info->threads = c->members % FIEF_MEMBER_PROCESS;
	info->children = refs / FIEF_CHILD;
	info->processes = c->members / FIEF_MEMBER_PROCESS;
	info->sockets = c->sockets;
	__builtin_memcpy(info->name, c->name, sizeof(info->name));
	return 0;
}

/* Charges the caller's own stint and counts it where it is bound, so that it reads itself to the nanosecond. */
static __always_inline void self_settle(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_cpu *cs;
	unsigned long flags;

	cs = record_hold(&flags);
	if (cs && cs->has_task && cs->running == p->pid) {
		charge_until(cs, bpf_ktime_get_ns());
		counters_settle(cs, p);
		member_settle(&cs->task, p, false);
	}
	record_let_go(cs, &flags);
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
			if (!label || label->container.id == FIEF_NO_ID)
				return -ENOENT;
			*ref = label->container;
		}
		ctx->optlen = sizeof(*ref);
		return 0;
	}
	if (ctx->optname == FIEF_DROPS)
		return drops_get(ctx, sk);
	d = descriptor_of(sk);
	if (!d || d->flags & FIEF_DESCRIPTOR_FILE)
		return -EBADF;
	if (!(d->rights & FIEF_RIGHT_READ))
		return -EPERM;
	switch (ctx->optname) {
	case FIEF_USAGE: {
		struct fief_usage usage;
		int err;

		self_settle();
		err = usage_read(d->container, &usage);
		return err ? err : record_give(ctx, &usage, sizeof(usage), USAGE_FIRST);
	}
	case FIEF_ATTRIBUTES: {
		struct fief_container *c = container_get(d->container);
		struct fief_attributes attributes;

		if (!c)
			return -ESTALE;
		attributes = *attributes_of(c);
		attributes.reserved_ppm += c->reserved_ppm;
		return record_give(ctx, &attributes, sizeof(attributes), ATTRIBUTES_FIRST);
	}
	case FIEF_INFO: {
		struct fief_info info;
		int err;

		self_settle();
		err = info_get(d, &info);
		return err ? err : record_give(ctx, &info, sizeof(info), INFO_FIRST);
	}
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
	ring_look(caller_cpu(), 0);
	err = sk ? socket_get(ctx, sk) : -EINVAL;
	ctx->retval = err;
	return err ? 0 : 1;
}
