/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Quota: how many things of one kind each user has, in a table of users.
 *
 * Problem: a user who has none any more must not keep a place in the table: one with many numbers would fill it, and keep all
 * others from their first.
 * How: who gives the last one back marks the entry and removes it. Who counted in a marked entry asks again, and finds a
 * fresh one.
 * Root has no quota and no entry: entry 0 counts what all users have together, where that has a bound too. With it users of many
 * numbers leave a part of the tables to root.
 */
#pragma once

#define QUOTA_GONE  0x80000000u
#define QUOTA_TRIES 4
#define QUOTA_ALL   0

static __always_inline void quota_give(void *users, __u32 uid)
{
	__u32 *count = uid ? bpf_map_lookup_elem(users, &uid) : NULL;

	if (count && __sync_fetch_and_add(count, -1) == 1 && !__sync_val_compare_and_swap(count, 0, QUOTA_GONE))
		bpf_map_delete_elem(users, &uid);
}

/* The entry of a user, or QUOTA_ALL's; it is made where there is none. NULL: there is no room. */
static __always_inline __u32 *quota_entry(void *users, __u32 uid)
{
	__u32 zero = 0, *count = bpf_map_lookup_elem(users, &uid);

	if (count)
		return count;
	bpf_map_update_elem(users, &uid, &zero, BPF_NOEXIST);
	return bpf_map_lookup_elem(users, &uid);
}

static __always_inline int quota_take(void *users, __u32 uid, __u32 most)
{
	__u32 *count, was;
	int err = -EAGAIN, i;

	if (!uid)
		return 0;
	for (i = 0; i < QUOTA_TRIES; i++) {
		count = quota_entry(users, uid);
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

static __always_inline void quota_give_all(void *users, __u32 uid)
{
	__u32 all = QUOTA_ALL, *count = uid ? bpf_map_lookup_elem(users, &all) : NULL;

	if (count)
		__sync_fetch_and_add(count, -1);
}

/* One more of all users. */
static __always_inline int quota_take_all(void *users, __u32 uid, __u32 most)
{
	__u32 *count;

	if (!uid)
		return 0;
	count = quota_entry(users, QUOTA_ALL);
	if (!count)
		return -ENFILE;
	if (__sync_fetch_and_add(count, 1) < most)
		return 0;
	__sync_fetch_and_add(count, -1);
	return -ENFILE;
}
