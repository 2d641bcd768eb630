/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Aggregate: how many places of a table the sources of one IPv6 network may have.
 *
 * Problem: an IPv4 source is one address, and addresses are scarce. An IPv6 customer has a /56 or a /48, that is 256 or 65,536
 * networks, each of which returns cookies. Counted one by one they fill any table, and each has its own bucket.
 * How: a /48 has all of its sources (/64s) in one set of a table, at most FIEF_WAYS_OF_48 of them, and a /56 at most
 * FIEF_WAYS_OF_56. A source beyond that takes the place of another one of the same aggregate, with its bucket and its penalty:
 * beyond its places, the aggregate is the source.
 * Limits: clients of one provider's /48 share its places; a displaced source has to prove itself again. A sender with many /48s
 * can fill several sets; in each set it displaces the aggregate with most places, so itself first.
 */
#pragma once

/* What two sources have in common. */
enum kinship {
	KIN_NONE,
	KIN_FAR,  /* IPv6 /48, IPv4 /16 */
	KIN_NEAR, /* IPv6 /56 */
};

#define IPV6_48 48
#define IPV6_56 56

/* The first `bits` bits of a word in network order. */
static __always_inline __u64 first_bits(__u64 word, __u32 bits)
{
	return word & bpf_cpu_to_be64(~0ull << (64 - bits));
}

/* Leaves of an address its network: of IPv4 the /24, of IPv6 the /48. */
static __always_inline void network_take(__u64 *words, bool ipv6)
{
	if (ipv6) {
		words[0] = first_bits(words[0], IPV6_48);
		words[1] = 0;
	} else {
		words[1] &= bpf_cpu_to_be64(~0xffull);
	}
}

/* Of two IPv6 /64s. */
static __always_inline enum kinship kinship(__u64 one, __u64 other)
{
	__u64 differs = one ^ other;

	if (!first_bits(differs, IPV6_56))
		return KIN_NEAR;
	return first_bits(differs, IPV6_48) ? KIN_NONE : KIN_FAR;
}
