/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Queues: their state, the requests that wait in them, and the flows whose requests servers have.
 *
 * Problem: a queue takes no memory before somebody waits, and its order must be known under its lock, where nothing can be
 * looked up.
 * How: the links of all that wait are one array, which is looked up before; a link belongs to the queue in whose list it is.
 * Everything else that is known of a request stands in tables that take memory as they fill, by the number of its link.
 */
#pragma once

/* By number. User space makes and removes them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct fief_queue);
} queues SEC(".maps");

#define LINK_CLOCK 1  /* its last byte is not acknowledged */
#define LINK_GROWS 4  /* more is put behind it: it stays in its list as long */
#define LINK_OWES  2  /* its client has not sent all of its body, or takes no answer */
#define LINK_FIRST 8  /* its connection has no socket yet */
#define LINK_FULL  16 /* the server took no connection when that was next */
#define LINK_LOST  32 /* it was carried, and TCP had not got it when that was looked at */

/*
 * The lists that a request is in: that of its class, in the order of arrival, or of what is refused, or was carried; and that of its
 * source, where clients take turns.
 */
enum queue_chain { CHAIN_LINE, CHAIN_SOURCE, CHAINS };

/* One place in the line. */
struct queue_link {
	struct {
		__u16 next;
		__u16 before;
	} chain[CHAINS];
	__u32 serial;	 /* differs each time that the link is used */
	__u32 interface; /* where the request came in, in the queue's network namespace */
	__u8 class;
	__u8 why;	/* enum queue_end, of one that is refused, or carried again */
	__u8 linked;	/* enum queue_place */
	__u8 flags;	/* LINK_* */
	__u64 since_ns; /* of one that was carried: when it is to be looked at */
	__u32 source;	/* number of the list of its source */
};

struct queue_links {
	struct bpf_spin_lock lock; /* of what is free */
	__u32 free;
	__u32 fresh; /* links that were never used begin behind this one */
	__u32 pad;
	struct queue_link at[FIEF_QUEUE_SLOTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct queue_links);
} queue_lines SEC(".maps");

/* Pieces of the requests that wait: number of the link << 4, and which piece. */
struct queue_piece {
	__u8 bytes[FIEF_QUEUE_PIECE];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct queue_piece);
} queue_pieces SEC(".maps");

/* Which link a flow's request has. */
struct queue_held {
	__u32 link;
	__u32 serial;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FIEF_QUEUE_SLOTS);
	__type(key, struct fief_flow_key);
	__type(value, struct queue_held);
} queue_holds SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH); /* a client that is never answered keeps nobody out */
	__uint(max_entries, 16384);
	__type(key, struct fief_flow_key);
	__type(value, struct fief_served); /* of flows whose requests servers have */
} queue_serves SEC(".maps");

/* Connections that keep a place until their end. None gives way to another one: each entry is a place. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct fief_flow_key);
	__type(value, struct fief_served);
} queue_lasts SEC(".maps");

/* Counts requests that begin to wait, and that servers get: who gives the CPU away looks at queues when it has changed (sched/lent). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} queue_news SEC(".maps");

static __always_inline __u64 *queue_news_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&queue_news, &zero);
}

/* What a carrier is known by: from the kernel's random source, set once for an installation; 0: there are none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} queue_marks SEC(".maps");

static __always_inline __u32 queue_mark(void)
{
	__u32 zero = 0, *mark = bpf_map_lookup_elem(&queue_marks, &zero);

	return mark ? *mark : 0;
}

static __always_inline struct queue_links *queue_links(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&queue_lines, &zero);
}

static __always_inline struct queue_link *queue_link(struct queue_links *links, __u32 at)
{
	return &links->at[at & (FIEF_QUEUE_SLOTS - 1)];
}
