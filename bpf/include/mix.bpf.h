/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The last step of the hashes here: every bit of the input moves every bit of the output (MurmurHash3's finalizer). */
#pragma once

#define HASH_GOLDEN 0x9e3779b97f4a7c15ull

static __always_inline __u64 hash_mix(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}
