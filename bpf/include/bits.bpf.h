/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Numbers of bits in a word. Without branches, which the verifier would follow in all combinations. */
#pragma once

/* Ones in a word (Hacker's Delight, 5-1). */
static __always_inline __u32 bit_count(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555;
	word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f;
	return word * 0x0101010101010101 >> 56;
}

/* Number of the lowest bit that is set; `word` is not 0. */
static __always_inline __u32 lowest_bit(__u64 word)
{
	return bit_count((word & -word) - 1);
}

/* Number of the highest bit that is set; `word` is not 0. */
static __always_inline __u32 highest_bit(__u64 word)
{
	word |= word >> 1;
	word |= word >> 2;
	word |= word >> 4;
	word |= word >> 8;
	word |= word >> 16;
	word |= word >> 32;
	return bit_count(word) - 1;
}
