/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rule table: the rule of a client's prefix or of a request's pattern, of a million of them, with one cache line
 * missed.
 *
 * Problem: in a hash of the kernel's a look takes the bucket and then the element, each far from everything else: two
 * misses of the cache, and two of the TLB, which a virtual machine pays twice.
 * How: an open table of lines (struct fief_line). The hash tells the line, which nearly always has the key or shows that
 * there is none. Keys name the records of their rules, of which there are few.
 * Limits: it is built in user space (rule_table.rs) and never changes. A key is a secret hash and no more, of which its
 * line has 48 bits: a stranger is taken for one that is there once in 10^13 looks, and nobody can search for such a pair.
 */
#pragma once

#include "loop.bpf.h"
#include "maps/rule_tables.bpf.h"

/* n + 1 if the line's key `n` is this one, else 0. Without a branch, which the CPU could only guess. */
static __always_inline __u32 place_if(const struct fief_line *line, __u32 n, __u64 hash)
{
	__u64 differs = (line->key[n] ^ hash) << (64 - FIEF_KEY_BITS), sign = differs | -differs;

	barrier_var(sign); /* clang knows what this is for, and would make a branch of it, */
	sign = sign >> 63 ^ 1;
	barrier_var(sign);
	return (n + 1) * (__u32)sign; /* and the verifier would follow a mask like one */
}

/* Line of the record that belongs to a key; 0: the key is not in the table. */
static __always_inline __u32 record_find(void *table, const struct fief_lines *lines, __u64 hash)
{
	__u32 at = lines->first + (__u32)((hash >> 32) * lines->count >> 32), place;
	struct fief_line *line;

	while (can_loop) {
		line = bpf_map_lookup_elem(table, &at);
		if (!line)
			break;
		place = place_if(line, 0, hash) | place_if(line, 1, hash) | place_if(line, 2, hash) |
			place_if(line, 3, hash) | place_if(line, 4, hash) | place_if(line, 5, hash) |
			place_if(line, 6, hash);
		place--;
		if (place < FIEF_LINE_KEYS)
			return (__u32)(line->key[place] >> FIEF_KEY_BITS) | line->record_high[place] << 16;
		if (!line->more)
			break;
		at++;
	}
	return 0;
}

/* The record in this line. */
static __always_inline void *record_at(void *table, __u32 line)
{
	return line ? bpf_map_lookup_elem(table, &line) : NULL;
}
