/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Waits: whether a class of a queue waits for the threads that serve its listener, by what the queue tells, as numbers alone. */
#pragma once

#include "order.h"

/*
 * `lined`: requests of the class stand in the queue's line. Else the server may have one that it has not read: the last one that it
 * got and has not begun to answer, as long as nobody has worked for the class since, and its place has not run out.
 */
static inline bool class_waits(const struct fief_queue_class *of, bool lined, __u64 worked_ns, __u64 now)
{
	__u64 handed_ns = of->handed_ns;

	if (is_before(now, of->again_ns))
		return false; /* its limit is used up, and the queue passes it over */
	if (lined)
		return true;
	return handed_ns && is_before(worked_ns, handed_ns) && is_before(now, of->handed_until_ns);
}
