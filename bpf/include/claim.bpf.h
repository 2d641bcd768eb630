/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Claim: the first bytes of a connection pass once.
 *
 * Problem: packets of one batch, or of two CPUs, pass the door before TCP has the first of them, and each would be ruled by itself.
 * How: the first of them puts a hash of the flow and of its first byte, and the time, into a word of the flow's pair
 * (maps/admitted.bpf.h):
 *
 *      63                         24 23            0
 *     +-----------------------------+---------------+
 *     |  hash of flow and begin     |  when, in ms  |      0: none
 *     +-----------------------------+---------------+
 *
 * A second packet with the same begin is dropped for CLAIM_MS, before it is ruled, and comes again; not if a rule refused the
 * first, or a rule wants more of it. A virtual CPU may stand still for some ten milliseconds between the door and TCP; a client sends its
 * first bytes again after 200 (TCP_RTO_MIN).
 * Limits: CLAIMS at a time of the flows of a pair; one more waits.
 */
#pragma once

#include "bytes.bpf.h"
#include "maps/admitted.bpf.h"

#define CLAIM_TIME  0xffffffull /* the lowest bits of a claim, in ms */
#define CLAIM_MS    150		/* in which a packet that passed the door has reached TCP, or never does */
#define CLAIM_AHEAD 1000	/* ms: a packet has read the clock at most so long before it looks at the claims */

/* Whether the flow's first bytes passed a moment ago, or after `now_ms`: another CPU may have looked at the clock later. */
static __always_inline bool claim_lasts(__u64 claim, __u64 now_ms)
{
	return claim && (now_ms + CLAIM_AHEAD - claim & CLAIM_TIME) < CLAIM_MS + CLAIM_AHEAD;
}

/* Whether the word is of the same first bytes. */
static __always_inline bool claim_is(__u64 claim, __u64 mine)
{
	return (claim ^ mine) <= CLAIM_TIME;
}

/* NULL: there are not so many. */
static __always_inline volatile __u64 *claim_at(struct admitted_pair *pair, __u32 i)
{
	__u32 half = i / 2;

	barrier_var(half); /* 6.12 knows no bound of what was shifted and masked at once */
	return half < CLAIMS / 2 ? &pair->key[i & 1].claim[half] : NULL;
}

/*
 * Whether the first bytes of the connection may pass now. Where CLAIMS others passed a moment ago, which may be earlier connections
 * of the same ports, they wait too. `hash`: of the flow; `renews`: they passed before, and waited since.
 * The verifier follows a global function once, not for each way to it.
 */
__noinline int first_bytes_claim(struct admitted_pair *pair __arg_nonnull, __u64 hash, __u32 begin, __u64 now,
				 __u32 renews)
{
	__u64 now_ms = now / 1000000, mine, seen, was = 0;
	volatile __u64 *claim;
	__u32 i, at = CLAIMS;
	bool found = false;

	mine = (hash_mix(hash ^ begin) & ~CLAIM_TIME) | (now_ms & CLAIM_TIME);
	for (i = loop_from(0); can_loop; i++) {
		i = loop_from(i);
		claim = claim_at(pair, i);
		if (!claim)
			break;
		seen = *claim;
		if (claim_is(seen, mine)) {
			if (!renews && claim_lasts(seen, now_ms))
				return 0;
			found = true;
		} else if (found || claim_lasts(seen, now_ms)) {
			continue;
		}
		/* its own, or one that is over */
		at = i;
		was = seen;
	}
	claim = claim_at(pair, at);
	if (!claim)
		return renews; /* else those of others would stop the queue that it comes out of */
	if (__sync_val_compare_and_swap(claim, was, mine) != was)
		return 0;
	/* where one that ended meanwhile led another CPU to another word, neither passes */
	for (i = loop_from(0); can_loop; i++) {
		i = loop_from(i);
		claim = claim_at(pair, i);
		if (!claim)
			break;
		seen = *claim;
		if (i != at && claim_is(seen, mine) && claim_lasts(seen, now_ms))
			return renews;
	}
	return 1;
}

/* The first bytes that were claimed at this time go no further, and may come again at once. As first_bytes_claim() a global function. */
__noinline int first_bytes_leave(struct admitted_pair *pair __arg_nonnull, __u64 hash, __u32 begin, __u64 now)
{
	__u64 mine = (hash_mix(hash ^ begin) & ~CLAIM_TIME) | (now / 1000000 & CLAIM_TIME);
	volatile __u64 *claim;
	__u32 i;

	for (i = loop_from(0); can_loop; i++) {
		i = loop_from(i);
		claim = claim_at(pair, i);
		if (!claim)
			break;
		if (*claim == mine)
			__sync_val_compare_and_swap(claim, mine, 0);
	}
	return 0;
}

/* Whether nobody else's first bytes of the connection pass now: they are those of whoever asks. */
static __always_inline bool claim_take(struct admitted_pair *pair, __u64 hash, __u32 begin, __u64 now, bool renews)
{
	__u64 claimed = first_bytes_claim(pair, hash, begin, now, renews);

	barrier_var(claimed);
	return claimed & 1;
}
