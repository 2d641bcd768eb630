/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Lists of what waits in a queue, by numbers of links. Under the lock of the queue. */
#pragma once

#include "maps/queues.bpf.h"

static __always_inline void list_append(struct fief_queue_list *list, struct queue_links *links, __u32 at,
					enum queue_chain chain)
{
	struct queue_link *link = queue_link(links, at);

	link->chain[chain].next = 0;
	link->chain[chain].before = list->last;
	if (list->linked)
		queue_link(links, list->last)->chain[chain].next = at;
	else
		list->first = at;
	list->last = at;
	list->linked++;
}

static __always_inline void list_prepend(struct fief_queue_list *list, struct queue_links *links, __u32 at,
					 enum queue_chain chain)
{
	struct queue_link *link = queue_link(links, at);

	link->chain[chain].before = 0;
	link->chain[chain].next = list->first;
	if (list->linked)
		queue_link(links, list->first)->chain[chain].before = at;
	else
		list->last = at;
	list->first = at;
	list->linked++;
}

static __always_inline void list_remove(struct fief_queue_list *list, struct queue_links *links, __u32 at,
					enum queue_chain chain)
{
	struct queue_link *link = queue_link(links, at);
	__u32 next = link->chain[chain].next, before = link->chain[chain].before;

	if (before)
		queue_link(links, before)->chain[chain].next = next;
	else
		list->first = next;
	if (next)
		queue_link(links, next)->chain[chain].before = before;
	else
		list->last = before;
	list->linked--;
}
