/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Address: 16 bytes for both families, in network order; IPv4 is mapped (::ffff:a.b.c.d).
 *
 * Problem: tables, keys and packets have to agree on what an address is, and on how much of it is one client.
 * How: one form for all of them, and its prefixes beside it.
 * Limits: an IPv6 network of more than 64 bits is one source.
 */
#pragma once

#define MAPPED_PREFIX bpf_htonl(0xffff)

static __always_inline void mapped_ipv4(__u32 ipv4, void *address)
{
	__u32 *words = address;

	words[0] = 0;
	words[1] = 0;
	words[2] = MAPPED_PREFIX;
	words[3] = ipv4;
}

/* The IPv4 address in a mapped one. */
static __always_inline __u32 ipv4_of(const void *address)
{
	return ((const __u32 *)address)[3];
}

/* Copies an address that begins at a multiple of 8, as those of packets do, to a multiple of 4. What clang does not know it copies byte by byte. */
static __always_inline void address_copy(void *to, const void *from)
{
	__builtin_memcpy(__builtin_assume_aligned(to, 4), __builtin_assume_aligned(from, 8), 16);
}

static __always_inline bool is_mapped(const void *address)
{
	const __u32 *words = address;

	return !(words[0] | words[1]) && words[2] == MAPPED_PREFIX;
}

/* Multicast, too: both belong to their link. */
static __always_inline bool is_link_local(const __u8 *address)
{
	return address[0] == 0xff || (address[0] == 0xfe && (address[1] & 0xc0) == 0x80);
}
