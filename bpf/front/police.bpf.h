/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Police: whether a SYN is answered.
 *
 *   penalty      its source was refused a request a short time ago, proven or not
 *   isolation    unproven, and its prefix sends too many; with a class for these, they are answered last
 *                (some sources have neither of both, see excepted.bpf.h)
 *   rate         of the filter that its source matches
 *   own bucket   of a proven source; or the budget of all unproven ones
 *
 * Problem: a flood must cost little, hit its sender, and leave the clients alone, with spoofed sources too.
 * How: the controls are asked in this order; the first refusal decides, silently. Controls bound to a level of overload are not
 * asked below it. A control on trial is counted, and the next is asked.
 * A SYN may be forged in a proven source's name. So the rates of a proven source count its connections, by the first bytes that
 * come with a cookie, or by the handshake's end (ends.bpf.h). A SYN is refused while these have reached the rate. SYNs have the
 * same rate; those above it are charged to the budget of the unproven sources. What one of these refuses uses up no rate of a rule: that
 * is only looked at first, and used when all others have let the SYN pass.
 * Limits: at a listener on trial nothing is dropped, and only the first refusal is counted. Where connections pass through
 * (`forward`) only SYNs are counted.
 */
#pragma once

#include "bucket.bpf.h"
#include "excepted.bpf.h"
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
	struct fief_bucket *later;  /* the one that was only looked at so far */
	__u32 level;
	enum fief_reason beyond; /* of a proven source's SYN that is above its own rate; FIEF_REASON_NONE: it is not */
};

static __always_inline bool in_force(const struct police_view *view, __u32 level)
{
	return level <= view->level;
}

/* Whether a SYN costs its alleged source nothing, and the connection does. */
static __always_inline bool connections_count(struct front_context *front)
{
	return front->proven && !(front->guard->flags & (FIEF_GUARD_FORWARD | FIEF_GUARD_MONITOR));
}

static __always_inline void verdict_count_bucket(struct front_context *front, struct fief_ref container, __u32 rule,
						 enum fief_reason reason, bool monitored, struct fief_bucket *bucket)
{
	verdict_note(front, container, rule, reason | monitored << 8, bucket);
}

static __always_inline bool proven_take(struct front_context *front, struct police_view *view)
{
	struct fief_source *source = view->source;
	const struct fief_guard *guard = front->guard;
	__u64 interval = guard->proven_interval_ns, tolerance = guard->proven_tolerance_ns;

	if (!interval)
		return true;
	if (!connections_count(front))
		return cell_take(&source->arrival_ns, interval, tolerance, front->now);
	if (cell_early(&source->arrival_ns, tolerance, front->now))
		return false;
	if (!cell_take(&source->syn_arrival_ns, interval, tolerance, front->now))
		view->beyond = FIEF_SYN_ISOLATED;
	return true;
}

/* Whether there is a budget of unproven sources. `last`: the SYN's prefix is isolated, and is served when nobody else wants to be. */
static __always_inline bool unproven_bound(const struct front_context *front, const struct police_view *view, bool last)
{
	const struct fief_guard *guard = front->guard;

	return guard->unproven_interval_ns && (last || in_force(view, guard->unproven_level));
}

/* Whether the rate is for the port that the SYN comes from. */
static __always_inline bool rate_is_for(const struct fief_client *client, __u16 port)
{
	return !client->port_last || (port >= client->port_first && port <= client->port_last);
}

/* Takes one of the rate, or `looks` whether there is one; false: it is reached. */
static __noinline bool rate_take(struct front_context *front, struct police_view *view, struct fief_bucket *bucket,
				 bool looks)
{
	const struct fief_client *client = front->client;
	bool own = !client->monitor && connections_count(front), single = bucket->kind == FIEF_BUCKET_PER_SOURCE;

	if (looks && !single)
		return !cell_early(&bucket->arrival_ns, bucket->tolerance_ns, front->now);
	if (looks)
		return !source_reached(&front->packet, front->slot, client->bucket | FIEF_BUCKET_OF_SYNS, bucket,
				       front->now);
	if (!single)
		return bucket_take_one(&front->packet, front->slot, client->bucket, bucket, front->now);
	if (own && source_reached(&front->packet, front->slot, client->bucket, bucket, front->now))
		return false;
	if (bucket_take_one(&front->packet, front->slot, client->bucket | FIEF_BUCKET_OF_SYNS, bucket, front->now))
		return true;
	if (own)
		view->beyond = FIEF_SYN_RATE;
	return own;
}

/*
 * Whether the rate of the client rule refuses the SYN; on trial, that is counted here, and the SYN passes. What other rates, or the budget of
 * the unproven sources (`bound`), may refuse next is only looked at, and left in view->later, but for a proven source's own.
 */
static __noinline bool rule_refuses(struct front_context *front, struct police_view *view, bool bound)
{
	const struct fief_client *client = front->client;
	struct fief_bucket *bucket;

	if (!client || !client->bucket || !in_force(view, client->level) ||
	    !rate_is_for(client, front->packet.source_port))
		return false;
	bucket = bucket_find(front->slot, client->bucket);
	if (!bucket)
		return false;
	if (bucket->kind == FIEF_BUCKET_PER_SOURCE ? bound && !view->source : bound || view->source)
		view->later = bucket;
	if (rate_take(front, view, bucket, view->later))
		return false;
	if (client->monitor && !(front->guard->flags & FIEF_GUARD_MONITOR)) {
		verdict_count_bucket(front, client->container, client->rule, FIEF_SYN_RATE, true, bucket);
		return false;
	}
	view->bucket = bucket;
	return true;
}

/* Whether each SYN that is answered uses up a rate that others share. */
static __always_inline bool uses_rate(const struct front_context *front, const struct police_view *view)
{
	return view->later && view->later->kind == FIEF_BUCKET_SHARED && !front->client->monitor;
}

static __always_inline enum fief_reason police_judge(struct front_context *front, struct police_view *view)
{
	const struct fief_guard *guard = front->guard;
	bool isolated, bound;

	view->source = source_find(front);
	front->proven = view->source;
	if (view->source && view->source->penalty_until_ns > front->now && !excepted(front, FIEF_EXCEPT_PENALTY))
		return FIEF_SYN_PENALTY;
	isolated = !view->source && guard->isolate_ns && in_force(view, guard->isolate_level) &&
		   !excepted(front, FIEF_EXCEPT_ISOLATE) && prefix_isolated(front);
	if (isolated && !served_last(front))
		return FIEF_SYN_ISOLATED;
	bound = unproven_bound(front, view, isolated);
	if (rule_refuses(front, view, bound))
		return FIEF_SYN_RATE;
	if (view->source && !proven_take(front, view))
		return FIEF_SYN_ISOLATED;
	if (bound && (!view->source || view->beyond) && !newcomer_take(front, isolated, uses_rate(front, view)))
		return view->beyond ? view->beyond : isolated ? FIEF_SYN_ISOLATED : FIEF_SYN_UNPROVEN;
	if (!view->later || rate_take(front, view, view->later, false) || front->client->monitor)
		return FIEF_SYN_TAKEN;
	view->bucket = view->later; /* others took it meanwhile */
	return FIEF_SYN_RATE;
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

/* Whether the client rule's rate for each source, if it has one, lets the source have one more; if not, that is counted. */
static __always_inline bool own_rate_take(struct front_context *front)
{
	struct fief_client *client = client_find(front);
	struct fief_bucket *bucket = NULL;

	if (client && !client->monitor && level_reached(front, client->level) &&
	    rate_is_for(client, front->packet.source_port))
		bucket = bucket_find(front->slot, client->bucket);
	if (!bucket || bucket->kind != FIEF_BUCKET_PER_SOURCE ||
	    bucket_take_one(&front->packet, front->slot, client->bucket, bucket, front->now))
		return true;
	verdict_count_bucket(front, client->container, client->rule, FIEF_SYN_RATE, false, bucket);
	return false;
}

/*
 * The first bytes of a connection have come, with its cookie: whether its source may have one more. `source`: NULL if it is not proven,
 * or nobody asks.
 */
static __noinline bool connection_take(struct front_context *front, struct fief_source *source)
{
	const struct fief_guard *guard = front->guard;
	struct fief_client *client;

	if (!(guard->flags & FIEF_GUARD_POLICE))
		return true;
	if (!(guard->flags & FIEF_GUARD_NO_OWN_RATE) && !own_rate_take(front))
		return false;
	if (!source || !guard->proven_interval_ns ||
	    cell_take(&source->arrival_ns, guard->proven_interval_ns, guard->proven_tolerance_ns, front->now))
		return true;
	client = client_find(front);
	verdict_count(front, client_container(front), client ? client->rule : FIEF_NO_ID, FIEF_SYN_ISOLATED, false);
	return false;
}
