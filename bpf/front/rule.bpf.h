/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rule: the verdict on a request.
 *
 *   parse (header, clienthello)  ->  match  ->  rate  ->  container, or a refusal with its penalty
 *
 * Problem: the verdict must be the same for every way to cut the request into segments.
 * How: the verdict falls when the head is complete, when it cannot become one, when its client has ended its side, or when
 * FIEF_HEADER_MAX bytes are there; not before. The rules are always asked about the readable part, and one that refuses it
 * holds. Unreadable requests that no rule refuses are for the policy to refuse (fief_guard.unread_refused): a rule that would
 * let one pass may have read another request than the server will. That refusal is a reset, and draws no penalty.
 * Limits: a request that cannot be judged because of a failure of our own (no tables, no memory) passes in its client's class.
 */
#pragma once

#include "bucket.bpf.h"
#include "ignored.bpf.h"
#include "load.bpf.h"
#include "proxy.bpf.h"
#include "readings.bpf.h"
#include "sources.bpf.h"
#include "verdict.bpf.h"

/* Of request_rule(). */
#define RULE_ENDED   1u	 /* the client sends no more */
#define RULE_FIRST   2u	 /* the bytes begin the connection */
#define RULE_CUT     4u	 /* of its own: no more is looked at */
#define RULE_PROXY   8u	 /* of its own: a PROXY head that cannot be read */
#define RULE_TRUSTED 16u /* of its own: a PROXY head is skipped */
#define RULE_UPGRADE 32u /* the request before asked for another protocol */

/*
 * Of the connection that asks: what the rules need of `front`. Here, since the verifier follows those that it gives no
 * pointers to but plain memory once, and not from each place that they are called from.
 */
struct asking {
	__u64 now;
	__u32 slot;
	__u32 listener;
	struct fief_ref container; /* as long as no rule says otherwise */
	bool isolated;
};

struct ruling {
	struct asking by;
	struct fief_request rule;  /* rule FIEF_NO_ID: none matched */
	struct fief_ref container; /* whose the connection is */
	enum fief_reason reason;
	bool refused;		 /* as rule.refusal says; never on trial */
	enum fief_unread unread; /* why it cannot be read; FIEF_UNREADS: it can */
	__u32 skipped;		 /* bytes of a PROXY head before the request */
	bool tls;		 /* its client understands no answer of HTTP */
	__u32 hello;		 /* of HELLO_* */
	bool tracked;
	bool upgrade; /* it asks for another protocol, or is CONNECT: HTTP/1 ends once the server agrees */
	bool connect; /* it is CONNECT */
	bool chunked; /* the length of its body is not known before: `body` is 0 */
	bool inside;  /* servers that do not read its body take that for the next request */
	__u32 head;   /* if tracked, the next request begins head + body bytes behind
                   the first byte */
	__u64 body;
};

static __always_inline void asking_set(const struct front_context *front, struct ruling *out)
{
	out->by.now = front->now;
	out->by.slot = front->slot;
	out->by.listener = front->listener->index;
	out->by.container = client_container(front);
	out->by.isolated = front->isolated;
}

/* Counts a verdict as verdict_count_bucket() does. */
static __always_inline void ruling_count(const struct packet *p, const struct asking *by, struct fief_ref container,
					 __u32 rule, enum fief_reason reason, bool monitored,
					 struct fief_bucket *bucket)
{
	struct fief_verdict_key key = {
	    .container = container,
	    .rule = rule,
	    .listener = by->listener,
	    .reason = reason,
	    .monitored = monitored,
	};

	verdict_tell(p, &key, bucket, by->now);
}

static __always_inline struct fief_ref rule_container(const struct asking *by, const struct fief_request *rule)
{
	return rule->container.id == FIEF_NO_ID || by->isolated ? by->container : rule->container;
}

/* Apart from rule_judge(), whose stack is as deep as the kernel lets it be. `reason`: on trial, with bit 8. */
static __noinline void judged_count(const struct packet *p, const struct fief_request *rule, const struct asking *by,
				    __u32 reason, struct fief_bucket *bucket)
{
	ruling_count(p, by, rule_container(by, rule), rule->rule, reason & 0xff, reason >> 8, bucket);
}

/* What a rule makes of a request that it matches, counted. */
__noinline int rule_judge(const struct packet *p __arg_nonnull, const struct fief_request *rule __arg_nonnull,
			  const struct asking *by __arg_nonnull, bool trial)
{
	enum fief_reason reason = FIEF_REQUEST_RULE;
	struct fief_bucket *found = NULL;

	if (rule->refuse) {
		reason = FIEF_REQUEST_REFUSED;
	} else {
		found = bucket_find(by->slot, rule->bucket);
		if (found && bucket_take_one(p, by->slot, rule->bucket, found, by->now))
			found = NULL;
		if (found)
			reason = found->kind == FIEF_BUCKET_CPU ? FIEF_REQUEST_CPU : FIEF_REQUEST_RATE;
	}
	judged_count(p, rule, by, reason | trial << 8, found);
	return reason;
}

/* No rule decides: the class of its client. */
static __always_inline void client_rule(const struct packet *p, struct ruling *out, enum fief_reason reason)
{
	out->rule.rule = FIEF_NO_ID;
	out->container = out->by.container;
	out->reason = reason;
	out->refused = false;
	ruling_count(p, &out->by, out->container, FIEF_NO_ID, reason, false, NULL);
}

static __always_inline void request_judge(const struct packet *p, struct ruling *out)
{
	out->container = rule_container(&out->by, &out->rule);
	out->reason = rule_judge(p, &out->rule, &out->by, false);
	out->refused = out->reason != FIEF_REQUEST_RULE;
	if (out->refused)
		source_penalise(p, out->by.now, out->rule.penalty_ns);
}

/* What cannot be read, and what no rule refuses: it is reset, or passes into the class of its client. */
__noinline int unread_take(const struct packet *p __arg_nonnull, const struct fief_guard *guard __arg_nonnull,
			   struct ruling *out __arg_nonnull, enum fief_unread unread)
{
	bool refused = unread_refused(guard, unread), watched = guard->flags & FIEF_GUARD_MONITOR;

	out->rule.rule = FIEF_NO_ID;
	out->rule.refusal = FIEF_REFUSE_RESET;
	out->container = out->by.container;
	out->unread = unread;
	out->reason = unread_reason(unread, refused);
	out->refused = refused && !watched;
	ruling_count(p, &out->by, out->container, FIEF_NO_ID, out->reason, refused && watched, NULL);
	return 0;
}

static __always_inline void unread_rule(struct front_context *front, struct ruling *out, enum fief_unread unread)
{
	asking_set(front, out);
	unread_take(&front->packet, front->guard, out, unread);
}

/* Whether a rule decides about what cannot be read: one that refuses does, another one where the kind passes. */
static __always_inline bool rule_decides(const struct fief_guard *guard, const struct match_state *match,
					 enum fief_unread unread)
{
	if (match->best.rule != FIEF_NO_ID)
		return match->best.refuse || !unread_refused(guard, unread);
	return guard->flags & FIEF_GUARD_MONITOR && match->shadow.rule != FIEF_NO_ID && match->shadow.refuse;
}

/* Which kind of what cannot be read the bytes are; FIEF_UNREADS: they can be read. */
static __always_inline enum fief_unread unread_kind(enum request_state state, const struct front_request *request,
						    __u32 how)
{
	switch (state) {
	case REQUEST_UNREAD:
		return request->unread;
	case REQUEST_COMPLETE: /* where the next request begins must be known */
		return request->body > BODY_MAX ? FIEF_UNREAD_OTHER : FIEF_UNREADS;
	case REQUEST_NEED_MORE:
		return how & RULE_ENDED ? FIEF_UNREAD_MALFORMED : FIEF_UNREAD_TOO_LONG;
	default:
		return FIEF_UNREAD_MALFORMED;
	}
}

/* Prepares `out` and what the rules are matched with. NULL: no rule is to be asked. */
static __noinline struct match_state *ruling_begin(const struct fief_guard *guard, struct ruling *out)
{
	struct match_state *match;
	__u32 zero = 0;

	out->rule.rule = FIEF_NO_ID;
	out->unread = FIEF_UNREADS;
	out->skipped = 0;
	out->tls = false;
	out->tracked = false;
	out->upgrade = false;
	out->connect = false;
	out->chunked = false;
	out->inside = false;
	out->hello = 0;
	out->head = 0;
	out->body = 0;
	match = bpf_map_lookup_elem(&matches, &zero);
	if (!match || !guard->shapes)
		return NULL;
	match->slot = out->by.slot;
	match->level = load_level_of(out->by.listener);
	return match;
}

/* Whether the request that was parsed of a body of `body` bytes is all of it; FIEF_UNREADS: it is, else why it is unread. */
static __always_inline __u32 inside_said(const struct front_request *request, __u32 state, __u32 body)
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
	__u32 body = out->body, zero = 0;
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

	secret = bpf_map_lookup_elem(&secrets, &zero);
	request = bpf_map_lookup_elem(&requests, &zero);
	match = ruling_begin(guard, out);
	if (!secret || !request || !match)
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
	if (how & RULE_PROXY ||
	    (out->unread < FIEF_UNREADS && how & RULE_FIRST && !out->skipped && is_proxy(bytes, length)))
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
	out->inside = request->body && !is_last(request) && !has_body(bytes, request);
	match->read = 0;
	readings_rule(bytes, request, guard, match);
	readings_end(match);
	return REQUEST_DECIDED;
}

/*
 * What becomes of the request, after request_find() or inside_find() has said so much. A function of its own to the
 * verifier, as these are.
 */
__noinline int found_rule(const struct packet *p __arg_nonnull, const struct fief_guard *guard __arg_nonnull, int found,
			  struct ruling *out __arg_nonnull)
{
	struct match_state *match;
	__u32 zero = 0;

	match = bpf_map_lookup_elem(&matches, &zero);
	if (!match || found < 0) {
		client_rule(p, out, FIEF_REQUEST_CLIENT);
		return REQUEST_DECIDED;
	}
	if (match->shadow.rule != FIEF_NO_ID)
		rule_judge(p, &match->shadow, &out->by, true);
	if (out->unread < FIEF_UNREADS && !rule_decides(guard, match, out->unread)) {
		unread_take(p, guard, out, out->unread);
		return REQUEST_DECIDED;
	}
	if (match->best.rule == FIEF_NO_ID) {
		client_rule(p, out, FIEF_REQUEST_CLIENT);
		return REQUEST_DECIDED;
	}
	out->rule = match->best;
	request_judge(p, out);
	return REQUEST_DECIDED;
}

/*
 * Rules the request that begins with the first of `length` bytes. REQUEST_NEED_MORE: they do not suffice; else
 * REQUEST_DECIDED: `out` says what is to be done, counted and, if refused, punished already. Inline: the call stack of what
 * follows is as deep as the kernel lets it be.
 */
static __always_inline int request_rule(struct front_context *front, const struct request_bytes *bytes, __u32 length,
					__u32 how, struct ruling *out)
{
	int found;

	if (length >= FIEF_HEADER_MAX)
		how |= RULE_CUT;
	if (how & RULE_FIRST && proxy_trusted(&front->packet, front->guard))
		how |= RULE_TRUSTED;
	asking_set(front, out);
	found = request_find(bytes, length, how, front->guard, out);
	if (found == REQUEST_NEED_MORE)
		return REQUEST_NEED_MORE;
	found_rule(&front->packet, front->guard, found, out);
	return REQUEST_DECIDED;
}

/*
 * Rules the body that begins with the first of `length` bytes as request_rule() does a request. REQUEST_COMPLETE: it is a
 * body to everybody.
 */
static __always_inline int inside_rule(struct front_context *front, const struct request_bytes *bytes, __u32 length,
				       __u32 body, __u32 how, struct ruling *out)
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
	return REQUEST_DECIDED;
}
