/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Files: work on labelled files is their container's. A table of contents; the parts are beside it.
 *
 *   labelled    which container a file belongs to     thread      whose work a thread does on it
 *   dirty       bytes on their way to the disk        writeback   the kernel threads that take them there
 *
 * It reuses the core's maps and is loaded only where a policy wants it: these tracepoints are everybody's.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "abi.h"
#include "kernel.bpf.h"
#include "compat.bpf.h"

#include "thread.bpf.h"
#include "dirty.bpf.h"
#include "writeback.bpf.h"

/* The page cache has what a thread reads. */
SEC("tp_btf/mm_filemap_get_pages")
int BPF_PROG(read_follows, struct address_space *mapping)
{
	return file_event(mapping->host);
}

SEC("tp_btf/mm_filemap_fault")
int BPF_PROG(fault_follows, struct address_space *mapping)
{
	return file_event(mapping->host);
}

/* It has not: before anything is read from the disk. */
SEC("tp_btf/mm_filemap_add_to_page_cache")
int BPF_PROG(miss_follows, struct folio *folio)
{
	return file_event(folio->mapping->host);
}

SEC("tp_btf/writeback_dirty_folio")
int BPF_PROG(dirty_charges, struct folio *folio, struct address_space *mapping)
{
	/* the kernel's verifier takes this one for one that may be missing */
	return mapping ? folio_dirty(folio, mapping->host) : 0;
}

SEC("tp_btf/writeback_single_inode_start")
int BPF_PROG(write_begins, struct inode *inode)
{
	return writeback_begin(inode);
}

SEC("tp_btf/writeback_single_inode")
int BPF_PROG(write_ends)
{
	return writeback_end();
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
