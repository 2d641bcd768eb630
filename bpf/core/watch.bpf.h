/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Watch: by which sources a container is charged, while somebody asks (fief explain --charge).
 *
 * Problem: an account says how much time a container was charged, not for which threads and ports. Counters for each source would
 * cost every charge a lookup, always.
 * How: a watch names one container and when it ends. Until then each charge of that container, or of one below it, is also added to
 * the sum of its source. A CPU looks at the watch only while its record says so, and unsays it when the watch has ended, so that a
 * reader which was killed leaves nothing running. Sums are of one turn or the
 * other, so that a reader has those of the turn that is over to itself.
 * Limits: one watch at a time. What is open at the end of a turn is charged in the next one. Sources beyond the table are one.
 */
#pragma once

#include "watched.bpf.h"

static __noinline int charge_watch(struct fief_cpu *cs, struct fief_ref to, __u64 ns)
{
	struct fief_watch_room *room = watch_room();
	struct fief_charge_source source = {};
	struct fief_watch *w = watch_get();
	struct fief_charge_sum *sum;

	if (!room || !w || cs->last_ns >= w->until_ns) {
		cs->watched = 0;
		return 0;
	}
	if (!watch_covers(w, to))
		return 0;
	source.turn = w->turn;
	charge_source(&source, cs, to, room);
	sum = bpf_map_lookup_elem(&watch_sums, &source);
	if (!sum) {
		sum_begin(&source, cs, &room->fresh);
		sum = bpf_map_lookup_elem(&watch_sums, &source);
	}
	if (!sum) {
		source.why = FIEF_WHY_REST;
		source.number = 0;
		sum = bpf_map_lookup_elem(&watch_sums, &source);
	}
	if (sum) {
		__sync_fetch_and_add(&sum->ns, ns);
		__sync_fetch_and_add(&sum->charges, 1);
	}
	return 0;
}

/* What is received from now on is this packet's. */
static __always_inline void packet_watch(struct fief_cpu *cs, struct bpf_sock *sk)
{
	struct fief_watch_room *room = watch_room();

	if (room)
		room->port = sk ? *(volatile __u32 *)&sk->src_port : 0;
}
