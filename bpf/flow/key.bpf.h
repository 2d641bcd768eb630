/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Key: what a packet's flow is called in tables, and in the kernel's lookups.
 */
#pragma once

#include "flow/packet.bpf.h"

static __always_inline void flow_key(const struct packet *p, struct fief_flow_key *key)
{
	__builtin_memcpy(key->remote, p->source, 16);
	__builtin_memcpy(key->local, p->destination, 16);
	key->remote_port = p->source_port;
	key->local_port = p->destination_port;
	key->pad = 0;
}

static __always_inline __u32 ports_word(const struct packet *p)
{
	return (__u32)p->source_port << 16 | p->destination_port;
}

/* Of a packet that leaves: its flow as packets of the client bear it. */
static __always_inline void reversed_key(const struct packet *p, struct fief_flow_key *key)
{
	__builtin_memcpy(key->remote, p->destination, 16);
	__builtin_memcpy(key->local, p->source, 16);
	key->remote_port = p->destination_port;
	key->local_port = p->source_port;
	key->pad = 0;
}

static __always_inline void flow_tuple(const struct packet *p, struct bpf_sock_tuple *tuple)
{
	if (p->ipv6) {
		__builtin_memcpy(tuple->ipv6.saddr, p->source, 16);
		__builtin_memcpy(tuple->ipv6.daddr, p->destination, 16);
		tuple->ipv6.sport = bpf_htons(p->source_port);
		tuple->ipv6.dport = bpf_htons(p->destination_port);
	} else {
		__builtin_memset(tuple, 0, sizeof(*tuple));
		tuple->ipv4.saddr = ipv4_of(p->source);
		tuple->ipv4.daddr = ipv4_of(p->destination);
		tuple->ipv4.sport = bpf_htons(p->source_port);
		tuple->ipv4.dport = bpf_htons(p->destination_port);
	}
}

/* The same of a key. Whether it is of IPv6. */
static __always_inline bool key_tuple(const struct fief_flow_key *key, struct bpf_sock_tuple *tuple)
{
	const __u32 *remote = (const __u32 *)key->remote, *local = (const __u32 *)key->local;

	if (remote[0] || remote[1] || remote[2] != MAPPED_PREFIX) {
		__builtin_memcpy(tuple->ipv6.saddr, key->remote, 16);
		__builtin_memcpy(tuple->ipv6.daddr, key->local, 16);
		tuple->ipv6.sport = bpf_htons(key->remote_port);
		tuple->ipv6.dport = bpf_htons(key->local_port);
		return true;
	}
	__builtin_memset(tuple, 0, sizeof(*tuple));
	tuple->ipv4.saddr = remote[3];
	tuple->ipv4.daddr = local[3];
	tuple->ipv4.sport = bpf_htons(key->remote_port);
	tuple->ipv4.dport = bpf_htons(key->local_port);
	return false;
}
