/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Absent: connection requests while the server of a listener is started anew (`restart`).
 *
 * Problem: between the end of one server and the start of the next nobody listens, and the kernel refuses every client, at once.
 * How: such a SYN is dropped, and its client sends it again, after a second as clients do: by then the server is there. The time
 * counts from the first one that found nobody at the address and port, so a server that stays away is refused as ever, and so is a port of a
 * range that has none, whoever serves the others.
 * Requests that wait in a queue stay there (deliver.bpf.h).
 * Limits: a client whose handshake was answered before and whose request comes now is reset. A SYN for another machine passes.
 * Eight addresses and ports of a listener have a place at a time, and what finds none is refused at once. Behind a translation of ports
 * nobody seems to listen; there the first time after an apply drops everybody.
 */
#pragma once

#include "flow/route.bpf.h"
#include "guard.bpf.h"
#include "mix.bpf.h"

/* A quiet listener's time must not be taken by the last look, long ago. */
#define ABSENT_FORGOTTEN_NS 600000000000ull

/* Where a client wants to go. */
struct absent_at {
	__u64 address[2];
	__u64 port;
};

static __always_inline struct fief_absent *absent_place(const struct front_context *front, struct absent_at *at)
{
	__u32 listener = front->listener.index;
	struct fief_load *load = bpf_map_lookup_elem(&loads, &listener);

	__builtin_memcpy(at->address, front->packet.destination, 16);
	at->port = front->packet.destination_port;
	return load ? &load->absent[hash_mix(at->address[0] ^ at->address[1] ^ at->port) % FIEF_ABSENT_PLACES] : NULL;
}

static __always_inline bool is_of(const struct fief_absent *place, const struct absent_at *at)
{
	return place->since_ns && place->port == at->port && place->address[0] == at->address[0] &&
	       place->address[1] == at->address[1];
}

/*
 * Since when nobody is there, by all that came; 0: another address or port has the place, whose time lasts. Else whoever asks for ports that
 * nobody serves would hold all places.
 */
static __always_inline __u64 absent_since(struct fief_absent *place, const struct absent_at *at, __u64 now,
					  __u64 restart_ns)
{
	__u64 last = *(volatile __u64 *)&place->last_ns, since = *(volatile __u64 *)&place->since_ns;
	bool forgotten = now > last && now - last > ABSENT_FORGOTTEN_NS;
	bool over = now > since && now - since >= restart_ns;

	if (!is_of(place, at) || forgotten) {
		if (place->since_ns && !forgotten && !over)
			return 0;
		place->address[0] = at->address[0];
		place->address[1] = at->address[1];
		place->port = at->port;
		place->since_ns = now;
	}
	place->last_ns = now;
	return place->since_ns;
}

/* Nobody listens, which is noted. Whether the server may still be about to. */
static __noinline bool is_absent(const struct front_context *front)
{
	struct fief_absent *place;
	struct absent_at at;
	__u64 since;

	if (!front->guard->restart_ns)
		return false;
	place = absent_place(front, &at);
	since = place ? absent_since(place, &at, front->now, front->guard->restart_ns) : 0;
	return since && (front->now <= since || front->now - since < front->guard->restart_ns);
}

/* A SYN found nobody who listens. */
static __noinline int absent_rule(struct __sk_buff *skb, struct front_context *front)
{
	bool monitored = front->guard->flags & FIEF_GUARD_MONITOR;

	if (!front->guard->restart_ns || !route_is_local(skb, &front->packet) || !is_absent(front))
		return TCX_NEXT;
	verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_SYN_ABSENT, monitored);
	if (monitored)
		return TCX_NEXT;
	syn_count(front, true);
	return TCX_DROP;
}

/* One found somebody. */
static __always_inline void present_note(const struct front_context *front)
{
	struct fief_absent *place;
	struct absent_at at;

	if (!front->guard->restart_ns)
		return;
	place = absent_place(front, &at);
	if (place && is_of(place, &at))
		place->since_ns = 0;
}
