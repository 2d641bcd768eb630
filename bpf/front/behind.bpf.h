/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Behind: what stands behind a request that may pass.
 *
 * A request, or the first line of a body in chunks. What is ruled no longer: TLS, what the policy lets pass unread, where
 * later requests are not ruled; and what is counted as passed unread: behind a request for another protocol, and behind a
 * body whose end is not known.
 */
#pragma once

#include "chunks.bpf.h"
#include "rule.bpf.h"
#include "stream.bpf.h"

/* Flags of the label, of FIEF_LABEL_VERDICT, for what stands behind the request that begins the stream. 0: not ruled. */
static __noinline __u32 flags_behind(struct front_context *front, const struct stream *stream)
{
	const struct ruling *ruling = &stream->ruling;
	__u32 flags = FIEF_LABEL_TRACKED;

	if (!(front->guard->flags & FIEF_GUARD_LATER) || ruling->unread < FIEF_UNREADS || ruling->tls)
		return 0;
	if (ruling->upgrade) {
		verdict_count(front, ruling->container, FIEF_NO_ID, FIEF_PASSED_UPGRADE, false);
		return 0;
	}
	if (!ruling->tracked && !ruling->chunked) {
		verdict_count(front, ruling->container, FIEF_NO_ID, FIEF_PASSED_OTHER, false);
		return 0;
	}
	if (ruling->chunked)
		flags |= FIEF_LABEL_CHUNK;
	return flags;
}
