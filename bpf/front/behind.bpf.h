/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Behind: what stands behind a request that may pass.
 *
 * A request, or the first line of a body in chunks. What is ruled no longer:
 * TLS, what the policy lets pass unread, where later requests are not ruled;
 * and what is counted as passed unread: behind a body whose end is not known.
 * Behind a request for another protocol (Upgrade, CONNECT) there is no telling
 * whether the server agrees; many take no notice and go on with HTTP. So what
 * can be a request is ruled, and what begins as no server lets a request begin,
 * passes for good: WebSocket does, and TLS. A server that has not agreed ends
 * the connection upon it. Limits: another protocol whose first byte may begin a
 * request is ruled as one, and unread where it is none.
 */
#pragma once

#include "chunks.bpf.h"
#include "rule.bpf.h"
#include "stream.bpf.h"

/* Flags of the label, of FIEF_LABEL_VERDICT, for what stands behind the request
 * that begins the stream. 0: not ruled. */
static __noinline __u32 flags_behind(struct front_context *front, const struct stream *stream)
{
	const struct ruling *ruling = &stream->ruling;
	__u32 flags = FIEF_LABEL_TRACKED;

	if (!(front->guard->flags & FIEF_GUARD_LATER) || ruling->unread < FIEF_UNREADS || ruling->tls)
		return 0;
	if (!ruling->tracked && !ruling->chunked && !ruling->upgrade) {
		verdict_count(front, ruling->container, FIEF_NO_ID, FIEF_PASSED_OTHER, false);
		return 0;
	}
	if (ruling->chunked)
		flags |= FIEF_LABEL_CHUNK;
	if (ruling->upgrade)
		flags |= FIEF_LABEL_UPGRADE;
	return flags;
}

/* Whether a server refuses what begins so, and ends the connection, if it takes
 * it for a request at all. */
static __always_inline bool is_foreign(__u8 first)
{
	if (first >= 0x80)
		return first != 0x85 && first != 0xa0;
	return first < '\t' || (first > '\r' && first < 0x1c);
}
