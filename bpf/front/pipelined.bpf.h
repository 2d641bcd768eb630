/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Pipelined: several requests in one packet, which share what becomes of it.
 *
 * Problem: they wait together, and a client could put one of a better class first, or last, to bring the others along.
 * How: where there is a queue, all are of the lowest class among them. Elsewhere the container is that of the last one.
 */
#pragma once

#include "queue.bpf.h"
#include "tracked.bpf.h"

/* What may be one more request beside the packet's others, or beside that of its connection, raises none of them. */
static __always_inline void pipelined_lower(struct front_context *front, struct fief_label *label,
					    struct fief_ref container)
{
	if (front->guard->queue && is_lower_class(front->guard->queue, container.id, label->container.id))
		label_move(label, container);
	front->ruled = true;
}

/* A later request of the packet may pass. */
static __always_inline void pipelined_take(struct front_context *front, struct fief_label *label,
					   struct fief_ref container)
{
	if (front->ruled && front->guard->queue)
		return pipelined_lower(front, label, container);
	label_move(label, container);
	front->ruled = true;
}

/* One behind the first of a connection may pass. */
static __always_inline void pipelined_add(const struct front_context *front, struct fief_admitted *entry,
					  const struct ruling *ruling)
{
	if (!front->guard->queue || !is_lower_class(front->guard->queue, ruling->container.id, entry->container.id))
		return;
	entry->container = ruling->container;
	entry->rule = ruling->rule.rule;
}
