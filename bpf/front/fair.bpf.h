/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Fair: whose turn it is within a class, where the policy says that its clients take turns (`fair`).
 *
 * Problem: a client with a thousand connections has a thousand places in the line of its class.
 * How: beside the class's own list, in the order of arrival, each request is in one of FIEF_QUEUE_SOURCES lists, by a hash of
 * its address that nobody can foresee. The lists take turns. Where there is no room, the newest of the longest one gives way.
 * Limits: sources that share a list share its turns.
 *
 * All of this is under the lock of the queue.
 */
#pragma once

#include "bits.bpf.h"
#include "flow/packet.bpf.h"
#include "maps/queues.bpf.h"
#include "mix.bpf.h"

/* Which list the requests of the packet's source are in: an IPv6 source is a /56, as one customer has. */
static __always_inline __u32 source_list(const struct packet *p)
{
	const __u32 *words = (const __u32 *)p->source;
	__u64 of = p->ipv6 ? (__u64)words[0] << 32 | (words[1] & bpf_htonl(~0xffu)) : words[3];

	return hash_mix((of ^ queue_mark()) * HASH_GOLDEN) & (FIEF_QUEUE_SOURCES - 1);
}

static __always_inline struct fief_queue_list *source_of(struct fief_queue_class *of, const struct queue_link *link)
{
	return &of->source[link->source & (FIEF_QUEUE_SOURCES - 1)];
}

static __always_inline void source_append(struct fief_queue_class *of, struct queue_links *links, __u32 at)
{
	struct queue_link *link = queue_link(links, at);
	struct fief_queue_list *list = source_of(of, link);

	link->peer_next = 0;
	link->peer_before = list->linked ? list->last : 0;
	if (list->linked)
		queue_link(links, list->last)->peer_next = at;
	else
		list->first = at;
	list->last = at;
	list->linked++;
	of->sources |= 1u << (link->source & (FIEF_QUEUE_SOURCES - 1));
}

static __always_inline void source_prepend(struct fief_queue_class *of, struct queue_links *links, __u32 at)
{
	struct queue_link *link = queue_link(links, at);
	struct fief_queue_list *list = source_of(of, link);

	link->peer_before = 0;
	link->peer_next = list->linked ? list->first : 0;
	if (list->linked)
		queue_link(links, list->first)->peer_before = at;
	else
		list->last = at;
	list->first = at;
	list->linked++;
	of->sources |= 1u << (link->source & (FIEF_QUEUE_SOURCES - 1));
}

static __always_inline void source_remove(struct fief_queue_class *of, struct queue_links *links, __u32 at)
{
	struct queue_link *link = queue_link(links, at);
	struct fief_queue_list *list = source_of(of, link);

	if (link->peer_before)
		queue_link(links, link->peer_before)->peer_next = link->peer_next;
	else
		list->first = link->peer_next;
	if (link->peer_next)
		queue_link(links, link->peer_next)->peer_before = link->peer_before;
	else
		list->last = link->peer_before;
	list->linked--;
	if (!list->linked)
		of->sources &= ~(1u << (link->source & (FIEF_QUEUE_SOURCES - 1)));
}

/* The first of the list whose turn it is; somebody waits. */
static __always_inline __u32 source_first(const struct fief_queue_class *of)
{
	__u64 twice = (__u64)of->sources << FIEF_QUEUE_SOURCES | of->sources;
	__u32 next = (of->source_turn & (FIEF_QUEUE_SOURCES - 1)) + 1;
	__u64 from = twice >> next;

	return of->source[(next + lowest_bit(from)) & (FIEF_QUEUE_SOURCES - 1)].first;
}

/* Whether of one class a request of this list gives way to a newcomer of another: it is the longer one, with both in. */
static __always_inline bool source_gives_way(const struct fief_queue_class *of, __u32 longest, __u32 source)
{
	return of->source[longest & (FIEF_QUEUE_SOURCES - 1)].linked >
	       of->source[source & (FIEF_QUEUE_SOURCES - 1)].linked + 1;
}

/* The newest of the longest list. */
static __always_inline __u32 source_newest(const struct fief_queue_class *of)
{
	__u32 source, most = 0, at = of->list.last;

#pragma clang loop unroll(disable)
	for (source = 0; source < FIEF_QUEUE_SOURCES; source++) {
		const struct fief_queue_list *list = &of->source[source];
		__u64 more = (__u64)most - list->linked; /* negative: it is longer */

		more = -(more >> 63);
		barrier_var(more);
		most ^= (most ^ list->linked) & (__u32)more;
		at ^= (at ^ list->last) & (__u32)more;
	}
	return at;
}
