/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Isolated: the class of clients from a prefix that floods (`isolate.into`).
 *
 * Problem: dropping the unproven sources of a flooding prefix shuts its honest new clients out. Serving them like all others
 * lets the flood succeed, since a flood of real hosts returns cookies too.
 * How: the prefix's unproven sources are answered from the rest of the budget (newcomers.bpf.h). A source that returned its
 * first cookie only after the prefix was isolated is of the class `into`, whose priority is to be 0: it is served when nobody
 * else wants the server. A connection keeps the class for its life, whatever its requests are; sources that were proven before
 * keep theirs.
 * Limits: a source is proven at all listeners at once; the isolation is one listener's.
 */
#pragma once

#include "admitted.bpf.h"
#include "excepted.bpf.h"
#include "guard.bpf.h"
#include "prefixes.bpf.h"
#include "sources.bpf.h"

static __always_inline void isolated_set(struct front_context *front)
{
	front->isolated = true;
	front->container = front->guard->isolate_into;
}

/* Whether a prefix of the source is isolated, and was before the source proved itself. A function of its own to the verifier. */
__noinline int isolated_by(const struct packet *p __arg_nonnull, __u32 listener, __u64 now)
{
	struct fief_source *source;
	struct source_place at;
	struct metered of;
	__u64 since, then;

	source = source_place(p, &at) ? source_find_at(&at) : NULL;
	then = source ? source->since_ns : now;
	metered_prefix(p, listener, false, &of);
	since = metered_since(&of, now);
	if (since && since <= then)
		return true;
	if (!p->ipv6)
		return false;
	metered_prefix(p, listener, true, &of);
	since = metered_since(&of, now);
	return since && since <= then;
}

/* A connection is about to be ruled for the first time. */
static __always_inline void isolated_look(struct front_context *front)
{
	if (!(front->guard->flags & FIEF_GUARD_INTO) || !level_reached(front, front->guard->isolate_level))
		return;
	if (excepted(front, FIEF_EXCEPT_ISOLATE))
		return;
	if (isolated_by(&front->packet, front->listener.index, front->now))
		isolated_set(front);
}

/* Whether there is a verdict upon the first bytes of the connection. */
static __noinline bool is_ruled_before(const struct packet *p, __u32 begin)
{
	struct fief_admitted *entry;
	struct fief_flow_key key;

	flow_key(p, &key);
	entry = admitted_find(&key);
	return entry && entry->begin == begin;
}

/*
 * The kernel makes a connection, whose first byte is to be `begin`, and no bytes are ruled before: its class waits for the socket, as a
 * verdict does.
 */
static __noinline int isolated_end(struct __sk_buff *skb, struct front_context *front, __u32 begin)
{
	struct fief_admitted entry = {
	    .rule = FIEF_NO_ID,
	    .begin = begin,
	    .time_ns = front->now,
	    .answer_at = front->packet.ack,
	    .verdicts = 1,
	};

	if (front->guard->flags & FIEF_GUARD_MONITOR)
		return 0;
	isolated_look(front);
	if (!front->isolated || is_ruled_before(&front->packet, begin))
		return 0;
	entry.container = front->container;
	admitted_note(skb, front, &entry, packet_flow(&front->packet));
	return 0;
}
