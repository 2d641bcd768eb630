/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Descriptors: a container is an unbound AF_INET datagram socket whose storage names it.
 *
 * Problem: applications need containers without privilege and without a daemon, with the life of a file descriptor.
 * How: socket options at level FIEF_SOL, served here; cgroup/sock_release reports the last close. The caller's current
 * container is the implicit second operand, so that no option takes an id that could be forged.
 * Limits: hooks run for sockets made inside managed cgroups; a descriptor keeps its hooks wherever it is passed.
 * Errors:
 *   -EINVAL      wrong socket, value or option            -EBADF    not a container descriptor
 *   -ESTALE      the container has ended                  -EPERM    a right is missing
 *   -EDQUOT      a quota is full                          -ENFILE   the table is full
 *   -EOPNOTSUPP  too deep                                 -ESRCH    no such thread, or one that is not managed
 *   -EAGAIN      changed by others now, try again         -EEXIST   the socket is a descriptor already
 *   -EMFILE      too many descriptors of one container    -ENOMEM   no storage
 *   -EBUSY       shares that do not fit, a loop of parents, or too many entered at once
 */
#pragma once

#include "attributes.bpf.h"
#include "caller.bpf.h"

#define SOCK_DGRAM 2

static __always_inline struct fief_descriptor *descriptor_of(struct bpf_sock *sk)
{
	return bpf_sk_storage_get(&descriptors, sk, 0, 0);
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

/*
 * The owner of what a thread with these credentials makes. One that may administer the machine is its operator; root without
 * that right, as in a container of the usual kind, is a user like others.
 */
static __always_inline __u32 owner_of(const struct cred *cred)
{
	__u32 uid = cred->uid.val;

	if (!uid && cred->user_ns->level == 0 && cred->cap_effective.val & (1ull << CAP_SYS_ADMIN))
		return FIEF_OWNER_OPERATOR;
	return uid;
}

static __always_inline __u32 caller_owner(void)
{
	return owner_of(bpf_get_current_task_btf()->cred);
}

/* The parent of what an unprivileged user makes outside of every unit: user/<uid>. */
static __noinline int user_parent(__u32 uid, struct fief_ref *parent)
{
	struct fief_container *c;
	struct fief_ref top, made, was;
	struct fief_user *u;
	int err;

	err = owner_room(uid, 0);
	if (err)
		return err;
	u = user_get(uid);
	if (!u)
		return -ENFILE;
	was = u->parent;
	if (was.id >= FIEF_FIRST_ID && container_alive(was)) {
		*parent = was;
		return 0;
	}
	top = ref_of(FIEF_USERS);
	err = container_create(&top, FIEF_OWNER_USER_PARENT, FIEF_CONTAINER_USER, &made);
	if (err)
		return err;
	c = container_at(made.id);
	if (c)
		BPF_SNPRINTF(c->name, sizeof(c->name), "%u", uid);
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
static __always_inline int parent_for(__u32 owner, struct fief_ref *parent)
{
	return parent->id == FIEF_ROOT && owner != FIEF_OWNER_OPERATOR ? user_parent(owner, parent) : 0;
}

static __always_inline int create(struct bpf_sock *sk, const struct fief_create *args)
{
	__u32 owner = caller_owner(), flags = args ? args->flags : 0, weight = args ? args->weight : 0;
	struct fief_cpu *cs = caller();
	struct fief_ref parent, made;
	int err;

	if (!cs)
		return -ESRCH;
	err = fresh_check(sk);
	if (err)
		return err;
	if (flags & ~FIEF_CREATE_PASS_UP || weight > WEIGHT_MAX)
		return -EINVAL;
	if (!(cs->task.rights & FIEF_RIGHT_CHILDREN))
		return -EPERM;
	parent = cs->task.binding;
	err = parent_for(owner, &parent);
	if (err)
		return err;
	err = container_create(&parent, owner, 0, &made);
	if (err)
		return err;
	struct fief_container *c = container_at(made.id);
	if (c && args) {
		c->attributes[0].pass_up = !!(flags & FIEF_CREATE_PASS_UP);
		if (weight)
			c->attributes[0].weight = weight;
	}
	return descriptor_make(sk, made, FIEF_RIGHTS_ALL);
}

/* A new container for each request without a new socket for each: create and the last close in one call. */
static __always_inline int renew(struct fief_descriptor *d)
{
	__u32 owner = caller_owner();
	struct fief_cpu *cs = caller();
	struct fief_ref parent, made, was;
	int err;

	if (!cs)
		return -ESRCH;
	if (!(cs->task.rights & FIEF_RIGHT_CHILDREN) || !(d->rights & FIEF_RIGHT_ADMINISTER))
		return -EPERM;
	parent = cs->task.binding;
	err = parent_for(owner, &parent);
	if (err)
		return err;
	err = container_create(&parent, owner, 0, &made);
	if (err)
		return err;
	was = d->container;
	d->container = made;
	container_put(was.id, FIEF_HANDLE);
	return 0;
}

/* What the running thread has staged: for its next FIEF_DUP, and no longer. */
static __always_inline void stage_note(struct fief_ref ref, __u32 rights)
{
	struct fief_cpu *cs;
	unsigned long flags;

	irq_save(&flags);
	cs = this_cpu();
	if (cs && cs->has_task) {
		cs->task.staged = ref;
		cs->task.staged_rights = rights;
	}
	irq_restore(&flags);
}

static __always_inline int stage(struct fief_descriptor *d)
{
	if (!caller())
		return -ESRCH;
	stage_note(d->container, d->rights);
	return 0;
}

/* A thread that drops rights keeps none of them by what it has staged before. */
static __always_inline int rights_drop(struct fief_descriptor *d, __u32 keep)
{
	d->rights &= keep;
	if (caller())
		stage_note((struct fief_ref){FIEF_NO_ID, 0}, 0);
	return 0;
}

/*
 * A descriptor of the caller's container allows of what the caller's binding does: to use it and to read. A caller that will bind itself
 * again to what it is bound to now asks for the right to make children too, which it would lack from then on.
 */
#define OPENED_RIGHTS  (FIEF_RIGHT_USE | FIEF_RIGHT_READ)
#define RETURNS_RIGHTS (OPENED_RIGHTS | FIEF_RIGHT_CHILDREN)

/* A fresh socket becomes a descriptor of the staged container, or of the one the caller is bound to, with these rights of it. */
static __always_inline int duplicate(struct bpf_sock *sk, bool of_binding, __u32 wanted)
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
		rights = cs->task.rights & wanted & RETURNS_RIGHTS;
		/* nobody else's work may be charged to the machine */
		if (ref.id == FIEF_ROOT && caller_owner() != FIEF_OWNER_OPERATOR)
			rights &= ~FIEF_RIGHT_USE;
	} else {
		ref = cs->task.staged;
		rights = cs->task.staged_rights;
	}
	if (ref.id == FIEF_NO_ID)
		return -EINVAL;
	c = container_get(ref);
	if (!c || (ref.id >= FIEF_FIRST_ID && !live_hold(c, ref, FIEF_HANDLE)))
		return -ESTALE;
	if ((c->refs & FIEF_HANDLES_MASK) > FIEF_HANDLES_MAX) {
		container_put(ref.id, FIEF_HANDLE);
		return -EMFILE;
	}
	err = descriptor_make(sk, ref, rights);
	if (!err && !of_binding)
		stage_note((struct fief_ref){FIEF_NO_ID, 0}, 0);
	return err;
}

/* The label's reference, so that a labelled socket keeps its container alive; clones do not hold. */
static __always_inline void label_remove(struct bpf_sock *sk)
{
	label_release(sk, (__u64)(unsigned long)sk);
	bpf_sk_storage_delete(&labels, sk);
}

/* Of a connection the label also says what the door knows: where its next request begins, and whether one waits. */
static __always_inline bool label_is_connections(struct bpf_sock *sk, const struct fief_label *label)
{
	const __u32 listens = FIEF_LABEL_LISTENER | FIEF_LABEL_CLASS_LISTENER | FIEF_LABEL_FILTER | FIEF_LABEL_BINDING;

	if (sk->protocol != IPPROTO_TCP || sk->state == BPF_TCP_LISTEN || label->flags & listens)
		return false;
	return label->listener != FIEF_NO_LISTENER || label->flags & FIEF_LABEL_VERDICT;
}

#define LABEL_LOOKS (1 << 20) /* some milliseconds: a hypervisor may have stopped the CPU that rules */

/*
 * The door moves no label that holds: it asks for that after it has set `busy` (front/tracked.bpf.h). So whoever sets FIEF_LABEL_HOLDS and
 * then finds nobody busy is alone. To take `busy` here would have packets dropped while this thread is not running.
 */
static __always_inline bool label_is_left(const struct fief_label *label)
{
	int i;

	bpf_for (i, 0, LABEL_LOOKS) {
		if (!*(const volatile __u32 *)&label->busy)
			return true;
	}
	return false;
}

/*
 * A connection gets another container, and keeps what the door knows of it. `holds`: FIEF_LABEL_HOLDS and FIEF_LABEL_COUNTED, for which the
 * caller has taken a handle, or 0. The socket is locked: nobody else assigns it.
 */
static __always_inline int label_reassign(struct bpf_sock *sk, struct fief_label *label, struct fief_ref to,
					  __u32 holds)
{
	const __u32 changes = FIEF_LABEL_HOLDS | FIEF_LABEL_COUNTED | FIEF_LABEL_FRESH;
	__u32 before = __sync_fetch_and_or(&label->flags, FIEF_LABEL_HOLDS);
	__u64 own = (__u64)(unsigned long)sk;
	struct fief_ref was;
	bool held;

	if (!(before & FIEF_LABEL_HOLDS) && !label_is_left(label)) {
		__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_HOLDS);
		return -EAGAIN;
	}
	held = before & FIEF_LABEL_HOLDS && label->owner == own;
	if (label->owner == own)
		label_uncount(label);
	was = label->container;
	*(volatile __u64 *)&label->container = ref_word(to);
	label->owner = own;
	__sync_fetch_and_and(&label->flags, ~(changes & ~holds));
	__sync_fetch_and_or(&label->flags, holds);
	if (held)
		container_put(was.id, FIEF_HANDLE);
	return 0;
}

/* A connection is of its unit then, until the door rules its next request. */
static __always_inline int unassign(struct bpf_sock *sk)
{
	struct fief_label *label = bpf_sk_storage_get(&labels, sk, 0, 0);

	if (label && label_is_connections(sk, label))
		return label_reassign(sk, label, (struct fief_ref){FIEF_NO_ID, 0}, 0);
	label_remove(sk);
	return 0;
}

/* Labels any socket with the caller's container. */
static __always_inline int assign(struct bpf_sock *sk)
{
	struct fief_cpu *cs = caller();
	struct fief_label *label, fresh = {};
	struct fief_container *c;
	struct fief_ref ref;
	int err;

	if (!cs)
		return -ESRCH;
	if (descriptor_of(sk))
		return -EINVAL; /* a container is not a socket to label */
	if (sk->protocol == IPPROTO_MPTCP)
		return -EINVAL; /* the kernel copies its label to what it accepts, with the reference in it */
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
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (label && label_is_connections(sk, label)) {
		err = label_reassign(sk, label, ref, FIEF_LABEL_HOLDS | FIEF_LABEL_COUNTED);
		if (err)
			container_put(ref.id, FIEF_HANDLE);
		else
			__sync_fetch_and_add(&c->sockets, 1);
		return err;
	}
	label_remove(sk);
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
	err = parent_for(caller_owner(), &parent);
	return err ? err : container_adopt(d->container, parent);
}

static __always_inline int set_name(struct fief_descriptor *d, void *value, void *end)
{
	struct fief_container *c = container_get(d->container);
	char *from = value;
	int i;

	if (!c)
		return -ESTALE;
	if (!(d->rights & FIEF_RIGHT_ADMINISTER) || c->flags & FIEF_CONTAINER_POLICY)
		return -EPERM;
	bpf_for (i, 0, FIEF_NAME_LEN) {
		if (from + i + 1 > (char *)end || !from[i])
			break;
		/* one that does not fit is not cut: it would be that of whatever begins in the same way */
		if (i == FIEF_NAME_LEN - 1 || !name_may_have(from[i]))
			return -EINVAL;
	}
	bpf_for (i, 0, FIEF_NAME_LEN - 1) {
		if (from + i + 1 > (char *)end || !from[i]) {
			c->name[i] = 0;
			break;
		}
		c->name[i] = from[i];
	}
	return 0;
}

static __noinline int file_release(struct bpf_sock *sk);

/* The last close of a socket of ours. */
static __always_inline void release_serve(struct bpf_sock *sk)
{
	struct fief_descriptor *d = sk->type == SOCK_DGRAM ? descriptor_of(sk) : NULL;

	if (d) {
		if (d->flags & FIEF_DESCRIPTOR_FILE)
			file_release(sk);
		container_put(d->container.id, FIEF_HANDLE);
	}
	label_release(sk, (__u64)(unsigned long)sk);
}

/* bind(), connect() and sendto() would give the descriptor an address; it has none. */
static __always_inline int address_refuse(struct bpf_sock *sk)
{
	return !sk || !descriptor_of(sk);
}
