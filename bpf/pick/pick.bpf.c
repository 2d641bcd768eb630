/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Pick, measured: what it takes to find the class that is next (front/queue), beside one lookup in a hash table by the key of a
 * flow; and what a request that waited takes of its queue under the lock, and with that of what all queues share, by itself and
 * beside another CPU. No part of an installation: the lab loads it and runs it by itself.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"
#include "kernel.bpf.h"

#include "places.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct fief_queue);
} picked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct fief_flow_key);
	__type(value, __u64);
} looked_up SEC(".maps");

SEC("tc")
int run_nothing(struct __sk_buff *skb)
{
	return 0;
}

/* The class that is next, and 1. */
SEC("tc")
int run_pick(struct __sk_buff *skb)
{
	__u32 zero = 0, class;
	struct fief_queue *q = bpf_map_lookup_elem(&picked, &zero);

	return q && class_next(q, 0, &class) ? class + 1 : 0;
}

/* A request goes to the server and ends there. The class that was next, and 1. */
static __always_inline int run_turn(__u32 number)
{
	struct fief_queue *q = bpf_map_lookup_elem(&picked, &number);
	__u64 now = bpf_ktime_get_ns(), ends;
	__u32 class = 0, found;

	if (!q)
		return 0;
	bpf_spin_lock(&q->lock);
	places_run_out(q, now);
	found = class_next(q, now, &class);
	if (found) {
		classes_passed(q, class);
		level_serves(q, queue_class(q, class));
		ends = place_take(q, queue_class(q, class), place_ends(q, now, false));
		place_end(q, 0, ends);
	}
	bpf_spin_unlock(&q->lock);
	return found ? class + 1 : 0;
}

/* The same, and what all queues share: its link, and the count of news as it begins to wait and as the server gets it. */
static __always_inline int run_sharing_turn(__u32 number)
{
	struct queue_links *links = queue_links();
	__u32 at = links ? link_take(links) : 0;
	int next;

	if (!at)
		return 0;
	queue_news_tell();
	next = run_turn(number);
	queue_news_tell();
	link_put(links, at);
	return next;
}

SEC("tc")
int run_turn_of_one(struct __sk_buff *skb)
{
	return run_turn(0);
}

SEC("tc")
int run_turn_of_other(struct __sk_buff *skb)
{
	return run_turn(1);
}

SEC("tc")
int run_shared_one(struct __sk_buff *skb)
{
	return run_sharing_turn(0);
}

SEC("tc")
int run_shared_other(struct __sk_buff *skb)
{
	return run_sharing_turn(1);
}

SEC("tc")
int run_lookup(struct __sk_buff *skb)
{
	struct fief_flow_key key = {};
	__u64 *found;

	key.remote_port = 1;
	found = bpf_map_lookup_elem(&looked_up, &key);
	return found ? *found : 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
