/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Sets of clients over a table of this thread in the place of the kernel's map; a plain hash in the place of its keyed one. */
#include <stdbool.h>
#include <string.h>

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef short __s16;
typedef int __s32;
typedef long long __s64;

#include "abi.h"
#include "costliest.h"

#define MOST_SETS 1024
static _Thread_local struct fief_cost_set sets[MOST_SETS];
static _Thread_local struct fief_cost_room room;

static __u64 mixed(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

void costs_reset(void)
{
	memset(sets, 0, sizeof(sets));
}

__u32 costs_set(__u64 client, __u32 of)
{
	return mixed(client) % (of < MOST_SETS ? of : MOST_SETS);
}

void costs_add(__u64 client, __u32 of, __u64 ns, __u64 now)
{
	room.client = client;
	room.now = now;
	cost_add(&sets[costs_set(client, of)], &room, ns, ns / 2);
}

/* What is shown of a client; false: it has no place. */
bool costs_of(__u64 client, __u32 of, __u64 *ns, __u64 *receive_ns)
{
	struct fief_cost_set *set = &sets[costs_set(client, of)];

	for (__u32 way = 0; way < FIEF_COST_WAYS; way++) {
		if (set->ways[way].client == client) {
			*ns = set->ways[way].ns;
			*receive_ns = set->ways[way].receive_ns;
			return true;
		}
	}
	return false;
}

__u64 costs_forgotten(__u32 set)
{
	return sets[set % MOST_SETS].forgotten_ns;
}

/* Of all that have a place. */
__u64 costs_shown(void)
{
	__u64 sum = 0;

	for (__u32 at = 0; at < MOST_SETS; at++)
		for (__u32 way = 0; way < FIEF_COST_WAYS; way++)
			sum += sets[at].ways[way].ns;
	return sum;
}
