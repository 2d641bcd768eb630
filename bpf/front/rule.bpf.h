/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rule: the verdict on a request.
 *
 *   parse (header, clienthello)  ->  match  ->  rate  ->  container, or a refusal with its penalty
 *
 * Problem: the verdict must be the same for every way to cut the request into segments.
 * How: the verdict falls when the head is complete, when it cannot become one, when its client has ended its side, or when
 * FIEF_HEADER_MAX bytes are there; not before. What it says stands in ruling.bpf.h, what becomes of the request in
 * decide.bpf.h.
 * Limits: a request that cannot be judged because of a failure of our own (no tables, no memory) passes in its client's class.
 */
#pragma once

#include "balancer.bpf.h"
#include "clienthello.bpf.h"
#include "decide.bpf.h"
#include "ignored.bpf.h"
#include "known.bpf.h"
#include "readings.bpf.h"
#include "ruling.bpf.h"
#include "version.bpf.h"

/* Which kind of what cannot be read the bytes are; FIEF_UNREADS: they can be read. */
static __always_inline enum fief_unread unread_kind(enum request_state state, const struct front_request *request,
						    __u32 how)
{
	switch (state) {
	case REQUEST_UNREAD:
		return request->unread;
	case REQUEST_COMPLETE:
		return FIEF_UNREADS;
	case REQUEST_NEED_MORE:
		return how & RULE_ENDED ? FIEF_UNREAD_MALFORMED : FIEF_UNREAD_TOO_LONG;
	default:
		return FIEF_UNREAD_MALFORMED;
	}
}

/*
 * Reads the request, and finds the rules that it meets: `matches` has them, and is told the policy's slot and the level
 * before. Negative: a failure of our own. A function of its own to the verifier, which then follows it once and not from
 * each place that it is called from.
 */
__noinline int request_find(const struct request_bytes *bytes __arg_nonnull, __u32 length, __u32 how,
			    const struct fief_guard *guard __arg_nonnull, struct ruling *out __arg_nonnull)
{
	struct fief_secret *secret;
	struct front_request *request;
	enum request_state state;
	struct match_state *match;
	__u32 zero = 0;

	if (!ruling_begin(guard, out))
		return -1;
	if (known_find(bytes, length, how, out))
		return REQUEST_DECIDED;
	secret = bpf_map_lookup_elem(&secrets, &zero);
	request = bpf_map_lookup_elem(&requests, &zero);
	if (!secret || !request)
		return -1;
	if (how & RULE_TRUSTED) {
		int skip = proxy_skip(bytes, length);

		if (skip == PROXY_NEED_MORE && !(how & (RULE_ENDED | RULE_CUT)))
			return REQUEST_NEED_MORE;
		if (skip < 0)
			how |= RULE_PROXY;
		if (skip > 0) {
			bytes = bpf_map_lookup_elem(&unwrapped, &zero);
			if (!bytes)
				return REQUEST_NEED_MORE;
			length -= skip;
			out->skipped = skip;
		}
	}
	out->tls = length && byte_at(bytes, 0) == TLS_HANDSHAKE;
	request_begin(request, guard->flags, secret->pattern, guard->name);
	state = request_parse(bytes, length, request);
	if (state == REQUEST_NEED_MORE && !(how & (RULE_ENDED | RULE_CUT)))
		return REQUEST_NEED_MORE;
	/* where a client says nothing and ends, there is nothing to be read */
	out->unread = length ? unread_kind(state, request, how) : FIEF_UNREADS;
	/* a hello whose first line some server without TLS takes for that of a request */
	if (out->tls && ends_with_version(bytes, 0, find_byte(bytes, 0, length, '\n')))
		out->unread = FIEF_UNREAD_OTHER;
	if (how & RULE_PROXY ||
	    (out->unread < FIEF_UNREADS && how & RULE_FIRST && !out->skipped && proxy_version(bytes, length)))
		out->unread = FIEF_UNREAD_PROXY;
	if (how & RULE_UPGRADE && out->unread < FIEF_UNREADS)
		out->unread = FIEF_UNREAD_UPGRADE;
	out->tracked = state == REQUEST_COMPLETE && request->tracked;
	out->head = request->head + out->skipped;
	out->body = request->body;
	out->upgrade = request->upgrade;
	out->connect = request->connect;
	out->chunked = request->chunked;
	out->hello = request->hello;
	out->inside =
	    request->body && !(guard->flags & FIEF_GUARD_BODIES_READ) && !is_last(request) && !request->bodied;
	known_said(out);
	/* not before: the stack is short */
	match = bpf_map_lookup_elem(&matches, &zero);
	if (!match)
		return -1;
	match->read = 0;
	readings_rule(bytes, request, guard, match);
	readings_end(match);
	known_keep(bytes);
	return REQUEST_DECIDED;
}

/*
 * Rules the request that begins with the first of `length` bytes. REQUEST_NEED_MORE: they do not suffice; else
 * REQUEST_DECIDED: `out` says what is to be done, counted and, if refused, punished already. out->by.paid holds for this request only.
 * Inline: the call stack of what follows is as deep as the kernel lets it be.
 */
static __always_inline int request_rule(struct front_context *front, const struct request_bytes *bytes, __u32 length,
					__u32 how, struct ruling *out)
{
	int found;

	if (length >= FIEF_HEADER_MAX)
		how |= RULE_CUT;
	how = loop_from(how);
	if (how & RULE_FIRST && proxy_trusted(&front->packet, front->guard))
		how |= RULE_TRUSTED;
	asking_set(front, out);
	found = request_find(bytes, length, loop_from(how), front->guard, out);
	if (found != REQUEST_NEED_MORE)
		found_rule(&front->packet, front->guard, found, out);
	out->by.paid = 0;
	if (found == REQUEST_NEED_MORE)
		return REQUEST_NEED_MORE;
	front->queued |= !is_unqueued(out);
	return REQUEST_DECIDED;
}
