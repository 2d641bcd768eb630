/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The scheduler's parts that decide, over tables of this process in the place of the kernel's maps. */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef short __s16;
typedef int __s32;
typedef long long __s64;

#include "abi.h"

#define __noinline __attribute__((noinline))
#define __arg_nonnull
#ifndef __always_inline /* the C library has it too */
#define __always_inline inline __attribute__((always_inline))
#endif
#define SEC(name)	       __attribute__((unused))
#define __uint(name, value)    int(*name)[value]
#define __type(name, value)    __typeof__(value) *name
#define bpf_for(i, start, end) for (i = (start); i < (end); i++)
#define barrier()	       __asm__ volatile("" ::: "memory")
enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_TASK_STORAGE = 29, BPF_F_NO_PREALLOC = 1, BPF_F_MMAPABLE = 1024 };
struct bpf_timer {
	__u64 opaque[2];
};
struct task_struct;

static void *bpf_map_lookup_elem(const void *map, const void *key);

static void *bpf_task_storage_get(const void *map, struct task_struct *p, void *value, __u64 flags)
{
	(void)map, (void)p, (void)value, (void)flags;
	return NULL;
}

#define TABLE 4096
static struct fief_container table[TABLE];

static struct fief_container *container_at(__u32 id)
{
	return id < TABLE ? &table[id] : NULL;
}

static struct fief_attributes *attributes_of(struct fief_container *c)
{
	return &c->attributes[0];
}

#include "order.h"
#include "state.bpf.h"
#include "tree.bpf.h"
#include "limit.bpf.h"
#include "pick.bpf.h"

static struct sched_node nodes[TABLE];
static struct sched_queue queues[QUEUES];
static __u32 numbers[QUEUES];
static struct sched_machine machine;
static struct fief_sched state;
static __u32 generation;

static void *bpf_map_lookup_elem(const void *map, const void *key)
{
	__u32 at = *(const __u32 *)key;

	if (map == &sched_nodes)
		return at < TABLE ? &nodes[at] : NULL;
	if (map == &sched_queues)
		return at < QUEUES ? &queues[at] : NULL;
	if (map == &sched_free)
		return at < QUEUES ? &numbers[at] : NULL;
	if (map == &sched_machines)
		return &machine;
	if (map == &sched_states)
		return &state;
	return NULL;
}

void order_reset(void)
{
	memset(table, 0, sizeof(table));
	memset(nodes, 0, sizeof(nodes));
	memset(queues, 0, sizeof(queues));
	memset(&machine, 0, sizeof(machine));
	for (__u32 i = 1; i < QUEUES; i++)
		numbers[i - 1] = QUEUES - i;
	machine.free = QUEUES - 1;
	table[FIEF_ROOT].state = FIEF_ALIVE;
	table[FIEF_ROOT].attributes[0].weight = 100;
}

void order_container(__u32 id, __u32 parent, __u32 share_ppm, __u32 limit_ppm, __u32 weight, __u32 priority)
{
	struct fief_container *c = &table[id];

	c->parent.id = parent;
	c->generation = ++generation; /* as of a number that had other containers before */
	c->state = FIEF_ALIVE;
	c->attributes[0].share_ppm = share_ppm;
	c->attributes[0].limit_ppm = limit_ppm;
	c->attributes[0].weight = weight;
	c->attributes[0].priority = priority;
	table[parent].attributes[0].reserved_ppm += share_ppm;
}

void order_charge(__u32 id, __u64 ns)
{
	table[id].charged_own_ns += ns;
	for (; id != FIEF_ROOT; id = table[id].parent.id)
		table[id].charged_ns += ns;
}

/* The number of its queue. */
__u32 order_wait(__u32 id)
{
	waits_more(id);
	return queue_take(id);
}

void order_run(__u32 id)
{
	waits_less(id);
	queue_return(id);
}

bool order_held(__u32 id)
{
	return is_held(id);
}

/* As a CPU does it: searches until a container is found, or nothing is left. */
__s32 order_pick(__u64 now)
{
	__s32 found = PICK_AGAIN;

	machine.search = ++machine.searches;
	for (int i = 0; i < 4096 && found == PICK_AGAIN; i++)
		found = tree_pick(now);
	return found;
}
