/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ends: connections that the kernel makes, counted for the rates of single sources, which they prove.
 *
 * Problem: a SYN can be forged in any source's name, and must not spend that source's rates. But where the kernel keeps the
 * handshake, or answers with its own cookie, no cookie of ours comes back.
 * How: the end of the handshake is counted, because it bears the numbers of the request socket or the kernel's cookie. One
 * above the rate is dropped: the client takes its connection for made and sends its bytes again, or the kernel sends its answer
 * again. The bare end and the first bytes may both pass before TCP has seen either, so the last ends are remembered.
 * Limits: an end whose entry was displaced meanwhile is counted twice.
 */
#pragma once

#include "penalised.bpf.h"
#include "police.bpf.h"
#include "resent.bpf.h"

#define COUNTED_ENDS 4096

/* As verdicts (TCX_NEXT is -1): the kernel makes the connection of the segment, */
#define STREAM_UNHELD  -3 /* and its bytes are to be ruled */
#define HANDSHAKE_ENDS -4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTED_ENDS);
	__type(key, __u32);
	__type(value, __u64);
} counted_ends SEC(".maps");

/* Of a connection's addresses, ports and first numbers. */
__noinline __u64 end_hash(const struct packet *p __arg_nonnull)
{
	__u32 zero = 0;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);

	return secret ? segment_hash(secret, p) | 1 : 0;
}

/* The segment ends a handshake by its numbers: whether its source may have one connection more. */
static __noinline bool end_take(struct front_context *front)
{
	__u64 hash, *place;
	__u32 at;

	if ((front->guard->flags & (FIEF_GUARD_POLICE | FIEF_GUARD_MONITOR)) != FIEF_GUARD_POLICE)
		return true;
	hash = end_hash(&front->packet);
	at = hash >> 32 & (COUNTED_ENDS - 1);
	place = bpf_map_lookup_elem(&counted_ends, &at);
	if (!place || *place == hash)
		return true;
	if (!connection_take(front))
		return false;
	*place = hash;
	return true;
}

/* Whether its source was refused a request since the handshake began. A function of its own to the verifier. */
static __noinline bool end_penalised(struct front_context *front)
{
	if (!source_penalised(front))
		return false;
	verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_SYN_PENALTY, false);
	return true;
}

/* The verdict, with the end of a handshake counted. */
static __always_inline int end_rule(struct front_context *front, int verdict)
{
	if (verdict != STREAM_UNHELD && verdict != HANDSHAKE_ENDS)
		return verdict;
	if (front->guard->flags & FIEF_GUARD_POLICE)
		source_prove(front); /* it has seen the kernel's answer */
	if (end_penalised(front) || !end_take(front))
		return TCX_DROP;
	return verdict == STREAM_UNHELD ? STREAM_ENDS : TCX_NEXT;
}
