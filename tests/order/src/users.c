/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Users and what is counted for them, over a table of this process: an entry that was removed is the next user's.
 *
 * Two calls are under way at once. Each atomic step and each call of a helper is a point where the one may stop and the other go on;
 * users_share() names one for each.
 */
#include "kernel.h"
#include "calls.h"

/* core.c has these too */
#undef SEC
#define SEC(name)				  __attribute__((weak))
#define container_create			  users_container_create

#define __sync_fetch_and_add(at, by)		  (calls_point(), __sync_fetch_and_add(at, by))
#define __sync_val_compare_and_swap(at, old, now) (calls_point(), __sync_val_compare_and_swap(at, old, now))
#undef bpf_map_delete_elem
#define bpf_map_delete_elem table_delete
#define irq_save(flags)	    ((void)0)
#define irq_restore(flags)  ((void)0)
#define child_hold(...)	    false
#define child_put(...)	    ((void)0)

static long table_delete(const void *map, const void *key);

#include "abi.h"
#include "kernel.bpf.h"
#include "create.bpf.h"

#define USERS 2
#define FIRST 1000 /* their numbers */
#define MOST  100

static struct entry {
	bool used;
	__u32 uid;
	struct fief_user value; /* a quota has the first word of it alone */
} table[USERS];
static struct fief_control control;
static bool of_containers; /* the users' table, else one of quotas */
static bool stuck;	   /* the kernel removes nothing at the moment */
static char quotas;	   /* stands for a map */
static __u32 held[USERS], place;

/* ---- the kernel ---- */

static struct entry *entry_of(__u32 uid)
{
	for (int i = 0; i < USERS; i++)
		if (table[i].used && table[i].uid == uid)
			return &table[i];
	return NULL;
}

static void *bpf_map_lookup_elem(const void *map, const void *key)
{
	struct entry *found;

	if (map == &controls)
		return &control;
	calls_point();
	found = map == &users || map == &quotas ? entry_of(*(const __u32 *)key) : NULL;
	calls_point(); /* it may go before the caller looks at it */
	return found ? &found->value : NULL;
}

static long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags)
{
	__u32 uid = *(const __u32 *)key;

	(void)flags;
	calls_point();
	if (entry_of(uid))
		return -EEXIST;
	for (int i = 0; i < USERS; i++) {
		if (table[i].used)
			continue;
		table[i] = (struct entry){.used = true, .uid = uid};
		__builtin_memcpy(&table[i].value, value, map == &users ? sizeof(struct fief_user) : sizeof(__u32));
		return 0;
	}
	return -E2BIG;
}

static long table_delete(const void *map, const void *key)
{
	struct entry *found;

	(void)map;
	calls_point();
	found = entry_of(*(const __u32 *)key);
	if (stuck || !found)
		return -ENOENT;
	found->used = false;
	return 0;
}

static long bpf_map_pop_elem(const void *map, void *value)
{
	(void)map, (void)value;
	return -ENOENT;
}

static __u64 bpf_ktime_get_ns(void)
{
	return 0;
}

/* ---- users ---- */

void users_reset(bool containers)
{
	__builtin_memset(table, 0, sizeof(table));
	__builtin_memset(held, 0, sizeof(held));
	control = (struct fief_control){.containers = FIEF_DEFAULT_CONTAINERS};
	of_containers = containers;
	place = FIEF_NO_ID;
	stuck = false;
}

void users_stick(bool sticks)
{
	stuck = sticks;
}

/* As admin_user_forget() does it. */
bool users_sweep(__u32 user)
{
	struct entry *entry = entry_of(FIRST + user);

	if (!entry || !user_goes(&entry->value))
		return false;
	entry->used = false;
	return true;
}

static int take(__u32 user)
{
	int err = of_containers ? owner_enter(FIRST + user) : quota_take(&quotas, FIRST + user, MOST);

	held[user] += !err;
	return err;
}

static void give(__u32 user)
{
	if (!held[user])
		return; /* it was refused */
	held[user]--;
	if (of_containers)
		owner_count(FIRST + user, -1);
	else
		quota_give(&quotas, FIRST + user);
}

/* As user_parent() does it, with a container that is a number. */
static void place_make(__u32 user)
{
	struct fief_ref made = {FIEF_FIRST_ID + user, 1};
	struct fief_user *u;

	if (owner_room(FIRST + user, 0))
		return;
	u = user_get(FIRST + user);
	if (u)
		__sync_val_compare_and_swap((__u64 *)&u->parent, ENTRY_STAYS, ref_word(made));
}

/*
 * Of users A and B: a capital takes one, a small letter gives one back; `=` makes B a place of its own, `?` looks for A's. The last
 * error.
 */
int users_do(const char *steps)
{
	int err = 0;

	for (; *steps; steps++) {
		if (*steps == '=')
			place_make(1);
		else if (*steps == '?')
			place = user_place(FIRST).id;
		else if (*steps < 'a')
			err = take(*steps - 'A');
		else
			give(*steps - 'a');
	}
	return err;
}

/* A's place at the last look. */
__u32 users_place(void)
{
	return place;
}

/* ---- two calls at once ---- */

static const char *steps_of[2];

static void run(int call)
{
	users_do(steps_of[call]);
}

/*
 * The first stops at one of its points, then the second at one of its own; then the first goes on to its end, and the second. How many had
 * such a point; 0: not the first.
 */
int users_share(const char *first, __u32 first_stop, const char *second, __u32 second_stop)
{
	bool stopped[2];

	steps_of[0] = first;
	steps_of[1] = second;
	stopped[0] = calls_begin(0, run, first_stop);
	stopped[1] = calls_begin(1, run, second_stop);
	for (int i = 0; i < 2; i++)
		if (stopped[i])
			calls_go_on(i);
	return stopped[0] ? 1 + stopped[1] : 0;
}

__u32 users_held(__u32 user)
{
	return held[user];
}

/* What the table says of one. */
__u32 users_counted(__u32 user)
{
	struct entry *entry = entry_of(FIRST + user);

	return entry ? entry->value.containers : 0;
}

__u32 users_entries(void)
{
	__u32 count = 0;

	for (int i = 0; i < USERS; i++)
		count += table[i].used;
	return count;
}
