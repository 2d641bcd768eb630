/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Thread: who takes the container of the socket it works on takes that of a labelled file too.
 *
 * Problem: an unmodified server reads what it sends, and knows nothing of containers.
 * How: reads, faults and misses of the page cache are events as receive and send are on a socket (core/follow). A miss is
 * told before the disk is asked, so that the bytes read are the file's container's, and the wait of a thread that had
 * slept before.
 * Limits: those of core/follow. Direct I/O passes the page cache by. Fault-around maps pages that are there untold.
 */
#pragma once

#include "core/follow.bpf.h"
#include "labelled.bpf.h"

static __always_inline void file_follow(struct fief_cpu *cs, struct fief_ref to)
{
	if (cs && cs->has_task && !cs->softirq_vector && !cs->in_irq && thread_follows(cs))
		thread_follow(cs, to, cs->task.client);
}

static __always_inline int file_event(struct inode *inode)
{
	struct fief_file *file = file_of(inode);

	if (file)
		file_follow(this_thread(), file->container);
	return 0;
}
