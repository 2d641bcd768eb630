/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Register: how a socket becomes the listener of a class, without privilege and without a daemon.
 *
 *   socket()  setsockopt(FIEF_CLASS, n)      label: asks for class n                  (the listen shim)
 *   bind(A)   A is an address of the policy: label: the n-th class of A; the address becomes loopback, port 0
 *   listen()  the socket enters the map of class listeners; its label is cloned to the sockets that it accepts
 *   shut      it stays in the map, with its turn there; listen() brings it back
 *   close()   the kernel removes it from the map
 *
 * A copy of the server per class asks for nothing: its home tells the class at bind().
 *
 * Problem: a process that registers takes connections that belong to the address.
 * How: the operator gave a copy its home. A socket of the shim may register only if a listening socket of the same user has the
 * address already, the kernel's own rule for SO_REUSEPORT. Class listeners of such a group share one hidden port, so that the
 * kernel spreads connections over the group as the server meant it.
 * Limits: a server on one address is not a listener of a policy that names all addresses: it would get connections to addresses
 * that it never bound. It is accounted, not steered. All servers of a policy live in one network namespace; elsewhere nothing
 * is registered. The map takes no listener of multipath TCP, so a copy is refused its bind(): hidden and not registered, it
 * would be unreachable. Go's net listens with plain TCP then.
 */
#pragma once

#include "classify.bpf.h"
#include "flow/multipath.bpf.h"
#include "flow/socket.bpf.h"
#include "flow/steered.bpf.h"
#include "maps/labels.bpf.h"
#include "maps/class_listeners.bpf.h"

#define LOOPBACK_IPV4 0x7f000001
#define RESERVED_IPV4 0xf0000000 /* 240.0.0.0/4, RFC 1112 */
#define DISCARD_IPV6  0x01000000 /* 100::/64, RFC 6666 */
#define REFUSE	      0
#define ALLOW	      1

/* ---- setsockopt, getsockopt ---- */

static __always_inline int refuse(int err)
{
	bpf_set_retval(err);
	return REFUSE;
}

static __always_inline int class_ask(struct bpf_sockopt *ctx)
{
	struct fief_label fresh = {.container = {FIEF_NO_ID, 0}, .listener = FIEF_NO_LISTENER};
	struct bpf_sock *sk = ctx->sk;
	__u32 *class = ctx->optval;

	if (!sk || sk->type != SOCK_STREAM || sk->protocol != IPPROTO_TCP || sk->src_port)
		return refuse(-EINVAL);
	if ((void *)(class + 1) > ctx->optval_end || *class >= FIEF_MAX_CLASSES)
		return refuse(-EINVAL);
	fresh.rule = *class;
	fresh.flags = FIEF_LABEL_BINDING;
	if (bpf_sk_storage_get(&labels, sk, 0, 0))
		return refuse(-EBUSY);
	if (!bpf_sk_storage_get(&labels, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE))
		return refuse(-ENOMEM);
	ctx->optlen = -1; /* done: the kernel's own handler does not run */
	return ALLOW;
}

static __always_inline int classes_answer(struct bpf_sockopt *ctx)
{
	struct fief_control *control = control_get();
	struct fief_classes *answer = ctx->optval;
	struct fief_listener *listener;
	struct bpf_sock *sk = ctx->sk;
	struct fief_label *label;
	__u32 address[4];

	if ((void *)(answer + 1) > ctx->optval_end)
		return refuse(-EINVAL);
	if (!sk || sk->protocol != IPPROTO_TCP)
		return refuse(-EINVAL);
	socket_address(sk, address);
	answer->listener = FIEF_NO_LISTENER;
	answer->count = 0;
	answer->self = FIEF_NO_CLASS;
	/* before the classes are read: never of a later policy than they */
	answer->epoch = control ? control->epoch : 0;
	barrier();
	ctx->optlen = sizeof(*answer);
	ctx->retval = 0;
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (label && label->flags & FIEF_LABEL_CLASS_LISTENER) {
		answer->listener = label->listener;
		answer->self = label->rule;
		answer->class_[0] = (struct fief_class){.container = label->container};
		return ALLOW;
	}
	listener = bound_listener(address, sk->src_port, false);
	if (!listener || listener->serve != FIEF_SERVE_SHIM)
		return ALLOW;
	answer->listener = listener->index;
	answer->count = listener->classes;
	__builtin_memcpy(answer->class_, listener->class_, sizeof(answer->class_));
	return ALLOW;
}

/* ---- bind ---- */

/* It is bound to just this address, or is the listener of a class there. */
static __always_inline bool stands_on(struct bpf_sock *sk, __u32 family, const __u32 *address, __u32 listener)
{
	struct fief_label *label = bpf_sk_storage_get(&labels, sk, 0, 0);
	__u32 own[4];

	if (label && label->flags & FIEF_LABEL_CLASS_LISTENER)
		return label->listener == listener;
	socket_address(sk, own);
	return sk->family == family && own[0] == address[0] && own[1] == address[1] && own[2] == address[2] &&
	       own[3] == address[3];
}

/*
 * Somebody of the caller's user listens on the address. A listener on all addresses is found by one that nobody can have
 * bound before: others may listen on single ones beside it.
 */
static __always_inline bool user_listens(struct bpf_sock_addr *ctx, const __u32 *address, __u16 port, __u32 listener)
{
	struct bpf_sock_tuple tuple = {};
	struct tcp_sock *tcp;
	struct bpf_sock *sk;
	bool same = false;

	if (ctx->family == AF_INET) {
		tuple.ipv4.daddr = address[3] ? address[3] : bpf_htonl(RESERVED_IPV4) | bpf_get_prandom_u32();
		tuple.ipv4.saddr = tuple.ipv4.daddr;
		tuple.ipv4.dport = bpf_htons(port);
		sk = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.daddr, address, 16);
		if (!address[0] && !address[1] && !address[2] && !address[3]) {
			tuple.ipv6.daddr[0] = bpf_htonl(DISCARD_IPV6);
			tuple.ipv6.daddr[2] = bpf_get_prandom_u32();
			tuple.ipv6.daddr[3] = bpf_get_prandom_u32();
		}
		__builtin_memcpy(tuple.ipv6.saddr, tuple.ipv6.daddr, 16);
		tuple.ipv6.dport = bpf_htons(port);
		sk = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return false;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (tcp && stands_on(sk, ctx->family, address, listener))
		same = tcp->inet_conn.icsk_inet.sk.sk_uid.val == (__u32)bpf_get_current_uid_gid();
	bpf_sk_release(sk);
	return same;
}

/* The class whose home this is. */
static __always_inline int class_of_home(struct fief_listener *listener, const struct fief_ref *home)
{
	int i;

	bpf_for (i, 0, FIEF_MAX_CLASSES) {
		struct fief_ref of;

		if (i >= listener->classes || i < 0 || i >= FIEF_MAX_CLASSES)
			break;
		of = listener->class_[i].container;
		if (of.id == home->id && of.generation == home->generation)
			return i;
	}
	return -1;
}

static __always_inline bool label_class(struct fief_label *label, struct fief_listener *listener, __u32 class)
{
	if (class >= FIEF_MAX_CLASSES || class >= listener->classes)
		return false;
	label->container = listener->class_[class].container;
	label->listener = listener->index;
	label->rule = class;
	label->flags = FIEF_LABEL_CLASS_LISTENER;
	return true;
}

/* Whether the socket is bound for one of multipath TCP, which stands above it. */
static __always_inline bool is_path(struct bpf_sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	return tcp && is_multipath(tcp);
}

/* Decides whether this bind() of a thread of `home` is one of a class listener, and labels it. 1: yes, 0: no, or an error. */
static __always_inline int class_bind(struct bpf_sock_addr *ctx, const __u32 *address, const struct fief_ref *home)
{
	__u16 port = bpf_ntohs(ctx->user_port);
	struct fief_listener *listener;
	struct bpf_sock *sk = ctx->sk;
	struct fief_label *label, fresh = {};
	int class;

	if (!sk || ctx->protocol != IPPROTO_TCP)
		return 0;
	listener = bound_listener(address, port, is_ipv6_only(sk));
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (label && label->flags & FIEF_LABEL_BINDING) {
		if (!listener || listener->serve != FIEF_SERVE_SHIM || !is_steered(sk))
			return -EADDRNOTAVAIL;
		if (!user_listens(ctx, address, port, listener->index))
			return -EACCES;
		return label_class(label, listener, label->rule) ? 1 : -EINVAL;
	}
	if (label || !listener || listener->serve != FIEF_SERVE_COPIES || !is_steered(sk))
		return 0;
	class = class_of_home(listener, home);
	if (class < 0 || !label_class(&fresh, listener, class))
		return 0;
	if (is_path(sk))
		return -EPROTONOSUPPORT;
	return bpf_sk_storage_get(&labels, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE) ? 1 : -ENOMEM;
}

/*
 * Of a class listener that is there already, if both take part in SO_REUSEPORT and are of one user; or 0: any. One that was shut has no
 * port, or that of a group which has another one by now.
 */
static __always_inline __u16 group_port(struct bpf_sock *sk)
{
	struct fief_label *label = bpf_sk_storage_get(&labels, sk, 0, 0);
	struct tcp_sock *own = bpf_skc_to_tcp_sock(sk);
	struct fief_class_key key;
	__u16 port = 0;
	int turn;

	if (!label || !own || !BPF_CORE_READ_BITFIELD(&own->inet_conn.icsk_inet.sk.__sk_common, skc_reuseport))
		return 0;
	key = class_key(label->listener, label->container);
	bpf_for (turn, 0, FIEF_CLASS_TURNS) {
		struct bpf_sock *first = bpf_map_lookup_elem(&class_listeners, &key);
		struct tcp_sock *other;

		key.turn++;
		if (!first)
			continue;
		other = bpf_skc_to_tcp_sock(first);
		if (other && *(volatile __u32 *)&first->state == BPF_TCP_LISTEN && first->family == sk->family &&
		    BPF_CORE_READ_BITFIELD(&other->inet_conn.icsk_inet.sk.__sk_common, skc_reuseport) &&
		    other->inet_conn.icsk_inet.sk.sk_uid.val == own->inet_conn.icsk_inet.sk.sk_uid.val)
			port = first->src_port;
		bpf_sk_release(first);
		if (port)
			break;
	}
	return port;
}

/* ---- listen ---- */

static __always_inline void class_listen(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct fief_class_key key;
	struct fief_label *label;
	int turn, err;

	if (!sk)
		return;
	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (!label || !(label->flags & FIEF_LABEL_CLASS_LISTENER))
		return;
	/* it was shut, and listens again: one more turn would be one less for others */
	if (label->flags & FIEF_LABEL_REGISTERED)
		return;
	key = class_key(label->listener, label->container);
	bpf_for (turn, 0, FIEF_CLASS_TURNS) {
		err = bpf_sock_hash_update(ctx, &class_listeners, &key, BPF_NOEXIST);
		if (err == -E2BIG)
			count_error(FIEF_ERR_TABLE_FULL);
		if (!err)
			__sync_fetch_and_or(&label->flags, FIEF_LABEL_REGISTERED);
		if (err != -EEXIST)
			break;
		key.turn++;
	}
}
