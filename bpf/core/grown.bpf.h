/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Grown: records that a caller asks for, whichever version it was built with.
 *
 * Problem: a record grows, and a program that was built before has room for less of it.
 * How: a record grows at its end alone. The caller gets as many of its words as fit into the buffer, and sees by the length how many these
 * are: an older program gets what it knows, and a newer one sees what this version does not tell.
 * Limits: the buffer must have room for the first version of the record, or it is meant for something else (EINVAL).
 */
#pragma once

/* Bytes of the first versions, which stay. */
#define USAGE_FIRST	 128
#define ATTRIBUTES_FIRST 48
#define INFO_FIRST	 80
#define DROPS_FIRST	 48

_Static_assert(sizeof(struct fief_usage) >= USAGE_FIRST && sizeof(struct fief_info) >= INFO_FIRST &&
		   sizeof(struct fief_drops) >= DROPS_FIRST &&
		   __builtin_offsetof(struct fief_attributes, named) == ATTRIBUTES_FIRST,
	       "nothing of a record's first version goes or moves");

/* `size` and `first` are constants, and multiples of a word's size. */
static __always_inline int record_give(struct bpf_sockopt *ctx, const void *record, __u32 size, __u32 first)
{
	const __u64 *from = record;
	__u64 *to = ctx->optval;
	void *end = ctx->optval_end;
	__u32 word;

	if ((void *)to + first > end)
		return -EINVAL;
#pragma unroll
	for (word = 0; word < size / sizeof(*to); word++) {
		if (word >= first / sizeof(*to) && (void *)(to + word + 1) > end)
			break;
		__builtin_memcpy(to + word, from + word, sizeof(*to)); /* records are of other types */
	}
	ctx->optlen = word * sizeof(*to);
	return 0;
}
