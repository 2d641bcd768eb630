/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Labelled: which container a file belongs to.
 *
 * Problem: every read and write of the machine through the page cache asks.
 * How: one word says whether there are labels at all; then one look into the table by what the inode is numbered with.
 * Two instances of these programs can be attached (an upgrade; the kernel detaches some time after it is asked to), and an
 * event must count once: only those act that the policy in force names.
 * Limits: core/file.bpf.h.
 */
#pragma once

#include "maps/controls.bpf.h"
#include "maps/labelled_files.bpf.h"

const volatile __u32 instance; /* this one's programs; never 0 */

static __always_inline struct fief_file *file_of(struct inode *inode)
{
	struct fief_control *control = control_get();
	struct fief_file_key key = {};

	if (!control || !control->labelled || control->file_instance[control->slot & 1] != instance)
		return NULL;
	key.inode = inode->i_ino;
	key.device = inode->i_sb->s_dev;
	key.generation = inode->i_generation;
	return bpf_map_lookup_elem(&labelled_files, &key);
}
