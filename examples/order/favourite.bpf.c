/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Favourite: the thread that came first to its container has three parts of the CPU, each other one has one.
 *
 * An order for [cpu-policy] (docs/policy.md), loaded into the running scheduler. Build it with
 *
 *	bpftool btf dump file /sys/kernel/btf/vmlinux format c >vmlinux.h
 *	clang -target bpf -O2 -g -I. -c favourite.bpf.c
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <fief_policy.h>

#define PARTS 3
#define LAG   8000000ull /* who was away is no further behind */

struct line {
	__u32 container;
	__u32 generation;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct line);
	__type(value, __s32);
} favourites SEC(".maps");

static int favourite(struct fief_turn *turn)
{
	struct line line = {.container = turn->container, .generation = turn->generation};
	__s32 *first = bpf_map_lookup_elem(&favourites, &line), pid = turn->pid;

	switch (turn->verb) {
	case FIEF_TURN_DELETE:
		bpf_map_delete_elem(&favourites, &line);
		break;
	case FIEF_TURN_BEGIN:
		if (!first)
			bpf_map_update_elem(&favourites, &line, &pid, BPF_NOEXIST);
		turn->at = turn->clock;
		break;
	case FIEF_TURN_PLACE:
		if ((__s64)(turn->at - (turn->clock - LAG)) < 0)
			turn->at = turn->clock - LAG;
		break;
	case FIEF_TURN_RAN:
		turn->at += first && *first == pid ? turn->ran_ns / PARTS : turn->ran_ns;
		break;
	}
	return 1;
}

FIEF_POLICY(favourite);

char LICENSE[] SEC("license") = "Dual MIT/GPL";
