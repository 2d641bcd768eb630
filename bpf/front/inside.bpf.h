/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Inside: the rules are asked about a body that some servers take for the next request (ignored.bpf.h).
 *
 * How: the request in it is ruled as any other; its head must end where the body does, else it is unread.
 */
#pragma once

#include "decide.bpf.h"
#include "ignored.bpf.h"
#include "readings.bpf.h"
#include "ruling.bpf.h"

/* Whether the request that was parsed of a body of `body` bytes is all of it; FIEF_UNREADS: it is, else why it is unread. */
static __always_inline __u32 inside_said(const struct front_request *request, __u32 state, __u64 body)
{
	if (state == REQUEST_UNREAD)
		return request->unread;
	if (state == REQUEST_NEED_MORE)
		return FIEF_UNREAD_MALFORMED;
	return request->head != body || request->body || request->chunked || request->upgrade ? FIEF_UNREAD_OTHER
											      : FIEF_UNREADS;
}

/*
 * Reads what there is of a body that some servers take for the next request, of out->body bytes, and finds the rules that
 * the request in it meets, by all of its readings. REQUEST_COMPLETE: there is none in it. REQUEST_NEED_MORE: its head has
 * not come to its end, which must not pass before it is ruled.
 */
__noinline int inside_find(const struct request_bytes *bytes __arg_nonnull, __u32 length, __u32 how,
			   const struct fief_guard *guard __arg_nonnull, struct ruling *out __arg_nonnull)
{
	struct front_request *request;
	__u64 body = out->body;
	__u32 zero = 0;
	struct fief_secret *secret;
	struct match_state *match;
	bool whole;
	int state;

	secret = bpf_map_lookup_elem(&secrets, &zero);
	request = bpf_map_lookup_elem(&requests, &zero);
	match = ruling_begin(guard, out);
	out->body = body;
	if (!secret || !request || !match)
		return -1;
	whole = body <= length || how & (RULE_ENDED | RULE_CUT);
	if (body < length)
		length = body;
	state = inside_state(bytes, length, whole);
	if (state != REQUEST_DECIDED)
		return state;
	request_begin(request, guard->flags, secret->pattern, guard->name);
	state = header_parse(bytes, length, request);
	if (state == REQUEST_NEED_MORE && !whole)
		return REQUEST_NEED_MORE;
	match->read = 0;
	readings_rule(bytes, request, guard, match);
	readings_end(match);
	out->unread = inside_said(request, state, body);
	return REQUEST_DECIDED;
}

/*
 * Rules the body that begins with the first of `length` bytes as request_rule() does a request. REQUEST_COMPLETE: it is a
 * body to everybody.
 */
static __always_inline int inside_rule(struct front_context *front, const struct request_bytes *bytes, __u32 length,
				       __u64 body, __u32 how, struct ruling *out)
{
	int found;

	if (length >= FIEF_HEADER_MAX)
		how |= RULE_CUT;
	asking_set(front, out);
	out->body = body;
	found = inside_find(bytes, length, how, front->guard, out);
	if (found == REQUEST_NEED_MORE || found == REQUEST_COMPLETE)
		return found;
	found_rule(&front->packet, front->guard, found, out);
	front->queued |= !is_unqueued(out);
	return REQUEST_DECIDED;
}
