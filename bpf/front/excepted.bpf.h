/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Excepted: sources that isolation or penalties of a listener never hold for (`isolate.except`, `penalty.except`).
 *
 * Problem: the operator's own monitoring, or a CDN behind which all clients are one source, must not be shut out by a rule.
 * How: a trie of prefixes by policy slot, listener and control. A listener without exceptions has no flag, and looks for none.
 * Limits: a client that forges an excepted address is bounded by rates and budgets alone.
 */
#pragma once

#include "context.bpf.h"
#include "maps/excepts.bpf.h"

static __always_inline bool excepted(const struct front_context *front, enum fief_except from)
{
	__u32 flag = from == FIEF_EXCEPT_ISOLATE ? FIEF_GUARD_NO_ISOLATE : FIEF_GUARD_NO_PENALTY;

	return front->guard->flags & flag && except_find(&front->packet, front->slot, front->listener.index, from);
}
