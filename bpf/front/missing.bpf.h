/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Missing: bytes before the first segment that has come, by the kernel's cookie (kernel_handshake.bpf.h).
 *
 * Problem: the size that tells of them is in doubt: the usual one is assumed, or a forged SYN has left another one.
 * How: a client repeats the earliest bytes that it has. One that sends from the same place once more begins there.
 */
#pragma once

#include "gather.bpf.h"
#include "kernel_handshake.bpf.h"
#include "keep.bpf.h"
#include "stray.bpf.h"
#include "tags.bpf.h"

/*
 * Bytes before the segment are missing, by the kernel's cookie. Where that is in doubt, a client that sends from here once
 * more begins here.
 */
static __always_inline int missing_look(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	const struct packet *p = &front->packet;

	if (half_lost(&stream->half))
		return no_connection(skb, front, unread_reason(FIEF_UNREAD_NO_ROOM, true));
	if (stream->doubted == p->seq && size_remembered(p)) {
		/* it may be another's, or the end of what the client has was lost (tail loss probe): once more */
		size_forget(p);
		return hold_acknowledge(skb, p, stream);
	}
	if (stream->doubted == p->seq) {
		stream->first = p->seq - 1;
		return bytes_gather(skb, p, stream);
	}
	stream->doubted = p->seq;
	return hold_keep(p, stream, 0, 0, 0) ? hold_acknowledge(skb, p, stream) : TCX_DROP;
}
