/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Conntrack: what the kernel's connection tracking knows about the flow of a packet.
 *
 * Limits: the door stands before connection tracking, which therefore does not know a flow's first packet yet. A kernel without
 * it knows no flow.
 */
#pragma once

#include "listening.bpf.h"

/* Bits of struct nf_conn's status. */
#define HANDSHAKE_TRACKED    0x4  /* IPS_ASSURED: both sides completed it, and the numbers fitted */
#define ADDRESSES_TRANSLATED 0x30 /* IPS_NAT_MASK */

/* As far as the kernel takes it; later fields are not needed. */
struct conntrack_options {
	__s32 namespace;
	__s32 error;
	__u8 protocol;
	__u8 direction;
	__u8 reserved[2];
};

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, u32 tuple__sz,
					 struct conntrack_options *options, u32 options__sz) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *connection) __ksym __weak;

/* 0: not tracked. */
static __noinline __u64 tracked_status(struct __sk_buff *skb, const struct packet *p)
{
	struct conntrack_options options = {.namespace = BPF_F_CURRENT_NETNS, .protocol = IPPROTO_TCP};
	struct bpf_sock_tuple tuple;
	struct nf_conn *connection;
	__u64 status;

	if (!bpf_ksym_exists(bpf_skb_ct_lookup) || !bpf_ksym_exists(bpf_ct_release))
		return 0;
	flow_tuple(p, &tuple);
	if (p->ipv6)
		connection = bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv6), &options, sizeof(options));
	else
		connection = bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv4), &options, sizeof(options));
	if (!connection)
		return 0;
	status = connection->status;
	bpf_ct_release(connection);
	return status;
}
