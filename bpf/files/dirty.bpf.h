/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Dirty: bytes of a labelled file that are on their way to the disk are its container's, whoever wrote them.
 *
 * Problem: the kernel counts buffered writes with the thread that made the page dirty (task->ioac.write_bytes), and the
 * core charges them from there to what that thread is bound to.
 * How: the kernel tells before it counts. The bytes go to the container here, and the thread's record takes them for
 * counted: the core's next look finds nothing new. A thread that follows takes the container before that.
 * Limits: whole pages, as the kernel counts. Bytes that are cut off before they were written stay counted.
 */
#pragma once

#include "thread.bpf.h"

#define PAGE_BYTES 4096ull /* x86 */

/* The kernel's folio_order: flags are the first word, whose type differs; of a large folio the next page has the order. */
static __always_inline __u64 folio_bytes(struct folio *folio)
{
	__u64 flags = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	if (!(flags & 1ull << bpf_core_enum_value(enum pageflags, PG_head)))
		return PAGE_BYTES;
	return PAGE_BYTES << (BPF_CORE_READ(folio, _flags_1) & 31);
}

static __always_inline int folio_dirty(struct folio *folio, struct inode *inode)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_file *file = file_of(inode);
	struct fief_container *c;
	struct fief_cpu *cs;
	unsigned long flags;
	__u64 bytes;

	if (!file)
		return 0;
	c = container_get(file->container);
	if (!c)
		return 0;
	bytes = folio_bytes(folio);
	__sync_fetch_and_add(&c->usage.disk_write_bytes, bytes);
	/* what the thread has counted up to here is settled by this, so it comes first */
	file_follow(this_thread(), file->container);
	irq_save(&flags);
	cs = this_cpu();
	if (cs && cs->has_task && cs->running == p->pid && bpf_core_field_exists(p->ioac.write_bytes))
		cs->task.write_bytes += bytes;
	irq_restore(&flags);
	return 0;
}
