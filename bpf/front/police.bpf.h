/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Police: whether a SYN is answered.
 *
 *   penalty      its source was refused a request a short time ago, proven or not
 *   isolation    unproven, and its prefix sends too many; with a class for these, they are answered last
 *   rate         of the filter that its source matches
 *   own bucket   of a proven source; or the budget of all unproven ones
 *
 * Problem: a flood must cost little, hit its sender, and leave the clients alone, with spoofed sources too.
 * How: in this order; the first that says no decides, silently. Controls bound to a level of overload are not asked below
 * it. A control on trial is counted, and the next is asked.
 * Limits: of a listener on trial nothing is dropped, and only the first no is counted.
 */
#pragma once

#include "bucket.bpf.h"
#include "guard.bpf.h"
#include "load.bpf.h"
#include "newcomers.bpf.h"
#include "prefixes.bpf.h"
#include "sources.bpf.h"
#include "verdict.bpf.h"

/* What a SYN is judged by. */
struct police_view {
	struct fief_source *source; /* NULL: unproven */
	struct fief_bucket *bucket; /* the one that refused */
	__u32 level;
};

static __always_inline bool in_force(const struct police_view *view, __u32 level)
{
	return level <= view->level;
}

static __always_inline bool proven_take(struct front_context *front, struct fief_source *source)
{
	const struct fief_guard *guard = front->guard;

	return !guard->proven_interval_ns ||
	       cell_take(&source->arrival_ns, guard->proven_interval_ns, guard->proven_tolerance_ns, front->now);
}

/* `last`: its prefix is isolated, and is served when nobody else wants to be. */
static __always_inline bool unproven_take(struct front_context *front, struct police_view *view, bool last)
{
	const struct fief_guard *guard = front->guard;

	if (!guard->unproven_interval_ns || (!last && !in_force(view, guard->unproven_level)))
		return true;
	return newcomer_take(front, last);
}

/* Who has to return a cookie gets the class of those that are served last (isolated.bpf.h); nobody else can. */
static __always_inline bool served_last(struct front_context *front)
{
	return front->guard->flags & FIEF_GUARD_INTO && admit_in_force(front);
}

/* Whether the rate is for the port that the SYN comes from. */
static __always_inline bool rate_is_for(const struct fief_client *client, __u16 port)
{
	return !client->port_last || (port >= client->port_first && port <= client->port_last);
}

/* The rate of the client rule; on trial, it is counted here and lets pass. */
static __always_inline bool rule_take(struct front_context *front, struct police_view *view)
{
	const struct fief_client *client = front->client;
	struct fief_bucket *bucket;

	if (!client || !client->bucket || !in_force(view, client->level) ||
	    !rate_is_for(client, front->packet.source_port))
		return true;
	bucket = bucket_find(front->slot, client->bucket);
	if (!bucket || bucket_take(front, client->bucket, bucket))
		return true;
	if (client->monitor && !(front->guard->flags & FIEF_GUARD_MONITOR)) {
		verdict_count_bucket(front, client->container, client->rule, FIEF_SYN_RATE, true, bucket);
		return true;
	}
	view->bucket = bucket;
	return false;
}

static __always_inline enum fief_reason police_judge(struct front_context *front, struct police_view *view)
{
	const struct fief_guard *guard = front->guard;
	bool isolated;

	view->source = source_find(front);
	front->proven = view->source;
	if (view->source && view->source->penalty_until_ns > front->now)
		return FIEF_SYN_PENALTY;
	isolated = !view->source && guard->isolate_ns && in_force(view, guard->isolate_level) && prefix_isolated(front);
	if (isolated && !served_last(front))
		return FIEF_SYN_ISOLATED;
	if (!rule_take(front, view))
		return FIEF_SYN_RATE;
	if (view->source)
		return proven_take(front, view->source) ? FIEF_SYN_TAKEN : FIEF_SYN_ISOLATED;
	if (unproven_take(front, view, isolated))
		return FIEF_SYN_TAKEN;
	return isolated ? FIEF_SYN_ISOLATED : FIEF_SYN_UNPROVEN;
}

/* Judges a SYN and counts the verdict. */
static __noinline enum fief_reason police_syn(struct front_context *front, bool *drop)
{
	struct police_view view = {.level = load_level(front)};
	__u32 rule = front->client ? front->client->rule : FIEF_NO_ID;
	struct fief_ref container = client_container(front);
	enum fief_reason reason = police_judge(front, &view);
	bool monitored = front->guard->flags & FIEF_GUARD_MONITOR;

	*drop = reason != FIEF_SYN_TAKEN && !monitored;
	if (reason != FIEF_SYN_TAKEN)
		verdict_count_bucket(front, container, rule, reason, monitored, view.bucket);
	if (!*drop)
		verdict_count(front, container, rule, FIEF_SYN_TAKEN, false);
	else
		syn_count(front, true);
	return reason;
}
