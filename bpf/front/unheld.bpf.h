/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Unheld: bytes that make a connection of the kernel's own cookie, while connections are not held.
 *
 * Problem: below the level of admission, and where a guard only watches, the kernel completes a handshake from its cookie with
 * the client's first bytes, which reach the server at once.
 * How: bytes with a good cookie are ruled as those of a request socket (requested.bpf.h); nothing is held. A later segment passes
 * without its bytes, and its client sends them again: packets of one batch pass here before the first of them has reached TCP, and
 * its socket would keep these bytes, unruled, until those before them have come. Where there will be no socket, the kernel answers
 * the bare segment by a reset, as it would the whole one. A cookie whose connection is known to have been here makes no other one.
 */
#pragma once

#include "admitted.bpf.h"
#include "cut.bpf.h"
#include "kernel_cookie.bpf.h"
#include "requested.bpf.h"

/* TCX_NEXT: it is of no handshake of the kernel's. */
__noinline int unheld_look(struct __sk_buff *skb, const struct packet *p __arg_nonnull,
			   struct stream *stream __arg_nonnull, bool ruled)
{
	if (!kernel_cookie_check(p))
		return TCX_NEXT;
	stream->first = p->seq - 1;
	if (!ruled || !p->payload_length)
		return HANDSHAKE_ENDS;
	return unheld_begin(skb, p, stream);
}

/*
 * A segment without a socket, while connections are not held: bytes that make one of the kernel's cookie are ruled. A verdict,
 * STREAM_UNHELD, or HANDSHAKE_ENDS.
 */
static __always_inline int unheld_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	struct packet *p = &front->packet;
	bool ruled = requests_ruled(front);
	int verdict;

	if (p->odd && ruled)
		return shape_rule(front);
	verdict = unheld_look(skb, p, stream, ruled);
	if (verdict != TCX_NEXT && !(front->guard->flags & FIEF_GUARD_MONITOR) && cookie_spent(p, p->seq))
		return count_drop(front, FIEF_ACK_BAD);
	if (verdict == TCX_NEXT && ruled && !is_bare(p))
		return packet_strip(skb, front, stream);
	return requested_verdict(front, verdict);
}
