/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Quota: how many things of one kind each user has, in a table of users.
 *
 * Problem: a user who has none any more must not keep a place in the table: one with many numbers would fill it, and keep all
 * others from their first.
 * How: who gives the last one back marks the entry and removes it. Who counted in a marked entry asks again, and finds a
 * fresh one.
 * Root has no quota and no entry.
 */
#pragma once

#define QUOTA_GONE  0x80000000u
#define QUOTA_TRIES 4

static __always_inline void quota_give(void *users, __u32 uid)
{
	__u32 *count = uid ? bpf_map_lookup_elem(users, &uid) : NULL;

	if (count && __sync_fetch_and_add(count, -1) == 1 && !__sync_val_compare_and_swap(count, 0, QUOTA_GONE))
		bpf_map_delete_elem(users, &uid);
}

static __always_inline int quota_take(void *users, __u32 uid, __u32 most)
{
	__u32 zero = 0, *count, was;
	int err = -EAGAIN, i;

	if (!uid)
		return 0;
	for (i = 0; i < QUOTA_TRIES; i++) {
		count = bpf_map_lookup_elem(users, &uid);
		if (!count) {
			bpf_map_update_elem(users, &uid, &zero, BPF_NOEXIST);
			count = bpf_map_lookup_elem(users, &uid);
		}
		if (!count)
			return -ENFILE;
		was = __sync_fetch_and_add(count, 1);
		if (was & QUOTA_GONE)
			continue;
		if (bpf_map_lookup_elem(users, &uid) != count) {
			__sync_fetch_and_add(count, -1); /* another user's by now */
			continue;
		}
		err = was < most ? 0 : -EDQUOT;
		if (err)
			quota_give(users, uid);
		break;
	}
	return err;
}
