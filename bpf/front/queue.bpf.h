/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Queue: which request the server gets next.
 *
 * Problem: a server takes up requests in the order in which they come, and has many at once; a request of a better class then
 * waits for all that came before it.
 * How: the server gets as many requests at once as the policy says, until the first byte of an answer. The others wait
 * here: complete, acknowledged in the server's name, in one list for each class. Which class is next says classes.bpf.h; of it the
 * oldest request is.
 * A place is taken under the lock, and given back once: when its entry in queue_serves goes, or when it runs out.
 * Where requests cannot be read each turn of a client is one (turns.bpf.h).
 * Limits: one answer may be for several requests of one connection, which take one place.
 */
#pragma once

#include "charged.bpf.h"
#include "classes.bpf.h"
#include "fair.bpf.h"
#include "flow/key.bpf.h"
#include "maps/containers.bpf.h"
#include "maps/queues.bpf.h"
#include "owed.bpf.h"
#include "stands.bpf.h"

/* Verdicts of no kernel's: what is left to the queue's program. */
#define QUEUE_FIRST   72 /* the first request of a connection that has no socket */
#define QUEUE_UNHELD  73 /* the same, while the kernel makes the socket */
#define QUEUE_LATER   74 /* one on a socket */
#define QUEUE_WHOLE   75 /* the end of one whose head the server has */
#define QUEUE_REPEATS 76 /* bytes of a flow whose request waits */
#define QUEUE_RESETS  77 /* a reset of a flow whose request waits, or may be served */

/* Why somebody waits no longer. */
enum queue_end {
	QUEUE_GOES,
	QUEUE_DISPLACED,
	QUEUE_LATE,
	QUEUE_LOST, /* TCP has not got it, however often it was carried, */
	QUEUE_AGAIN /* or now goes once more (carried.bpf.h) */
};

#define QUEUE_OVER 16 /* beside the first ones: the limit of its class is used up, or its length */

/* Which list a link is in. */
enum queue_place { QUEUE_NOWHERE, QUEUE_CLASS, QUEUE_REFUSALS, QUEUE_CARRIED };

#define TICK_LOST_NS 1000000000ll

#define QUEUE_OPEN   1 /* of a queue: nobody waits any more, */
#define QUEUE_ENDS   2 /* nor comes back into its line */

/* What a request takes, and where it would wait. */
struct queue_turn {
	__u64 since_ns; /* when it came */
	__u64 ends;	/* when its place runs out */
	__u32 queue;
	__u32 class;
	__u32 source; /* list of its source */
	__u32 before; /* container of the request before it on its connection, as far as that is known */
};

/* What a CPU hands from one program to the next. Its packet: as far as the one before has read it. */
struct queue_handed {
	struct packet packet;
	__u32 slot;
	__u32 what;    /* QUEUE_FIRST ... */
	__u32 verdict; /* of a reset */
	__u32 link;    /* of a carrier */
	__u32 why;     /* enum queue_end */
	struct queue_turn turn;
	bool isolated;
	bool connected;
	bool queued;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct queue_handed);
} queue_handed SEC(".maps");

static __always_inline struct queue_handed *queue_handed_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&queue_handed, &zero);
}

static __always_inline struct fief_queue *queue_get(__u32 number)
{
	return number ? bpf_map_lookup_elem(&queues, &number) : NULL;
}

/*
 * The same for a packet. NULL too where that is in another network namespace, whose interfaces have numbers of their own: while a policy
 * moves its doors stand in both, and an interface takes its door along.
 */
static __always_inline struct fief_queue *queue_of_packet(struct __sk_buff *skb, __u32 number)
{
	struct sk_buff *buffer = bpf_cast_to_kern_ctx(skb);
	struct fief_queue *q = queue_get(number);

	return q && buffer->dev->nd_net.net->net_cookie == q->netns.cookie ? q : NULL;
}

static __always_inline bool queue_room(struct fief_queue *q)
{
	return q->open || *(volatile __u32 *)&q->busy < q->places;
}

/*
 * The packet's request has its place. Where the queue bounds nobody, as on trial, what else bounds its class still does.
 */
static __always_inline void placed_mark(struct __sk_buff *skb, const struct fief_queue *q)
{
	if (!q->monitor && !q->open)
		mark_add(skb, MARK_PLACED);
}

/* A request waits from now on, or the server has it. */
static __always_inline void queue_news_tell(void)
{
	__u64 *news = queue_news_get();

	if (news)
		__sync_fetch_and_add(news, 1);
}

/* Whether a request waits whose class has not used up its limit. */
static __always_inline bool queue_has_next(struct fief_queue *q, __u64 now)
{
	return *(volatile __u32 *)&q->bits && (q->open || now >= *(volatile __u64 *)&q->until_ns);
}

/* Whether a request of now would go on at once, if the limit of its class lets it. */
static __always_inline bool queue_is_free(struct fief_queue *q, __u64 now)
{
	return queue_room(q) && (q->open || !queue_has_next(q, now)); /* a request that comes to an open one passes */
}

/* ---- links, of which each has one owner ---- */

/* 0: there is none. */
static __always_inline __u32 link_take(struct queue_links *links)
{
	__u32 at;

	bpf_spin_lock(&links->lock);
	at = links->free & (FIEF_QUEUE_SLOTS - 1);
	if (at)
		links->free = queue_link(links, at)->chain[CHAIN_LINE].next;
	else if (links->fresh < FIEF_QUEUE_SLOTS - 1)
		at = ++links->fresh & (FIEF_QUEUE_SLOTS - 1);
	queue_link(links, at)->serial++;
	bpf_spin_unlock(&links->lock);
	return at;
}

static __always_inline void link_put(struct queue_links *links, __u32 at)
{
	bpf_spin_lock(&links->lock);
	queue_link(links, at)->serial++;
	queue_link(links, at)->chain[CHAIN_LINE].next = links->free;
	links->free = at & (FIEF_QUEUE_SLOTS - 1);
	bpf_spin_unlock(&links->lock);
}

/* ---- before the lock of the queue ---- */

/*
 * The class of the queue that a container (ref_word()) is, or the nearest one above it: an application's own container is none. What has
 * none is of the lowest. One loop for both, as its number bounds the class to the verifier.
 */
static __noinline __u32 queue_class_of(struct fief_queue *q, __u64 container)
{
	struct fief_ref of = ref_read(container);
	__u32 last = q->classes - 1;
	struct fief_container *c;
	int i;

	bpf_for (i, 0, FIEF_MAX_DEPTH * FIEF_QUEUE_CLASSES) {
		__u32 class = i & (FIEF_QUEUE_CLASSES - 1);

		if (class <= last && queue_class(q, class)->container.id == of.id)
			return class;
		if (class < FIEF_QUEUE_CLASSES - 1)
			continue;
		c = bpf_map_lookup_elem(&containers, &of.id);
		if (!c || c->generation != of.generation || of.id < FIEF_FIRST_ID)
			break;
		of = c->parent;
	}
	return last & (FIEF_QUEUE_CLASSES - 1);
}

/* Whether a request of the container waits for longer than one of the other. A function of its own to the verifier. */
__noinline int is_lower_class(__u32 queue, __u64 container, __u64 than)
{
	struct fief_queue *q = queue_get(queue);

	return q && queue_class_of(q, container) > queue_class_of(q, than);
}

/* ---- under the lock of the queue ---- */

/* One more of the class waits, or is about to. */
static __always_inline void class_joined(struct fief_queue *q, struct fief_queue_class *of)
{
	__u64 shared;

	q->waiting++;
	of->waiting++;
	shared = (__u64)of->reserve - of->waiting; /* negative: beyond what it has for itself */
	q->shared += shared >> 63;
}

/* One less. */
static __always_inline void class_left(struct fief_queue *q, struct fief_queue_class *of)
{
	__u64 shared = (__u64)of->reserve - of->waiting;

	q->shared -= shared >> 63;
	of->waiting--;
	q->waiting--;
}

/* After its list has changed. */
static __always_inline void class_look(struct fief_queue *q, struct queue_links *links, __u32 class)
{
	struct fief_queue_class *of = queue_class(q, class);
	__u32 bit = 1u << (class & (FIEF_QUEUE_CLASSES - 1));

	if (of->list.linked) {
		of->late_ns = queue_link(links, of->list.first)->since_ns + class_wait(of);
		q->bits |= bit;
	} else {
		q->bits &= ~bit;
		class_is_empty(of);
	}
}

/* The same where one has come into it. Without branches, as class_order(). */
static __always_inline void class_look_more(struct fief_queue *q, struct queue_links *links, __u32 class)
{
	__u64 absent = q->bits - 1ull, least, before;

	class_look(q, links, class);
	absent >>= 63;
	barrier_var(absent);
	least = q->late_ns | absent << 62; /* where nobody waited: QUEUE_NEVER, or more */
	before = (queue_class(q, class)->late_ns - least) >> 63;
	barrier_var(before);
	q->late_ns = least ^ ((least ^ queue_class(q, class)->late_ns) & -before);
}

static __always_inline void queue_push(struct fief_queue *q, struct queue_links *links, __u32 class, __u32 at)
{
	struct fief_queue_class *of = queue_class(q, class);

	if (!of->list.linked)
		class_begins(q, of);
	class_watch(of, queue_link(links, at)->since_ns);
	q->until_ns = 0;
	list_append(&of->list, links, at, CHAIN_LINE);
	if (q->fair)
		source_append(of, links, at);
	queue_link(links, at)->linked = QUEUE_CLASS;
	class_look_more(q, links, class);
}

/* It was next, and could not go. */
static __always_inline void queue_push_first(struct fief_queue *q, struct queue_links *links, __u32 class, __u32 at)
{
	struct fief_queue_class *of = queue_class(q, class);
	struct queue_link *link = queue_link(links, at);

	list_prepend(&of->list, links, at, CHAIN_LINE);
	if (q->fair)
		source_prepend(of, links, at);
	link->linked = QUEUE_CLASS;
	q->until_ns = 0;
	class_look_more(q, links, class);
}

/* Takes it out of its class's list. */
static __always_inline void queue_unlink(struct fief_queue *q, struct queue_links *links, __u32 class, __u32 at)
{
	list_remove(&queue_class(q, class)->list, links, at, CHAIN_LINE);
	if (q->fair)
		source_remove(queue_class(q, class), links, at);
	queue_link(links, at)->linked = QUEUE_NOWHERE;
	class_look(q, links, class);
}

/* ---- one that could not go ---- */

#define STUCK_NS 1000000

/* The server does not take the next one now: meanwhile others are told that they are refused. */
static __always_inline void queue_is_stuck(struct fief_queue *q, __u64 now)
{
	q->stuck_ns = now + STUCK_NS;
}

#define LATER_MOST 16

/*
 * Under the lock: the first request of a class whose connection has its socket, of the next few; 0: there is none. It goes while the server
 * accepts no connection, which says nothing of those that it has.
 */
static __always_inline __u32 later_first(const struct fief_queue_class *of, struct queue_links *links)
{
	__u32 at = of->list.first, i;

	for (i = loop_from(0); i < LATER_MOST && can_loop; i++) {
		if (!at || !(queue_link(links, at)->flags & LINK_FIRST))
			return at;
		at = queue_link(links, at)->chain[CHAIN_LINE].next;
	}
	return 0;
}

enum queue_back {
	BACK_ALONE,
	BACK_OTHER, /* later_first() knows another one */
	BACK_ENDED  /* its queue is about to be removed, and it is in no list of that: it is to be forgotten */
};

/* It could not go: it is the next one again. `flags`: LINK_FULL, or none. */
static __noinline enum queue_back queue_put_back(struct fief_queue *q, struct queue_links *links, __u32 at, __u32 flags)
{
	__u32 class = queue_link(links, at)->class;
	enum queue_back back = BACK_ENDED;

	queue_is_stuck(q, bpf_ktime_get_ns());
	bpf_spin_lock(&q->lock);
	if (!(q->open & QUEUE_ENDS)) {
		queue_push_first(q, links, class, at);
		queue_link(links, at)->flags |= flags;
		class_joined(q, queue_class(q, class));
		waits_owe(queue_class(q, class));
		back = later_first(queue_class(q, class), links) ? BACK_OTHER : BACK_ALONE;
	}
	bpf_spin_unlock(&q->lock);
	return back;
}
