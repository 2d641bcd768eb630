/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Guard: the guard of the listener that a packet is for, and whether it holds connections now. */
#pragma once

#include "context.bpf.h"
#include "load.bpf.h"
#include "verdict.bpf.h"
#include "maps/guarded_ports.bpf.h"
#include "maps/guards.bpf.h"

static __always_inline bool port_guarded(__u32 slot, __u16 port)
{
	__u32 at = slot * GUARDED_PORT_WORDS + port / 64;
	__u64 *word = bpf_map_lookup_elem(&guarded_ports, &at);

	return word && *word >> (port & 63) & 1;
}

/*
 * A piece of a packet without its ports, which may be for a guarded one. Nobody honest sends it (RFC 8200 4.5: the first
 * fragment has all headers). It counts for no listener; where all guards only watch, it passes.
 */
static __always_inline int blind_rule(__u32 slot)
{
	bool enforced = port_guarded(slot, GUARDED_BY_ANY);
	struct fief_verdict_key key = {
	    .container = {FIEF_NO_ID, 0},
	    .rule = FIEF_NO_ID,
	    .listener = FIEF_NO_LISTENER,
	    .reason = FIEF_SHAPE,
	    .monitored = !enforced,
	};

	verdict_add(&key, 1);
	return enforced ? TCX_DROP : TCX_NEXT;
}

/* Counts a packet of a listener, whose client no rule was looked up for. */
static __always_inline void guard_count(const struct fief_guard *guard, __u32 listener, enum fief_reason reason,
					bool monitored)
{
	struct fief_verdict_key key = {
	    .container = guard->fallback,
	    .rule = FIEF_NO_ID,
	    .listener = listener,
	    .reason = reason,
	    .monitored = monitored,
	};

	verdict_add(&key, 1);
}

/* Without the rule for the client. */
static __noinline bool guard_only_find(struct front_context *front)
{
	const struct listener_found *found;
	__u64 ago;
	__u32 at;

	found = listener_search(front->slot, front->packet.destination, front->packet.destination_port);
	if (!found)
		return false;
	front->listener.index = found->index;
	front->listener.serve = found->serve;
	at = front->slot * FIEF_MAX_LISTENERS + found->index;
	front->guard = bpf_map_lookup_elem(&guards, &at);
	if (!front->guard)
		return false;
	front->container = front->guard->fallback;
	front->now = bpf_ktime_get_ns();
	ago = front->now - found->live_until_ns;
	barrier_var(ago);
	front->live = ago >> 63; /* as is_live(), without a branch that the verifier would follow */
	return true;
}

/* The rule for the packet's source. */
static __always_inline struct fief_client *client_find(const struct front_context *front)
{
	__u64 source[2];

	address_copy(source, front->packet.source);
	return classify_words(front->slot, front->listener.index, source[0], source[1]);
}

static __noinline bool guard_find(struct front_context *front)
{
	if (!guard_only_find(front))
		return false;
	front->client = client_find(front);
	if (front->client)
		front->container = front->client->container;
	return true;
}

/* The same for a segment, whose client rule nobody asks for: the verifier then does not follow each case of it. */
static __always_inline bool segment_guard_find(struct front_context *front)
{
	bool found = guard_find(front);

	front->client = NULL;
	return found;
}

/* A socket of this machine listens at the packet's address. */
static __always_inline void live_now(const struct front_context *front)
{
	struct listener_found *found;

	found = listener_search(front->slot, front->packet.destination, front->packet.destination_port);
	if (found)
		live_note(found, front->now);
}

/* Nothing of it is known, whoever asked before: the verifier then follows what comes in one case. */
static __always_inline void guard_forget(struct front_context *front)
{
	front->listener = (struct policy_listener){};
	front->guard = NULL;
	front->client = NULL;
	front->container = (struct fief_ref){};
	front->now = 0;
}

static __always_inline int count_drop(struct front_context *front, enum fief_reason reason)
{
	verdict_count(front, client_container(front), FIEF_NO_ID, reason, false);
	return TCX_DROP;
}

/* What cannot be read is not let through, but where the guard only watches. */
static __always_inline int shape_rule(struct front_context *front)
{
	if (!(front->guard->flags & FIEF_GUARD_MONITOR))
		return count_drop(front, FIEF_SHAPE);
	verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_SHAPE, true);
	return TCX_NEXT;
}

/* Whether what connections ask for is ruled: as they pass, where they are not held. */
static __always_inline bool requests_ruled(const struct front_context *front)
{
	return front->guard->flags & (FIEF_GUARD_ADMIT | FIEF_GUARD_MONITOR) && front->guard->shapes;
}
