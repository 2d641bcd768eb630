/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Behind: what follows a request that may pass.
 *
 *   a request, the first line of a body in chunks, a record of TLS    is ruled
 *   encrypted bytes, bytes that the policy lets pass unread,          are ruled no longer
 *   later requests where these are not ruled
 *   bytes after a body whose end is not known                         are counted as passed unread
 *
 * After a request for another protocol (Upgrade, CONNECT) the door rules bytes as HTTP until the server has agreed
 * (confirmed.bpf.h); bytes that are no HTTP are unread (`upgrade`). A client has to wait for the answer (RFC 9110, 7.8).
 * Limits: HTTP/2 is recognized by its first bytes, which every client of it sends.
 */
#pragma once

#include "chunks.bpf.h"
#include "confirmed.bpf.h"
#include "records.bpf.h"
#include "ruling.bpf.h"
#include "stream.bpf.h"
#include "tracked.bpf.h"

/*
 * Where more comes at once than is looked at in one go, the rest comes again; not within a request, which HAProxy answers when
 * its head is there, and then ends the connection if the body is not.
 */
#define BODY_STATES (CHUNK_STATES | FIEF_LABEL_INSIDE)

/* Behind a client hello: the next one, if its server may ask for it. */
static __always_inline __u32 flags_behind_hello(const struct fief_guard *guard, const struct ruling *ruling)
{
	__u32 turns = is_unqueued(ruling) ? 0 : FIEF_LABEL_TURNS;

	if (!(guard->flags & FIEF_GUARD_NAMES) || !(ruling->hello & HELLO_RETRY))
		return FIEF_LABEL_PASSED | turns;
	return FIEF_LABEL_TRACKED | FIEF_LABEL_TLS | turns | (ruling->hello & HELLO_EARLY ? FIEF_LABEL_EARLY : 0);
}

/* Flags of the label, of FIEF_LABEL_VERDICT, for what stands behind the request that begins the stream. `first`: it is the
 * connection's first. */
__noinline __u32 flags_behind(const struct packet *p __arg_nonnull, const struct fief_guard *guard __arg_nonnull,
			      const struct ruling *ruling __arg_nonnull, bool first)
{
	__u32 flags = FIEF_LABEL_TRACKED;

	if (ruling->unread < FIEF_UNREADS)
		return FIEF_LABEL_PASSED | (is_unqueued(ruling) ? 0 : FIEF_LABEL_TURNS);
	if (ruling->tls)
		return flags_behind_hello(guard, ruling);
	if (!(guard->flags & FIEF_GUARD_LATER))
		return FIEF_LABEL_PASSED;
	if (!ruling->tracked && !ruling->chunked && !ruling->upgrade) {
		ruling_count(p, &ruling->by, ruling->container, FIEF_NO_ID, FIEF_PASSED_OTHER, false, NULL);
		return FIEF_LABEL_PASSED;
	}
	if (ruling->chunked)
		flags |= FIEF_LABEL_CHUNK;
	if (ruling->inside)
		flags |= FIEF_LABEL_INSIDE;
	if (!ruling->upgrade)
		return flags;
	flags |= FIEF_LABEL_UPGRADE;
	if (first) {
		upgrade_note();
		flags |= ruling->connect ? FIEF_LABEL_FIRST | FIEF_LABEL_CONNECT : FIEF_LABEL_FIRST;
	}
	return flags;
}

/*
 * Takes as much off a body as is passed by at once. How much; `flags`, of a label, tell afterwards whether there is more.
 */
static __always_inline __u32 body_pass(__u64 *body, __u32 *flags)
{
	__u32 passed = *body > BODY_MAX ? BODY_MAX : *body;

	*body -= passed;
	*flags &= ~(FIEF_LABEL_INSIDE | FIEF_LABEL_BODY);
	if (*body)
		*flags |= FIEF_LABEL_BODY;
	return passed;
}

/* The same behind a head: how far behind it what is to be ruled next begins. A body that could be a request is ruled. */
static __always_inline __u32 passed_over(const struct ruling *ruling, __u64 *body, __u32 *flags)
{
	*body = ruling->body;
	return ruling->inside ? 0 : body_pass(body, flags);
}

/* Beside these flags for what stands at `next`, behind a request: the queue counts it until it is whole (late.bpf.h). */
static __always_inline __u32 flags_owing(const struct front_context *front, const struct ruling *ruling, __u32 flags,
					 __u32 next)
{
	const struct packet *p = &front->packet;

	if (!front->guard->queue || is_unqueued(ruling) || !(flags & FIEF_LABEL_TRACKED))
		return 0;
	if (!(flags & (BODY_STATES | FIEF_LABEL_BODY)) && !is_behind(next, p->seq + p->payload_length))
		return 0;
	return FIEF_LABEL_OWES;
}

/* Whether these bytes, of which there is one at least, may begin HTTP/2. */
static __always_inline bool may_be_http2(const __u8 *bytes, __u32 length)
{
	return bytes[0] == 'P' && (length < 2 || bytes[1] == 'R') && (length < 3 || bytes[2] == 'I') &&
	       (length < 4 || bytes[3] == ' ');
}

/* Notes where the next request begins, behind the one whose head has `head` bytes. */
static __always_inline int later_follow(struct front_context *front, struct connection *on, struct stream *stream)
{
	struct ruling *ruling = &stream->ruling;
	__u32 flags = flags_behind(&front->packet, front->guard, ruling, is_begin(on));
	__u64 body;

	if (ruling->unread == FIEF_UNREADS)
		stream->read = on->label->next + ruling->head;
	if (!(flags & FIEF_LABEL_TRACKED))
		return later_untrack(front, on->label, flags & FIEF_LABEL_TURNS);
	on->label->next = stream->read + passed_over(ruling, &body, &flags);
	flags |= flags_owing(front, ruling, flags, on->label->next);
	on->label->answer_at = on->tcp->write_seq;
	on->label->body = body;
	__sync_fetch_and_and(&on->label->flags, ~(FIEF_LABEL_ASKED | FIEF_LABEL_TLS | FIEF_LABEL_EARLY |
						  FIEF_LABEL_HALF | FIEF_LABEL_OWES));
	__sync_fetch_and_or(&on->label->flags, flags);
	return LATER_AGAIN;
}
