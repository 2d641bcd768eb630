/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Drops and refusals, each told at most once in FIEF_NOTICE_NS.
 *
 * Problem: a ring buffer has one cursor. Two readers share what is in it, and without any it fills with what is old.
 * How: a log of fixed size, which the newest overwrites. A record bears its number, 0 while it is being written, so that a
 * reader keeps a cursor of its own and knows what it has missed.
 * Limits: two writers that are FIEF_NOTICES notices apart at one moment may mix.
 */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FIEF_NOTICES);
	__type(key, __u32);
	__type(value, struct fief_told);
} notice_log SEC(".maps");

/* Number of the newest. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} notice_heads SEC(".maps");

/* A place for one more, and its number. */
static __always_inline struct fief_told *notice_begin(__u64 *number)
{
	__u32 zero = 0, at;
	__u64 *head = bpf_map_lookup_elem(&notice_heads, &zero);
	struct fief_told *told;

	if (!head)
		return NULL;
	*number = __sync_fetch_and_add(head, 1) + 1;
	at = *number & (FIEF_NOTICES - 1);
	told = bpf_map_lookup_elem(&notice_log, &at);
	if (told)
		(void)__sync_lock_test_and_set(&told->number, 0);
	return told;
}

/* It is whole. */
static __always_inline void notice_end(struct fief_told *told, __u64 number)
{
	(void)__sync_lock_test_and_set(&told->number, number);
}
