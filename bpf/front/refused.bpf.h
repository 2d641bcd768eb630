/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Refused: the begin of a request that was refused.
 *
 * Problem: its client may repeat the last piece as often as it likes.
 * How: a refused head stays in its place (halves.bpf.h), with its refusal, until another one wants that, and is answered without
 * a reading. Where the refusal is silence, a rate may let the repetition pass: it is read again, but not more often than a client
 * has to repeat it.
 */
#pragma once

#include "halves.bpf.h"

/* What the stream has of the half is refused: nothing of it is read again. */
__noinline int half_refuse(const struct packet *p __arg_nonnull, const struct stream *stream __arg_nonnull)
{
	__u32 at = stream->held;
	struct half *half = bpf_map_lookup_elem(&halves, &at);

	if (!half || !half_is(half, p, stream->cookie) || !half_lock(half))
		return 0;
	half->retry_after_s = stream->ruling.rule.retry_after_s;
	half->refusal = ruling_refusal(&stream->ruling);
	half->refused_ns = bpf_ktime_get_ns();
	half_unlock(half);
	return 0;
}

/*
 * The same of a connection's first head, which the queue refuses, if it came in pieces. By its name: by then something else stands in the
 * stream, or it has waited.
 */
__noinline int half_refuse_first(const struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull)
{
	__u32 cookie = p->ack - 1;

	if (!half_name(p, cookie, &stream->half))
		return 0;
	stream->cookie = cookie;
	stream->held = half_find(&stream->half);
	return half_refuse(p, stream);
}

/* Whether the half was refused, and is not to be asked about again. */
static __always_inline bool is_refused(const struct half *half)
{
	if (!half->refused_ns)
		return false;
	return half->refusal != FIEF_REFUSE_DROP || bpf_ktime_get_ns() - half->refused_ns < HALF_DROPPED_NS;
}

/* The packet gets what the half got. */
static __always_inline void refused_again(const struct half *half, struct stream *stream)
{
	stream->ruling.rule.refusal = half->refusal;
	stream->ruling.rule.retry_after_s = half->retry_after_s;
	stream->ruling.by.now = bpf_ktime_get_ns();
	stream->ruling.tls = false;
}
