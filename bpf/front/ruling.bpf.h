/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ruling: what a verdict on a request says, how it is counted, and the verdict on what cannot be read.
 *
 * How: unreadable requests that no rule refuses are for the policy to refuse (fief_guard.unread_refused): a rule that would let
 * one pass may have read another request than the server will. That refusal is a reset, and draws no penalty.
 */
#pragma once

#include "load.bpf.h"
#include "match.bpf.h"
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
	__u32 paid; /* one more than the rule whose rate these bytes are counted in already; 0: none */
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

/* Whether the policy says that the request waits nowhere. */
static __always_inline bool is_unqueued(const struct ruling *ruling)
{
	return ruling->rule.rule != FIEF_NO_ID && ruling->rule.unqueued;
}

static __always_inline void asking_set(const struct front_context *front, struct ruling *out)
{
	out->by.now = front->now;
	out->by.slot = front->slot;
	out->by.listener = front->listener.index;
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

/* What a refused client gets: no client of TLS understands an answer of HTTP. */
static __always_inline __u32 ruling_refusal(const struct ruling *ruling)
{
	return ruling->rule.refusal >= FIEF_REFUSE_503 && ruling->tls ? FIEF_REFUSE_RESET : ruling->rule.refusal;
}

static __always_inline void unread_rule(struct front_context *front, struct ruling *out, enum fief_unread unread)
{
	asking_set(front, out);
	unread_take(&front->packet, front->guard, out, unread);
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
