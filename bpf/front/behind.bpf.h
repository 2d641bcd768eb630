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
#include "rule.bpf.h"
#include "stream.bpf.h"

/*
 * Where more comes at once than is looked at in one go, the rest comes again; not within a request, which HAProxy answers when
 * its head is there, and then ends the connection if the body is not.
 */
#define BODY_STATES (CHUNK_STATES | FIEF_LABEL_INSIDE)

/* Behind a client hello: the next one, if its server may ask for it. */
static __always_inline __u32 flags_behind_hello(const struct fief_guard *guard, const struct ruling *ruling)
{
	if (!(guard->flags & FIEF_GUARD_NAMES) || !(ruling->hello & HELLO_RETRY))
		return FIEF_LABEL_PASSED;
	return FIEF_LABEL_TRACKED | FIEF_LABEL_TLS | (ruling->hello & HELLO_EARLY ? FIEF_LABEL_EARLY : 0);
}

/* Flags of the label, of FIEF_LABEL_VERDICT, for what stands behind the request that begins the stream. `first`: it is the
 * connection's first. */
__noinline __u32 flags_behind(const struct packet *p __arg_nonnull, const struct fief_guard *guard __arg_nonnull,
			      const struct ruling *ruling __arg_nonnull, bool first)
{
	__u32 flags = FIEF_LABEL_TRACKED;

	if (ruling->unread < FIEF_UNREADS)
		return FIEF_LABEL_PASSED;
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
	if (first)
		flags |= ruling->connect ? FIEF_LABEL_FIRST | FIEF_LABEL_CONNECT : FIEF_LABEL_FIRST;
	return flags;
}

/* How far behind its head what is to be ruled next begins. */
static __always_inline __u32 passed_over(const struct ruling *ruling)
{
	return ruling->inside ? 0 : ruling->body;
}

/* Whether these bytes, of which there is one at least, may begin HTTP/2. */
static __always_inline bool may_be_http2(const __u8 *bytes, __u32 length)
{
	return bytes[0] == 'P' && (length < 2 || bytes[1] == 'R') && (length < 3 || bytes[2] == 'I') &&
	       (length < 4 || bytes[3] == ' ');
}
