/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Bytes: what the parsers need of their environment, in BPF or in user space.
 *
 * Problem: the kernel runs the parsers of requests, and so do tests and a fuzzer in user space. And the verifier follows each
 * pass of a loop whose counter it knows.
 * How: parsers use only the functions here. Loops count from loop_from(), which the verifier takes for any number, and go on
 * while can_loop, which tells it that they end. A loop that branches within takes its counter from loop_from() in each pass:
 * otherwise 6.12 finds no two passes alike, and gives up after 8,192 (E2BIG). The search for a line's end reads eight bytes at
 * a time.
 * Limits: little-endian machines that read words at any address. In user space the including file defines the types.
 */
#pragma once

/* Bytes of a stream or of a part of it; what stands behind its end is read at times, and never used. */
#define BYTES_SLACK 64
#define BYTES_MASK  (FIEF_HEADER_MAX - 1)

struct request_bytes {
	__u8 at[FIEF_HEADER_MAX + BYTES_SLACK];
};

#ifdef __bpf__

#include "loop.bpf.h"

__u32 nought; /* never written */

static __always_inline __u32 loop_from(__u32 at)
{
	return at + *(volatile __u32 *)&nought;
}

static __always_inline __u64 word_at(const struct request_bytes *bytes, __u32 at)
{
	return *(const __u64 *)(bytes->at + (at & BYTES_MASK));
}

static __always_inline void word_put(struct request_bytes *bytes, __u32 at, __u64 word)
{
	*(__u64 *)(bytes->at + (at & BYTES_MASK)) = word;
}

#else

#ifndef __always_inline /* the C library has it too */
#define __always_inline inline __attribute__((always_inline))
#endif
#define __noinline __attribute__((noinline))
#define __arg_nonnull
#define can_loop	     true
#define bpf_for(i, from, to) for ((i) = (from); (i) < (to); (i)++)

static inline __u32 loop_from(__u32 at)
{
	return at;
}

static inline __u64 word_at(const struct request_bytes *bytes, __u32 at)
{
	__u64 word;

	__builtin_memcpy(&word, bytes->at + (at & BYTES_MASK), sizeof(word));
	return word;
}

static inline void word_put(struct request_bytes *bytes, __u32 at, __u64 word)
{
	__builtin_memcpy(bytes->at + (at & BYTES_MASK), &word, sizeof(word));
}

#endif

/* An index as the compiler must take it: it would make a loop's index a pointer that grows, whose bounds get lost. */
static __always_inline __u32 as_index(__u32 at)
{
	asm volatile("" : "+r"(at));
	return at;
}

static __always_inline __u8 byte_at(const struct request_bytes *bytes, __u32 at)
{
	return bytes->at[at & BYTES_MASK];
}

#define EACH_BYTE(value) (0x0101010101010101ull * (value))
#define HIGH_BITS	 EACH_BYTE(0x80)

/* The high bit of each byte that is zero; above the lowest of them there may be false ones. */
static __always_inline __u64 zero_bytes(__u64 word)
{
	return (word - EACH_BYTE(1)) & ~word & HIGH_BITS;
}

/* Number of the lowest byte whose high bit is set in what zero_bytes() said; a multiplication, since BPF counts no
 * bits: the constant's byte 7 - k is k. */
static __always_inline __u32 lowest_byte(__u64 found)
{
	return ((found & -found) >> 7) * 0x0001020304050607ull >> 56;
}

/* Where `wanted` stands first in [at, end); `end`: nowhere. */
__noinline __u32 find_byte(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end, __u8 wanted)
{
	__u64 found;

	for (at = loop_from(at); at < end && can_loop; at += 8) {
		found = zero_bytes(word_at(bytes, at) ^ EACH_BYTE(wanted));
		if (found) {
			at += lowest_byte(found);
			break;
		}
	}
	return at < end ? at : end;
}

/* The high bit of each byte that is a control character (below a blank, or DEL); above the lowest there may be false ones. */
static __always_inline __u64 control_bytes(__u64 word)
{
	return ((word - EACH_BYTE(' ')) & ~word & HIGH_BITS) | zero_bytes(word ^ EACH_BYTE(0x7f));
}

/* Is a control character among the eight bytes at `at`? Goes on to it, or else behind them. */
static __always_inline bool control_next(const struct request_bytes *bytes, __u32 *at)
{
	__u64 found = control_bytes(word_at(bytes, *at));

	*at += found ? lowest_byte(found) : 8;
	return found;
}

/* Capital letters of ASCII made small; without a branch, which the verifier would follow for each byte. */
static __always_inline __u8 small_letter(__u8 byte)
{
	return byte | (((__u32)(__u8)(byte - 'A') - 26) >> 26 & 0x20);
}

static __always_inline bool is_blank(__u8 byte)
{
	return byte == ' ' || byte == '\t';
}

/* RFC 9110, 5.6.2: what methods and names are made of. */
static __always_inline bool is_token(__u8 byte)
{
	if (byte <= ' ' || byte >= 127)
		return false;
	/* none of the delimiters "(),/:;<=>?@[\]{} */
	if (byte < 64)
		return !(0xfc00930400000000ull >> byte & 1);
	return !(0x2800000038000001ull >> (byte - 64) & 1);
}

/* Eight letters as they stand in memory. */
#define LETTERS(a, b, c, d, e, f, g, h)                                                                                \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 | (__u64)(f) << 40 |    \
	 (__u64)(g) << 48 | (__u64)(h) << 56)
#define CASE 0x20
