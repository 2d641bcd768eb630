/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Pipelined: several requests in one packet, which share what becomes of it, and one behind another that the server has not answered.
 *
 * Problem: they wait together, and a client could put one of a better class first, or last, to bring the others along. What the server does
 * for a request is charged to the class of its connection, so that one behind it could take that over, and escape a limit.
 * How: where there is a queue, all are of the lowest class among them, and so is what comes on this connection later: which of them the
 * server has answered is not read. Elsewhere the container is that of the last one. A client that is refused on such a connection is reset: an
 * answer of ours could be taken for that to another request.
 * Limits: what a server does for a request after the first bytes of its answer, all of which the client has acknowledged, is charged to the
 * class of the next. Of two levels of priority the lower one is the lower class, whatever their limits are. A server's 100 Continue
 * that never leaves, or in pieces, counts as the begin of its answer, and so does any where there is no queue.
 */
#pragma once

#include "queue.bpf.h"
#include "tracked.bpf.h"

/* What may be one more request beside the packet's others, or beside that of its connection, raises none of them. */
static __always_inline void pipelined_lower(struct front_context *front, struct fief_label *label,
					    struct fief_ref container)
{
	if (front->guard->queue && is_lower_class(front->guard->queue, ref_word(container), ref_word(label->container)))
		label_move(label, container);
	front->ruled = true;
}

/* A later request of the packet may pass. */
static __always_inline void pipelined_take(struct front_context *front, struct fief_label *label,
					   const struct stream *stream)
{
	struct fief_ref container = stream->ruling.container;
	bool alone = !front->ruled && !stream->unanswered;

	if (!alone)
		__sync_fetch_and_or(&label->flags, FIEF_LABEL_PIPELINED);
	if (!alone && front->guard->queue)
		return pipelined_lower(front, label, container);
	label_move(label, container);
	front->ruled = true;
}

/* One behind the first of a connection may pass. */
static __always_inline void pipelined_add(const struct front_context *front, struct fief_admitted *entry,
					  const struct ruling *ruling)
{
	entry->tracked |= FIEF_LABEL_PIPELINED;
	if (!front->guard->queue ||
	    !is_lower_class(front->guard->queue, ref_word(ruling->container), ref_word(entry->container)))
		return;
	/* the rule stays that of the first, whose rate has been charged (begin_claim) */
	entry->container = ruling->container;
}
