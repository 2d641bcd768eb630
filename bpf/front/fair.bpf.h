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
#include "list.bpf.h"
#include "mix.bpf.h"

/*
 * Which list the requests of the packet's source are in; an IPv6 source is a /56, as one customer has. 0 where clients take no
 * turns. Global, so that the verifier does not follow both.
 */
__noinline int source_list(const struct packet *p __arg_nonnull, __u32 fair)
{
	const __u32 *words = (const __u32 *)p->source;
	__u64 of;

	if (!fair)
		return 0;
	of = p->ipv6 ? (__u64)words[0] << 32 | (words[1] & bpf_htonl(~0xffu)) : words[3];

	return hash_mix((of ^ queue_mark()) * HASH_GOLDEN) & (FIEF_QUEUE_SOURCES - 1);
}

static __always_inline struct fief_queue_list *source_of(struct fief_queue_class *of, const struct queue_link *link)
{
	return &of->source[link->source & (FIEF_QUEUE_SOURCES - 1)];
}

/* In `sources` of the class. */
static __always_inline __u32 source_bit(const struct queue_link *link)
{
	return 1u << (link->source & (FIEF_QUEUE_SOURCES - 1));
}

static __always_inline void source_append(struct fief_queue_class *of, struct queue_links *links, __u32 at)
{
	struct queue_link *link = queue_link(links, at);

	list_append(source_of(of, link), links, at, CHAIN_SOURCE);
	of->sources |= source_bit(link);
}

static __always_inline void source_prepend(struct fief_queue_class *of, struct queue_links *links, __u32 at)
{
	struct queue_link *link = queue_link(links, at);

	list_prepend(source_of(of, link), links, at, CHAIN_SOURCE);
	of->sources |= source_bit(link);
}

static __always_inline void source_remove(struct fief_queue_class *of, struct queue_links *links, __u32 at)
{
	struct queue_link *link = queue_link(links, at);

	list_remove(source_of(of, link), links, at, CHAIN_SOURCE);
	if (!source_of(of, link)->linked)
		of->sources &= ~source_bit(link);
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
