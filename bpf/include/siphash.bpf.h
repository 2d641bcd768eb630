/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * SipHash-2-4 over whole 64-bit words (Aumasson and Bernstein, 2012): a keyed hash that a sender cannot foresee, at the cost of
 * a few tens of nanoseconds. The kernel's own (lib/siphash.c) cannot be called from BPF.
 *
 * SipHash-1-3 takes half the time; the kernel's hsiphash() is this function. It is for hashes that nobody sees and nobody can
 * try often.
 */
#pragma once

struct siphash {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotate_left(__u64 word, __u32 bits)
{
	return word << bits | word >> (64 - bits);
}

static __always_inline void siphash_round(struct siphash *s)
{
	s->v0 += s->v1;
	s->v1 = rotate_left(s->v1, 13) ^ s->v0;
	s->v0 = rotate_left(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotate_left(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotate_left(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotate_left(s->v1, 17) ^ s->v2;
	s->v2 = rotate_left(s->v2, 32);
}

static __always_inline void siphash_word(struct siphash *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	siphash_round(s);
	s->v0 ^= word;
}

static __always_inline struct siphash siphash_begin(const __u64 *key)
{
	return (struct siphash){
	    key[0] ^ 0x736f6d6570736575,
	    key[1] ^ 0x646f72616e646f6d,
	    key[0] ^ 0x6c7967656e657261,
	    key[1] ^ 0x7465646279746573,
	};
}

static __always_inline void hsiphash_word(struct siphash *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	s->v0 ^= word;
}

/* `bytes`: how many went into it. */
static __always_inline __u64 hsiphash_end(struct siphash *s, __u64 bytes)
{
	__u32 i;

	hsiphash_word(s, bytes << 56);
	s->v2 ^= 0xff;
	for (i = 0; i < 3; i++)
		siphash_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

/* `count` is a constant where this is called, so that the loop goes. */
static __always_inline __u64 siphash(const __u64 *key, const __u64 *words, __u32 count)
{
	struct siphash s = siphash_begin(key);
	__u32 i;

	for (i = 0; i < count; i++)
		siphash_word(&s, words[i]);
	siphash_word(&s, (__u64)count << 59);
	s.v2 ^= 0xff;
	for (i = 0; i < 4; i++)
		siphash_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
