/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Interim: whether what a server sends is only an interim answer (RFC 9110, 15.2), as 100 Continue.
 *
 * Problem: it is sent before the server works on the request, whose body is still to come: it ends no place, and is no answer that was
 * promised.
 * How: one that fits into INTERIM_MOST bytes, and is all that the packet has.
 * Limits: a longer one (103 with links) counts as the begin of the answer, as does one that comes with the answer.
 */
#pragma once

#include "flow/packet.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/labels.bpf.h"

#define INTERIM_LEAST 16 /* "HTTP/1.1 100" and two line ends */
#define INTERIM_MOST  64

static __noinline bool is_interim(struct __sk_buff *skb, const struct packet *p)
{
	const __u32 http = 'H' | 'T' << 8 | 'T' << 16 | (__u32)'P' << 24;
	__u32 length = p->payload_length, begin, i;
	__u8 head[INTERIM_MOST] = {};
	bool ends = false;

	if (length < INTERIM_LEAST || length > INTERIM_MOST)
		return false;
	if (bpf_skb_load_bytes(skb, p->payload, head, length))
		return false;
	__builtin_memcpy(&begin, head, sizeof(begin));
	if (begin != http || head[4] != '/' || head[8] != ' ' || head[9] != '1' ||
	    (head[10] == '0' && head[11] == '1')) /* 101 is an answer */
		return false;
	for (i = 12; i + 3 < INTERIM_MOST; i++) {
		if (head[i] == '\r' && head[i + 1] == '\n' && head[i + 2] == '\r' && head[i + 3] == '\n') {
			ends = i + 4 == length;
			break;
		}
	}
	return ends;
}

/* The packet is one: what its server says next is where the answer to the flow's request begins. */
static __noinline int interim_note(struct __sk_buff *skb, const struct packet *p, const struct fief_flow_key *key)
{
	struct fief_admitted *entry = admitted_find(key);
	struct bpf_sock *sk = skb->sk;
	struct fief_label *label = NULL;

	if (entry && entry->answer_at + entry->interim == p->seq)
		entry->interim += p->payload_length;
	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk)
		label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (label) /* another CPU may rule the next request */
		__sync_val_compare_and_swap(&label->answer_at, p->seq, p->seq + p->payload_length);
	return 0;
}
