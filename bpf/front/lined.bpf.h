/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Lined: what is kept of a request that waits in line.
 *
 * Problem: a request is up to 15 kB long, and most are below one.
 * How: its packet as far as it is known, what its verdict leaves for the socket, and its bytes in pieces of 1 kB, which take
 * memory as they are needed.
 * Limits: all queues together have FIEF_QUEUE_SLOTS requests and 64 MB of pieces.
 */
#pragma once

#include "admit.bpf.h"
#include "places.bpf.h"

#define QUEUE_OVERHEAD 512 /* bytes that a request takes beside its own */

struct queue_waiting {
	struct fief_flow_key key;
	struct packet packet;
	struct handshake with;
	struct fief_admitted admitted;
	__u64 since_ns;
	__u64 carried_ns; /* when it went to the server; 0: it has not */
	__u64 full_ns;	  /* since when that has no room for it */
	__u32 begin;	  /* and with which numbers its connection began, the client's and the server's */
	__u32 answers;
	__u32 queue;
	__u32 before; /* container of the request before it, whose body may still come */
	__u32 length;
	__u16 later; /* 1: the connection has its socket */
	__u16 first; /* 1: it had none when the request came */
	__u16 time;  /* to live, which it came with: the server may take none from afar (IP_MINTTL) */
	__u8 ethernet[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FIEF_QUEUE_SLOTS);
	__type(key, __u32);
	__type(value, struct queue_waiting);
} queue_waits SEC(".maps");

/* Too large for the stack. */
struct queue_scratch {
	struct queue_waiting waiting;
	struct queue_piece piece;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct queue_scratch);
} queue_scratches SEC(".maps");

static __always_inline __u32 queue_cost(__u32 length)
{
	if (length > FIEF_QUEUE_MOST)
		length = FIEF_QUEUE_MOST;
	return QUEUE_OVERHEAD + (length + FIEF_QUEUE_PIECE - 1) / FIEF_QUEUE_PIECE * FIEF_QUEUE_PIECE;
}

/* Whether both are one flow's. */
static __always_inline bool is_flow(const struct fief_flow_key *a, const struct fief_flow_key *b)
{
	const __u32 *left = (const __u32 *)a, *right = (const __u32 *)b;
	__u32 differ = 0, i;

	UNROLLED
	for (i = 0; i < sizeof(*a) / sizeof(*left); i++)
		differ |= left[i] ^ right[i];
	return !differ;
}

/*
 * The request of the flow that waits, and which link it has; NULL: there is none. Both tables give an element that is removed to another
 * flow at once. So the link is read in one go, and before what it leads to: whoever finds its serial under the lock of the queue
 * then, has what is the flow's.
 */
static __noinline struct queue_waiting *waiting_find(const struct fief_flow_key *key, struct queue_held *held)
{
	__u64 *found = bpf_map_lookup_elem(&queue_holds, key), read;
	struct queue_waiting *waiting;
	__u32 at;

	_Static_assert(sizeof(*held) == sizeof(read), "is read in one go");
	if (!found)
		return NULL;
	read = *(volatile __u64 *)found;
	__builtin_memcpy(held, &read, sizeof(read));
	held->link &= FIEF_QUEUE_SLOTS - 1;
	at = held->link;
	waiting = bpf_map_lookup_elem(&queue_waits, &at);
	return waiting && is_flow(&waiting->key, key) ? waiting : NULL;
}

/* ---- its end ---- */

/* Packets of its flow find no request that waits from now on. */
static __always_inline void hold_end(const struct queue_waiting *waiting, __u32 at)
{
	struct queue_held *held = bpf_map_lookup_elem(&queue_holds, &waiting->key);

	if (held && held->link == at)
		bpf_map_delete_elem(&queue_holds, &waiting->key);
}

/* It is in no list any more. Forgets all that is kept of it. */
static __noinline int waiting_forget(struct queue_links *links, __u32 at)
{
	struct queue_waiting *waiting = bpf_map_lookup_elem(&queue_waits, &at);
	struct queue_link *link = queue_link(links, at);
	struct fief_queue *q;
	__u32 piece, cost;
	int i;

	if (!waiting)
		return 0;
	q = queue_get(waiting->queue);
	cost = queue_cost(waiting->length);
	if (q && link->flags & LINK_CLOCK)
		__sync_fetch_and_add(&q->clocks, -1);
	hold_end(waiting, at);
	bpf_for (i, 0, FIEF_QUEUE_PIECES) {
		if (i * FIEF_QUEUE_PIECE >= waiting->length)
			break;
		piece = at << 4 | i;
		bpf_map_delete_elem(&queue_pieces, &piece);
	}
	bpf_map_delete_elem(&queue_waits, &at);
	link_put(links, at);
	if (q) /* behind all else: where nothing is kept, nothing is left */
		__sync_fetch_and_add(&q->kept, -(__u64)cost);
	return 0;
}

/* Under the lock of the queue: whether it waits, as it was found, and nothing is put behind it. */
static __always_inline bool link_waits(const struct queue_link *link, __u32 serial)
{
	return link->serial == serial && link->linked == QUEUE_CLASS && !(link->flags & LINK_GROWS);
}

/* Its client has gone. `held`, `waiting`: as waiting_find() said. Whether it waited. */
static __noinline bool waiting_cancel(const struct queue_held *held, const struct queue_waiting *waiting)
{
	struct queue_links *links = queue_links();
	__u32 at = held->link, serial = held->serial, class;
	struct queue_link *link;
	bool waited = false;
	struct fief_queue *q;

	q = queue_get(waiting->queue);
	if (!links || !q)
		return false;
	link = queue_link(links, at);
	bpf_spin_lock(&q->lock);
	class = link->class;
	if (link_waits(link, serial)) {
		queue_unlink(q, links, class, at);
		class_left(q, queue_class(q, class));
		queue_class(q, class)->gone++;
		waited = true;
	}
	bpf_spin_unlock(&q->lock);
	if (waited)
		waiting_forget(links, at);
	return waited;
}

/* ---- its begin ---- */

static __always_inline bool pieces_keep(struct __sk_buff *skb, const struct packet *p, struct queue_scratch *scratch,
					__u32 at)
{
	__u32 piece, done, length;
	int i;

	bpf_for (i, 0, FIEF_QUEUE_PIECES) {
		done = i * FIEF_QUEUE_PIECE;
		if (done >= p->payload_length)
			break;
		length = p->payload_length - done;
		if (length > FIEF_QUEUE_PIECE)
			length = FIEF_QUEUE_PIECE;
		barrier_var(length);
		if (!length)
			return false;
		barrier_var(length);
		if (length > FIEF_QUEUE_PIECE ||
		    bpf_skb_load_bytes(skb, p->payload + done, scratch->piece.bytes, length))
			return false;
		piece = at << 4 | i;
		if (bpf_map_update_elem(&queue_pieces, &piece, &scratch->piece, BPF_ANY))
			return false;
	}
	return true;
}

#define KEEP_LATER 1 /* the connection has its socket */
#define KEEP_OWES  2

/* The packet's time to live, as it came. */
static __always_inline __u16 time_to_live(struct __sk_buff *skb, const struct packet *p)
{
	__u8 time = 0;

	bpf_skb_load_bytes(skb,
			   p->network + (p->ipv6 ? offsetof(struct ipv6hdr, hop_limit) : offsetof(struct iphdr, ttl)),
			   &time, sizeof(time));
	return time;
}

/* Keeps the request, which has its place in the count of those that wait. Its link; 0: there is no room. */
static __noinline __u32 waiting_keep(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				     const struct queue_turn *turn, __u32 how)
{
	struct queue_links *links = queue_links();
	const struct packet *p = &front->packet;
	struct queue_scratch *scratch;
	struct queue_waiting *waiting;
	struct queue_link *link;
	struct queue_held held;
	struct fief_queue *q;
	__u32 zero = 0, at;

	scratch = bpf_map_lookup_elem(&queue_scratches, &zero);
	if (!scratch || !links)
		return 0;
	at = link_take(links);
	if (!at)
		return 0;
	waiting = &scratch->waiting;
	flow_key(p, &waiting->key);
	waiting->packet = *p;
	waiting->with = stream->with;
	waiting->admitted = stream->admitted;
	waiting->since_ns = turn->since_ns;
	waiting->carried_ns = 0;
	waiting->queue = turn->queue;
	waiting->before = turn->before;
	waiting->length = p->payload_length;
	waiting->later = how & KEEP_LATER;
	waiting->first = !waiting->later;
	waiting->time = time_to_live(skb, p);
	__builtin_memset(waiting->ethernet, 0, sizeof(waiting->ethernet));
	if (p->network >= sizeof(struct ethhdr))
		bpf_skb_load_bytes(skb, 0, waiting->ethernet, sizeof(struct ethhdr));
	link = queue_link(links, at);
	link->interface = skb->ifindex;
	link->class = turn->class;
	link->source = turn->source;
	link->flags = (how & KEEP_OWES ? LINK_OWES : 0) | (how & KEEP_LATER ? 0 : LINK_FIRST);
	link->why = QUEUE_GOES;
	link->linked = QUEUE_NOWHERE;
	link->since_ns = turn->since_ns;
	held.link = at;
	held.serial = link->serial;
	if (!bpf_map_update_elem(&queue_waits, &at, waiting, BPF_ANY) && pieces_keep(skb, p, scratch, at) &&
	    !bpf_map_update_elem(&queue_holds, &waiting->key, &held, BPF_ANY))
		return at;
	if (!bpf_map_lookup_elem(&queue_waits, &at)) {
		link_put(links, at);
		return 0;
	}
	q = queue_get(turn->queue);
	if (q) /* its caller takes that off */
		__sync_fetch_and_add(&q->kept, queue_cost(p->payload_length));
	waiting_forget(links, at);
	return 0;
}

/* ---- what is kept ---- */

/* Puts the request's bytes into the stream. */
static __always_inline bool waiting_load(const struct queue_waiting *waiting, __u32 at, struct stream *stream)
{
	struct queue_piece *piece;
	__u32 key, done;
	int i;

	stream->first = waiting->packet.seq - 1;
	stream->length = waiting->length;
	stream->with = waiting->with;
	stream->admitted = waiting->admitted;
	bpf_for (i, 0, FIEF_QUEUE_PIECES) {
		done = (i & 15) * FIEF_QUEUE_PIECE;
		if (done >= waiting->length)
			break;
		key = at << 4 | i;
		piece = bpf_map_lookup_elem(&queue_pieces, &key);
		if (!piece || bpf_probe_read_kernel(stream->bytes + done, FIEF_QUEUE_PIECE, piece->bytes))
			return false;
	}
	return true;
}
