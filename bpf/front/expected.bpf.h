/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Expected: the ends of the handshakes that this CPU has just answered.
 *
 * Problem: the bare ACK that ends a handshake says nothing yet and is dropped. But looking up its socket and its listener and
 * checking its cookie costs as much as answering the SYN did. The checks of the first bytes cost as much again.
 * How: each CPU has a small table of its answers, by flow. The expected ACK is recognized without any of these steps: the
 * numbers are the cookie's own, and no connection has them before its first byte has come. The first segment with bytes bears
 * them too, and removes the entry: its cookie is good and not spent, its source is proven, its destination is this machine's,
 * and none of its bytes are held. Only proven sources have an entry, so that no flood fills the table. A forged SYN in the name
 * of one allows one guess at its answer, the cookie: a wrong number removes the entry too. And a source has a budget of such
 * guesses (guesses.bpf.h).
 * Limits: a segment that comes later than EXPECTED_NS, at another CPU, or after its entry was displaced takes the slow path,
 * with the same result.
 */
#pragma once

#include "flow/key.bpf.h"
#include "guesses.bpf.h"

#define EXPECTED_NS 1000000000ull
#define EXPECTED    256

struct expected {
	__u64 source[2];
	__u64 destination[2];
	__u64 answered_ns;
	__u32 ports;
	__u32 seq; /* of the ACK, like the next */
	__u32 ack;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EXPECTED);
	__type(key, __u32);
	__type(value, struct expected);
} expected_ends SEC(".maps");

/* The flow's place. */
static __always_inline struct expected *expected_place(const struct packet *p)
{
	__u64 source[2];
	__u32 at;

	__builtin_memcpy(source, p->source, 16);
	at = hash_mix(source[0] ^ source[1] ^ ports_word(p)) & (EXPECTED - 1);
	return bpf_map_lookup_elem(&expected_ends, &at);
}

/* A SYN was answered with the number `cookie`; `kept`: its flow's place. */
static __noinline int end_expect(const struct front_context *front, __u32 cookie, struct expected *kept)
{
	const struct packet *p = &front->packet;

	if (!kept)
		return 0;
	__builtin_memcpy(kept->source, p->source, 16);
	__builtin_memcpy(kept->destination, p->destination, 16);
	kept->answered_ns = front->now;
	kept->ports = ports_word(p);
	kept->seq = p->seq + 1;
	kept->ack = cookie + 1;
	return 0;
}

/* The last handshake that was answered in its place, if the segment goes on from that by its own numbers; NULL: none. */
static __always_inline struct expected *expected_find(const struct packet *p)
{
	struct expected *kept = expected_place(p);
	__u64 source[2], destination[2];

	if (!kept || kept->seq != p->seq || kept->ports != ports_word(p))
		return NULL;
	__builtin_memcpy(source, p->source, 16);
	__builtin_memcpy(destination, p->destination, 16);
	if (kept->source[0] != source[0] || kept->source[1] != source[1] || kept->destination[0] != destination[0] ||
	    kept->destination[1] != destination[1])
		return NULL;
	return kept;
}

/* Whether that was a moment ago, and its first bytes have not come. */
static __always_inline bool is_fresh(const struct expected *kept, __u64 now)
{
	return now - kept->answered_ns < EXPECTED_NS;
}

/*
 * Whether the bare segment is the end of such a handshake. A guesser learns nothing from it: other ends are dropped too. Every bare
 * acknowledgement of every connection is asked about, so the clock comes last.
 */
static __always_inline bool end_expected(const struct packet *p)
{
	struct expected *kept = expected_find(p);

	return kept && kept->ack == p->ack && is_fresh(kept, bpf_ktime_get_ns());
}

/* Whether the segment is the first with bytes after such a handshake, which in any case is no longer known. */
static __noinline bool begin_expected(const struct front_context *front)
{
	const struct packet *p = &front->packet;
	struct expected *kept = expected_find(p);

	if (!kept || !is_fresh(kept, front->now))
		return false;
	kept->answered_ns = 0;
	if (kept->ack == p->ack)
		return !bad_too_many(p, front->now, BAD_EXPECTED);
	bad_count(p, front->now, BAD_EXPECTED);
	return false;
}
