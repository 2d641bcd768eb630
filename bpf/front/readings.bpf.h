/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Readings: the requests that servers may read from the same bytes, each ruled.
 *
 * Problem: servers read some things that RFC 9112 allows in different ways. HAProxy compares a path as it is written, where
 * file servers resolve it: "/secret/../in". And it takes a list for several hosts: "Host: a,b".
 * How: the request is ruled as if each reading were a request of its own, and the strictest verdict holds: a refusal before a
 * rate, a rate before none. Of equal verdicts the first reading's holds, which is the resolved path and the whole host. A
 * request in a body can be a reading too (ignored.bpf.h). Nearly all requests have one reading.
 * Limits: a rule that lets pass and names a path by its begin holds for a path that begins so both before and after it is
 * resolved. Of two rates the first one counts. A host of more than HOSTS_MOST parts cannot be compared.
 */
#pragma once

#include "unresolved.bpf.h"
#include "match.bpf.h"

#define READINGS_MOST 512 /* of one packet, but for those of its last request */

/* How strict a rule is that was found, or none. */
static __always_inline __u32 strictness(const struct fief_request *rule)
{
	if (rule->rule == FIEF_NO_ID)
		return 0;
	return rule->refuse ? 2 : !!rule->bucket;
}

static __always_inline void reading_take(struct fief_request *strictest, const struct fief_request *found, bool first)
{
	if (first || strictness(found) > strictness(strictest))
		*strictest = *found;
}

/* Puts the next part of a list of hosts in the place of the whole. */
static __always_inline void host_part(const struct request_bytes *bytes, struct front_request *request,
				      struct match_state *match)
{
	__u32 at = match->part, end = match->host.at + match->host.length;
	__u32 stop = find_byte(bytes, at, end, ','), length = stop - at;

	if (length && byte_at(bytes, stop - 1) == '.')
		length--;
	span_set(request, REQUEST_HOST, at, length, PLACE_STREAM);
	request->span[REQUEST_HOST].known |= SPAN_FOLD;
	match->part = stop + 1;
}

/* The request as it was parsed is the first reading. */
static __always_inline void readings_begin(struct front_request *request, struct match_state *match)
{
	match->host = request->span[REQUEST_HOST];
	match->part = match->host.at;
}

/* Takes what rule_find() has found for one reading, and puts the next one into `request`. Whether there is one. */
__noinline int reading_next(const struct request_bytes *bytes __arg_nonnull,
			    struct front_request *request __arg_nonnull, struct match_state *match __arg_nonnull)
{
	__u32 at = match->host.at, end = at + match->host.length;

	reading_take(&match->strictest, &match->best, !match->read);
	reading_take(&match->trial, &match->shadow, !match->read);
	match->read++;
	match->spent++;
	if (match->host.known && match->part <= end && find_byte(bytes, at, end, ',') < end) {
		host_part(bytes, request, match);
		return true;
	}
	if (!request->twofold)
		return false;
	request->twofold = 0;
	path_unresolved(bytes, request);
	request->span[REQUEST_HOST] = match->host;
	match->part = at;
	return true;
}

/*
 * Rules what was parsed in each way that servers read it. Inline: the call stack of what follows is as deep as the kernel lets
 * it be.
 */
static __always_inline void readings_rule(const struct request_bytes *bytes, struct front_request *request,
					  const struct fief_guard *guard, struct match_state *match)
{
	readings_begin(request, match);
	while (can_loop) {
		rule_find(bytes, request, guard, match);
		if (!reading_next(bytes, request, match))
			break;
	}
}

/* The requests of a packet are to be ruled. */
static __always_inline void readings_allow(void)
{
	struct match_state *match;
	__u32 zero = 0;

	match = bpf_map_lookup_elem(&matches, &zero);
	if (match)
		match->spent = 0;
}

/* Whether there were as many as one packet may have: what is left of it comes again. */
static __always_inline bool readings_spent(void)
{
	const struct match_state *match;
	__u32 zero = 0;

	match = bpf_map_lookup_elem(&matches, &zero);
	return !match || match->spent >= READINGS_MOST;
}

/* The verdict of all of them. */
static __always_inline void readings_end(struct match_state *match)
{
	match->best = match->strictest;
	match->shadow = match->trial;
}
