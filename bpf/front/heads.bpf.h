/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Heads: the ruled heads of a connection's later requests, until TCP has taken them.
 *
 * Problem: the door rules a segment before TCP checks it. TCP may drop it (a wrong checksum, an old timestamp, no room) or keep
 * it out of order, where a longer segment displaces it. Other bytes that the client then sends at its place would pass as
 * ruled. And an honest sender may cut its repetition otherwise than before.
 * How: a ring of the socket has a keyed hash of each RANGE_MOST bytes of heads that passed. Below tcp->rcv_nxt nothing can be
 * replaced. Repeated bytes at or above it have to be the same, so that only one version of each byte of a head can reach the
 * server, however TCP joins its segments. Bodies may differ: where a request begins follows from the heads alone. A packet that
 * holds the begin of a range but not its end is cut before the range; its sender then continues from there. A packet that
 * begins within a range comes again from where TCP waits.
 * Limits: a sender whose first attempt TCP dropped, and which then cuts heads finer than RANGE_MOST, waits in vain.
 */
#pragma once

#include "hold.bpf.h"
#include "siphash.bpf.h"
#include "maps/secrets.bpf.h"

#define RANGE_MOST 512 /* below what any sender must be able to send at once (RFC 9293: 536) */
#define RANGES	   64  /* twice FIEF_HEADER_MAX bytes, so that one more head has room; a power of two */
#define HEADS_APART                                                                                                    \
	16 /* ranges that have one head each, however small: a client that repeats them may cut between them */
#define HEAD_RANGES (1 + FIEF_HEADER_MAX / RANGE_MOST)

struct head_range {
	__u32 from; /* sequence numbers */
	__u32 end;
	__u64 hash;
};

struct head_ranges {
	__u32 read;  /* where the last head ends, or what has come of it */
	__u32 first; /* the first range that TCP may not have taken, counted like: */
	__u32 count; /* ranges ever noted; number n stands at n % RANGES */
	__u32 asked; /* where the requests end that had their turn in the queue (asked.bpf.h) */
	struct head_range range[RANGES];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct head_ranges);
} heads SEC(".maps");

static __always_inline struct head_range *head_range(struct head_ranges *ranges, __u32 number)
{
	return &ranges->range[as_index(number) & (RANGES - 1)];
}

/* SipHash-1-3 of `length` bytes, which 16 zeros follow, at this place of the stream. */
__noinline __u64 bytes_hash(const struct request_bytes *bytes __arg_nonnull, __u32 length, __u32 place,
			    const struct fief_secret *secret __arg_nonnull)
{
	struct siphash s = siphash_begin(secret->pattern);
	__u32 i;

	hsiphash_word(&s, (__u64)place << 32 | length);
	for (i = loop_from(0); i < length && can_loop; i += 16) {
		hsiphash_word(&s, word_at(bytes, i));
		hsiphash_word(&s, word_at(bytes, i + 8));
	}
	return hsiphash_end(&s, 8 + length);
}

/* Forgets what TCP has taken. */
static __always_inline void heads_forget(struct head_ranges *ranges, __u32 taken)
{
	__u32 i;

	/* mostly one step, and an iterator is three calls of the kernel */
	for (i = loop_from(0); i < RANGES && can_loop; i++) {
		if (ranges->first == ranges->count || is_behind(head_range(ranges, ranges->first)->end, taken))
			break;
		ranges->first++;
	}
}

/* As far as the head at `next` is known, or was ruled before the socket was there. */
static __always_inline __u32 heads_end(const struct packet *p, const struct head_ranges *ranges, __u32 next)
{
	__u32 from = is_behind(ranges->read, next) ? ranges->read : next;

	return is_behind(p->seq, from) ? p->seq : from;
}
