/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Penalised: the first bytes of a source that was refused a request a short time ago.
 *
 * Problem: a client that is refused asks again at once, with cookies that it has gathered in advance.
 * How: its SYNs (police.bpf.h) and its cookies are worth nothing until its penalty ends. A client that was answered already, and
 * has not heard it, learns by a reset that there is no connection; all others wait as their SYNs do.
 * Limits: a penalty is forgotten with its source (sources.bpf.h).
 */
#pragma once

#include "answer.bpf.h"
#include "excepted.bpf.h"
#include "guard.bpf.h"
#include "sources.bpf.h"

/* The packet's source, where police asks about it; NULL: it is not proven, or nobody asks. */
static __always_inline struct fief_source *source_policed(const struct front_context *front)
{
	if ((front->guard->flags & (FIEF_GUARD_POLICE | FIEF_GUARD_MONITOR)) != FIEF_GUARD_POLICE)
		return NULL;
	return source_find(front);
}

/* Whether it was refused a request a short time ago. */
static __always_inline bool is_penalised(const struct front_context *front, const struct fief_source *source)
{
	return source && source->penalty_until_ns > front->now && !excepted(front, FIEF_EXCEPT_PENALTY);
}

/*
 * The first bytes on a cookie whose source was refused a request meanwhile. A client that was answered already, and has not heard
 * it, learns by a reset that there is no connection; all others wait as their SYNs do.
 */
static __noinline int penalised_rule(struct __sk_buff *skb, struct front_context *front)
{
	struct packet *p = &front->packet;
	struct segment *s;

	verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_SYN_PENALTY, false);
	if (!is_answered(p, front->now))
		return TCX_DROP;
	s = segment_begin(p->ack, packet_end(p), 0, TCP_ACK | TCP_RST);
	return s ? segment_answer(skb, p, s) : TCX_DROP;
}
