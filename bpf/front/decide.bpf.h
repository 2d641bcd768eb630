/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Decide: what becomes of a request, by the rules that it meets.
 *
 *   refused by a rule    above a rate       within it              no rule
 *   its penalty          as refused         the rule's container   its client's
 *
 * How: the rules are asked about the readable part of what cannot be read too, and one that refuses it holds.
 */
#pragma once

#include "bucket.bpf.h"
#include "excepted.bpf.h"
#include "ruling.bpf.h"
#include "sources.bpf.h"

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

/* Whether the rate has room for the request. What came before, in vain, has its place there; the CPU's time is what it is now. */
static __always_inline bool rate_has_room(const struct packet *p, const struct fief_request *rule,
					  const struct asking *by, struct fief_bucket *bucket)
{
	if (by->paid == rule->rule + 1 && bucket->kind != FIEF_BUCKET_CPU)
		return true;
	return bucket_take_one(p, by->slot, rule->bucket, bucket, by->now);
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
		if (found && rate_has_room(p, rule, by, found))
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
	if (out->refused && out->rule.penalty_ns &&
	    !except_find(p, out->by.slot, out->by.listener, FIEF_EXCEPT_PENALTY))
		source_penalise(p, out->by.now, out->rule.penalty_ns);
}

/* Whether a rule decides about what cannot be read: one that refuses does, another one where the kind passes. */
static __always_inline bool rule_decides(const struct fief_guard *guard, const struct match_state *match,
					 enum fief_unread unread)
{
	if (match->best.rule != FIEF_NO_ID)
		return match->best.refuse || !unread_refused(guard, unread);
	return guard->flags & FIEF_GUARD_MONITOR && match->shadow.rule != FIEF_NO_ID && match->shadow.refuse;
}

/*
 * Rules the request by what request_find() or inside_find() has found in it. A function of its own to the
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
