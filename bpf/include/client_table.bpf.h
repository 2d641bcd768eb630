/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Client table: the client record of a prefix, of a million of them, with one line of the cache missed.
 *
 * Problem: in a hash of the kernel's a look takes the bucket and then the element, each far from everything else: two
 * misses of the cache, and two of the TLB, which a virtual machine pays twice.
 * How: an open table of lines (struct fief_prefix_line). The hash tells the line, which nearly always has the prefix or
 * shows that there is none. Prefixes name their client record, of which there are as few as rules.
 * Limits: it is built in user space (steer/client_table.rs) and never changes. The table has room for the prefixes
 * twice over, so that one in ten stands in the line behind its own.
 */
#pragma once

#include "loop.bpf.h"
#include "maps/client_tables.bpf.h"

/* The client of the line's prefix `n`, if it is this one; else 0. Without a branch, which the CPU could only guess. */
static __always_inline __u32 client_if(const struct fief_prefix_line *line, int n, __u64 high, __u64 low, __u32 length)
{
	__u64 differs = (line->address[n][0] ^ high) | (line->address[n][1] ^ low) | (line->length[n] ^ length);
	__u64 sign = differs | -differs;

	barrier_var(sign); /* clang knows what this is for, and would make a branch of it */
	return line->client[n] & (__u32)((sign >> 63) - 1);
}

/* Line of the client record of a prefix, whose search begins at line `at`; 0: it is not in the table. */
static __always_inline __u32 prefix_find(void *table, __u32 at, __u64 high, __u64 low, __u32 length)
{
	struct fief_prefix_line *line;
	__u32 client;

	while (can_loop) {
		line = bpf_map_lookup_elem(table, &at);
		if (!line)
			break;
		client = client_if(line, 0, high, low, length) | client_if(line, 1, high, low, length) |
			 client_if(line, 2, high, low, length);
		if (client || !line->more)
			return client;
		at++;
	}
	return 0;
}
