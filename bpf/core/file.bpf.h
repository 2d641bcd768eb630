/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * File: the label of a file, a descriptor of its own.
 *
 *   socket()  setsockopt(FIEF_ASSIGN_FILE, fd)   the socket is the label; it holds the caller's container
 *   close()   of its last descriptor, also by kill -9: the label ends
 *
 * Problem: any thread may do the kernel's work for a file (its pages, their way to the disk). An open file has no storage for
 * us, and no hook reports its last close on every kernel.
 * How: a socket has both. The page cache knows the inode of a file, which is the key of a table for the programs of the files
 * object (bpf/files). The label is a container's descriptor without rights, so the code that counts and sweeps references
 * counts it too.
 * Limits: one label for each inode, not for each open file: the page cache knows no more. Regular files of file systems that
 * write back; on overlayfs the pages are another inode's, so label the file below it. A btrfs snapshot has the inode number of
 * the original file, and so its label.
 */
#pragma once

#include "descriptors.bpf.h"
#include "maps/file_labels.bpf.h"
#include "maps/file_users.bpf.h"
#include "quota.bpf.h"
#include "maps/labelled_files.bpf.h"

#define S_IFMT		  0170000
#define S_IFREG		  0100000
#define FMODE_WRITE	  2
#define BDI_CAP_WRITEBACK 1
#define CAP_FOWNER	  3
#define FILES_OF_USERS	  (FIEF_MAX_FILES / 8 * 7) /* the rest of the table is root's */

/* What a descriptor of the caller's meant at one moment. */
struct open_file {
	struct file *file;
	struct inode *inode;
	__u32 mode;
};

static __always_inline int file_look(__u32 number, struct open_file *to)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fdtable *table = BPF_CORE_READ(p, files, fdt);
	struct file **at = BPF_CORE_READ(table, fd), *file;

	if (number >= BPF_CORE_READ(table, max_fds))
		return -EBADF;
	if (bpf_probe_read_kernel(&file, sizeof(file), at + number) || !file)
		return -EBADF;
	to->file = file;
	to->inode = BPF_CORE_READ(file, f_mapping, host);
	to->mode = BPF_CORE_READ(file, f_mode);
	return 0;
}

/* inode_owner_or_capable() of the kernel's */
static __always_inline bool owns(struct inode *inode)
{
	const struct cred *mine = bpf_get_current_task_btf()->cred;

	if (BPF_CORE_READ(inode, i_uid.val) == mine->fsuid.val)
		return true;
	return mine->user_ns->level == 0 && (mine->cap_effective.val & (1ull << CAP_FOWNER));
}

/*
 * Which file it is, if the caller may label it: not one that others share and the caller can only read. Another thread can close
 * the descriptor meanwhile, and the kernel gives the structure to the next file: it has to be the same after the look.
 */
static __noinline int file_find(__u32 number, struct fief_file_key *key)
{
	struct open_file found = {}, again = {};
	struct inode *inode;
	unsigned long flags;
	bool may;
	int err;

	irq_save(&flags);
	err = file_look(number, &found);
	may = !err && (found.mode & FMODE_WRITE || owns(found.inode));
	if (!err)
		err = file_look(number, &again);
	irq_restore(&flags);
	if (err)
		return err;
	if (found.file != again.file || found.inode != again.inode || found.mode != again.mode)
		return -EAGAIN;
	inode = found.inode;
	if ((BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFREG)
		return -EINVAL;
	if (!(BPF_CORE_READ(inode, i_sb, s_bdi, capabilities) & BDI_CAP_WRITEBACK))
		return -EINVAL;
	key->inode = BPF_CORE_READ(inode, i_ino);
	key->device = BPF_CORE_READ(inode, i_sb, s_dev);
	key->generation = BPF_CORE_READ(inode, i_generation);
	return may ? 0 : -EPERM;
}

/* Enters the label into the table; `by` is 1, or -1 when it leaves. */
static __always_inline void file_add(struct fief_ref to, int by)
{
	struct fief_container *c = container_get(to);
	struct fief_control *control = control_get();

	if (c)
		__sync_fetch_and_add(&c->files, by);
	if (control)
		__sync_fetch_and_add(&control->labelled, by);
}

static __always_inline int file_take(struct fief_file *file)
{
	int err = quota_take(&file_users, file->uid, FIEF_FILES_PER_USER);

	if (err)
		return err;
	err = quota_take_all(&file_users, file->uid, FILES_OF_USERS);
	if (err)
		quota_give(&file_users, file->uid);
	file->is_counted = !err;
	return err;
}

/* Those that an older version let in were not counted among all. */
static __always_inline void file_give(const struct fief_file *file)
{
	if (file->is_counted)
		quota_give_all(&file_users, file->uid);
	quota_give(&file_users, file->uid);
}

static __always_inline int file_enter(struct fief_file_key *key, struct fief_ref container)
{
	struct fief_file file = {.container = container, .uid = bpf_get_current_uid_gid()};
	int err = file_take(&file);

	if (err)
		return err;
	err = bpf_map_update_elem(&labelled_files, key, &file, BPF_NOEXIST);
	if (err) {
		file_give(&file);
		return err == -EEXIST ? -EBUSY : err == -E2BIG ? -ENOSPC : err;
	}
	file_add(container, 1);
	return 0;
}

static __noinline int file_leave(struct fief_file_key *key)
{
	struct fief_file *file, was;

	if (!key)
		return 0;
	file = bpf_map_lookup_elem(&labelled_files, key);
	if (!file)
		return -ENOENT;
	was = *file;
	if (bpf_map_delete_elem(&labelled_files, key))
		return -ENOENT; /* another one was first */
	file_add(was.container, -1);
	file_give(&was);
	return 0;
}

/* The label of a file is closed for the last time. */
static __noinline int file_release(struct bpf_sock *sk)
{
	return file_leave(bpf_sk_storage_get(&file_labels, sk, 0, 0));
}

/* What the socket stores; the caller has taken a handle on the container, which is the label's if all of it succeeds. */
static __always_inline int file_label_make(struct bpf_sock *sk, struct fief_file_key *key, struct fief_ref container)
{
	struct fief_descriptor made = {.container = container, .flags = FIEF_DESCRIPTOR_FILE};
	int err = -ENOMEM;

	if (!bpf_sk_storage_get(&descriptors, sk, &made, BPF_SK_STORAGE_GET_F_CREATE))
		return err;
	/* before the table has it: the sweep takes an entry for lost that no socket stands for */
	if (bpf_sk_storage_get(&file_labels, sk, key, BPF_SK_STORAGE_GET_F_CREATE))
		err = file_enter(key, container);
	if (!err)
		return 0;
	bpf_sk_storage_delete(&file_labels, sk);
	bpf_sk_storage_delete(&descriptors, sk);
	return err;
}

/* A fresh socket becomes the label of an open file. */
static __always_inline int file_assign(struct bpf_sock *sk, __u32 number)
{
	struct fief_control *control = control_get();
	struct fief_file_key key = {};
	struct fief_container *c;
	struct fief_cpu *cs;
	struct fief_ref ref;
	int err;

	if (!control || !control->file_instance[control->slot & 1])
		return -ENOSYS;
	if (caller_ready())
		return -ESRCH;
	err = fresh_check(sk);
	if (err)
		return err;
	err = file_find(number, &key);
	if (err)
		return err;
	cs = this_cpu();
	if (!cs || !cs->has_task)
		return -ESRCH;
	ref = cs->task.binding;
	c = container_get(ref);
	if (!c || (ref.id >= FIEF_FIRST_ID && !container_hold_live(c, FIEF_HANDLE)))
		return -ESTALE;
	err = (c->refs & FIEF_HANDLES_MASK) > FIEF_HANDLES_MAX ? -EMFILE : file_label_make(sk, &key, ref);
	if (err)
		container_put(ref.id, FIEF_HANDLE);
	return err;
}

static __always_inline int file_mark(struct seq_file *to, struct fief_file_key *key)
{
	if (key)
		bpf_seq_write(to, key, sizeof(*key));
	return 0;
}

/* Takes a label away that no socket stands for. */
static __always_inline int admin_file_forget(struct fief_admin *a)
{
	struct fief_file_key key = {.inode = a->value, .device = a->flags, .generation = a->slot};

	return file_leave(&key);
}

/* Whether files have labels under the policy of a slot, and which programs charge them (a->value; 0: none). */
static __always_inline int admin_file_programs(struct fief_admin *a)
{
	struct fief_control *control = control_get();

	if (!control)
		return -ESTALE;
	control->file_instance[a->slot & 1] = a->value;
	return 0;
}
