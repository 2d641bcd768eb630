/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Displaced: a verdict that another one displaces becomes the label of its socket.
 *
 * Problem: the verdict on a first request waits in a table (`admitted`) until a later request comes. Its client may be silent
 * for long, while other connections fill the table. Labelling each socket at once costs the memory that this saves: the kernel
 * allocates and frees it, 1.5 us for each connection.
 * How: most connections have ended, or have their label, before another one needs their line. For the others the socket is
 * looked up by the addresses of the verdict, and gets its label then.
 * Limits: a connection whose socket does not exist yet loses its verdict. The kernel looks up a socket from the interface of
 * the current packet. A socket that is bound to an interface (link-local addresses, SO_BINDTODEVICE, VRFs) is not found from
 * another one, and gets its label when the answer is acknowledged (verdict_settle).
 */
#pragma once

#include "listening.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/labels.bpf.h"

/* What the verdict upon a first request says of its connection. */
static __always_inline void verdict_label(struct fief_label *fresh, const struct fief_admitted *verdict)
{
	fresh->container = verdict->container;
	fresh->next = verdict->next;
	fresh->body = verdict->body;
	fresh->answer_at = verdict->answer_at + verdict->interim;
	fresh->flags = verdict->tracked & FIEF_LABEL_VERDICT;
}

/* In memory of the CPU, since the stack is short here. */
struct displaced {
	struct fief_flow_key key; /* whose verdict comes */
	struct bpf_sock_tuple tuple;
	struct fief_label fresh; /* the label of a socket that has none (labelled.bpf.h), too */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct displaced);
} displaced SEC(".maps");

static __always_inline struct displaced *displaced_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&displaced, &zero);
}

/* Unless the socket is of an earlier or a later connection with the same addresses. */
static __always_inline void displaced_label(struct bpf_sock *sk, const struct fief_admitted *verdict,
					    struct fief_label *fresh)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	if (!tcp || tcp->rcv_nxt - (__u32)tcp->bytes_received != verdict->begin)
		return;
	verdict_label(fresh, verdict);
	bpf_sk_storage_get(&labels, sk, fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

/* A function of its own to the verifier, which then follows it once. */
__noinline int displaced_settle(struct __sk_buff *skb, struct admitted_line *line __arg_nonnull,
				struct admitted_key *own __arg_nonnull, __u32 slot)
{
	struct displaced *with = displaced_get();
	const struct listener_found *found;
	struct policy_listener listener;
	struct bpf_sock *sk;

	if (!with)
		return 0;
	found = listener_search(slot, own->of.local, own->of.local_port);
	if (!found)
		return 0;
	listener.index = found->index;
	listener.serve = found->serve;
	__builtin_memset(&with->fresh, 0, sizeof(with->fresh));
	with->fresh.listener = listener.index;
	sk = tuple_find(skb, &with->tuple, key_tuple(&own->of, &with->tuple), &listener);
	if (!sk)
		return 0;
	if (has_stream(sk->state))
		displaced_label(sk, &line->verdict, &with->fresh);
	bpf_sk_release(sk);
	return 0;
}
