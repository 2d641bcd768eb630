/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Socket: the two ends of a flow as the contexts of socket programs tell them.
 *
 * Problem: a context has the addresses of both families in different words, and takes loads at constant offsets only: clang
 * would choose between two offsets, or merge two loads, which the verifier forbids.
 * How: every word is read before the family is asked, with barriers.
 */
#pragma once

#include "flow/address.bpf.h"

static __always_inline void lookup_local_address(struct bpf_sk_lookup *ctx, __u32 *words)
{
	__u32 ipv4 = ctx->local_ip4;

	barrier_var(ipv4);
	words[0] = ctx->local_ip6[0];
	words[1] = ctx->local_ip6[1];
	words[2] = ctx->local_ip6[2];
	words[3] = ctx->local_ip6[3];
	if (ctx->family == AF_INET)
		mapped_ipv4(ipv4, words);
}

static __always_inline void lookup_remote_address(struct bpf_sk_lookup *ctx, __u32 *words)
{
	__u32 ipv4 = ctx->remote_ip4;

	barrier_var(ipv4);
	words[0] = ctx->remote_ip6[0];
	words[1] = ctx->remote_ip6[1];
	words[2] = ctx->remote_ip6[2];
	words[3] = ctx->remote_ip6[3];
	if (ctx->family == AF_INET)
		mapped_ipv4(ipv4, words);
}

/* What the socket is bound to. */
static __always_inline void socket_address(struct bpf_sock *sk, __u32 *words)
{
	__u32 ipv4 = sk->src_ip4;

	barrier_var(ipv4);
	words[0] = sk->src_ip6[0];
	words[1] = sk->src_ip6[1];
	words[2] = sk->src_ip6[2];
	words[3] = sk->src_ip6[3];
	if (sk->family == AF_INET)
		mapped_ipv4(ipv4, words);
}

static __always_inline void ops_address(struct bpf_sock_ops *ops, bool local, __u8 *address)
{
	__u32 *words = (__u32 *)address;
	__u32 ipv4, family = ops->family;

	if (local) {
		ipv4 = *(volatile __u32 *)&ops->local_ip4;
		words[0] = *(volatile __u32 *)&ops->local_ip6[0];
		words[1] = *(volatile __u32 *)&ops->local_ip6[1];
		words[2] = *(volatile __u32 *)&ops->local_ip6[2];
		words[3] = *(volatile __u32 *)&ops->local_ip6[3];
	} else {
		ipv4 = *(volatile __u32 *)&ops->remote_ip4;
		words[0] = *(volatile __u32 *)&ops->remote_ip6[0];
		words[1] = *(volatile __u32 *)&ops->remote_ip6[1];
		words[2] = *(volatile __u32 *)&ops->remote_ip6[2];
		words[3] = *(volatile __u32 *)&ops->remote_ip6[3];
	}
	if (family == AF_INET)
		mapped_ipv4(ipv4, address);
}

static __always_inline void ops_flow_key(struct bpf_sock_ops *ops, struct fief_flow_key *key)
{
	ops_address(ops, false, key->remote);
	ops_address(ops, true, key->local);
	key->remote_port = bpf_ntohl(ops->remote_port);
	key->local_port = ops->local_port;
	key->pad = 0;
}

static __always_inline bool is_ipv6_only(struct bpf_sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	return tcp && BPF_CORE_READ_BITFIELD(&tcp->inet_conn.icsk_inet.sk.__sk_common, skc_ipv6only);
}
