/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Marks: whether a source can be among the proven, before anybody looks.
 *
 * Problem: a SYN of a flood comes from an address that is not there, and to look for it is a miss of the caches.
 * How: a mark for each proven source in a small filter. As many sources as the table holds make a generation of marks, and
 * two generations count: whoever has none in them is one that the table would have forgotten too.
 * Limits: at worst one source in four that are not there is looked for. After an upgrade from a version without marks a
 * source proves itself anew by its next connection.
 */
#pragma once

#include "bytes.bpf.h"
#include "mix.bpf.h"
#include "maps/sources.bpf.h"

static __always_inline struct source_marks *marks_at(__u32 at)
{
	return bpf_map_lookup_elem(&source_marks, &at);
}

/* Where the source's mark is, and which; NULL never. */
static __always_inline struct source_marks *marks_of(const struct in6_addr *source, __u64 *bit)
{
	__u64 words[2], hash;

	__builtin_memcpy(words, source, 16);
	hash = hash_mix(words[0] * HASH_GOLDEN ^ words[1]);
	*bit = 1ull << (hash & 63);
	return marks_at(hash >> 32 & (SOURCE_MARK_WORDS - 1));
}

/* Whether the source may be in the table. */
static __always_inline bool source_marked(const struct in6_addr *source)
{
	struct source_marks *marks;
	__u64 bit;

	marks = marks_of(source, &bit);
	return marks && (marks->of[0] | marks->of[1]) & bit;
}

/* The next generation begins in the place of the one before the last. */
static __always_inline void marks_turn(__u32 generation)
{
	struct source_marks *marks;
	__u32 i;

	for (i = loop_from(0); i < SOURCE_MARK_WORDS && can_loop; i++) {
		marks = marks_at(i);
		if (marks)
			marks->of[generation & 1] = 0;
	}
}

static __always_inline void source_mark(const struct in6_addr *source)
{
	struct source_marks *marks, *state = marks_at(SOURCE_MARK_WORDS);
	__u64 bit, *word;

	marks = marks_of(source, &bit);
	if (!marks || !state)
		return;
	word = &marks->of[state->of[0] & 1];
	if (*word & bit || __sync_fetch_and_or(word, bit) & bit)
		return;
	if (__sync_fetch_and_add(&state->of[1], 1) + 1 == SOURCES_MOST) {
		marks_turn(state->of[0] + 1);
		state->of[0]++;
		state->of[1] = 0;
	}
}
