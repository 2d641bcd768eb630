/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Quota: how many things of one kind each user has, in a table of users.
 *
 * Problem: a user who has none any more must not keep a place in the table: one with many numbers would fill it, and keep all
 * others from their first. And what is removed may be another user's entry a moment later.
 * How: who gives the last one back marks the entry and removes it. Who counted in a marked entry asks again, and finds a
 * fresh one. The last count becomes the mark in one step: in an entry that counts nothing, the mark could be set when it is another
 * user's. An entry begins with its count, and may have more in it (containers.bpf.h).
 * Root has no quota and no entry: entry 0 counts what all users have together, where that has a bound too. With it users of many
 * numbers leave a part of the tables to root.
 * Limits: a user that gives the last one back while somebody counts in the entry by mistake keeps it until the next one goes. While an
 * entry goes its user is refused (-EAGAIN); before Linux 6.15 whoever removes it may be preempted meanwhile.
 */
#pragma once

#define QUOTA_GONE	FIEF_USER_GONE
#define QUOTA_TRIES	4
#define QUOTA_CAS_TRIES 64
#define QUOTA_ALL	0

/* One more in an entry, where `count` is: how many it counted before, or -EAGAIN, as it went at this moment. */
static __always_inline long entry_take(void *users, const void *user, const void *entry, __u32 *count)
{
	__u32 was = __sync_fetch_and_add(count, 1);

	if (was & QUOTA_GONE)
		return -EAGAIN;
	if (bpf_map_lookup_elem(users, user) == entry)
		return was;
	__sync_fetch_and_add(count, -1); /* another user's by now */
	return -EAGAIN;
}

/* A word of an entry, if it has one, keeps it though it counts nothing: whoever needs the entry then changes ENTRY_GOES before. */
#define ENTRY_GOES  0ull
#define ENTRY_STAYS (1ull << 32)
#define ENTRY_ENDS  (2ull << 32) /* somebody is about to remove it */

/* One less; the last one takes the entry along, unless that is kept. `keeps`: NULL, there is no such word. */
static __always_inline void entry_give(void *users, const void *user, __u32 *count, __u64 *keeps)
{
	bool last = false, done = false;
	unsigned long flags;
	int i;

	irq_save(&flags); /* the mark does not stand for long; before 6.15 this does nothing */
	bpf_for (i, 0, QUOTA_CAS_TRIES) {
		__u32 old = *(volatile __u32 *)count;

		last = old == 1 && (!keeps || __sync_val_compare_and_swap(keeps, ENTRY_GOES, ENTRY_ENDS) == ENTRY_GOES);
		done = __sync_val_compare_and_swap(count, old, last ? QUOTA_GONE : old - 1) == old;
		if (done)
			break;
		if (last && keeps) /* not the last any more */
			__sync_val_compare_and_swap(keeps, ENTRY_ENDS, ENTRY_GOES);
	}
	if (!done)
		__sync_fetch_and_add(count, -1);
	else if (last)
		bpf_map_delete_elem(users, user);
	irq_restore(&flags);
}

static __always_inline void quota_give(void *users, __u32 uid)
{
	__u32 *count = uid ? bpf_map_lookup_elem(users, &uid) : NULL;

	if (count)
		entry_give(users, &uid, count, NULL);
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
	int err = -EAGAIN, i;
	__u32 *count;
	long was;

	if (!uid)
		return 0;
	for (i = 0; i < QUOTA_TRIES; i++) {
		count = quota_entry(users, uid);
		if (!count)
			return -ENFILE;
		was = entry_take(users, &uid, count, count);
		if (was < 0)
			continue;
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
