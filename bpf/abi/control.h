/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Control: what the privileged side sets, and the arguments of its programs. */
#pragma once

#include "container.h"

struct fief_control {
	__u32 abi_version;
	__u32 slot;	  /* policy tables in force: 0 or 1 */
	__u32 epoch;	  /* counts applied policies */
	__u32 containers; /* in use */
	__u32 machine_wide;
	__u32 user_quota; /* containers per unprivileged user */
	__u32 tree_lock;
	__u32 build;	 /* whose programs are in force: a hash of them */
	__u64 errors[8]; /* enum fief_error */
	__u32 labelled;	 /* files */
	/* By policy slot: which instance of the files object charges labelled files; 0: files have no labels. */
	__u32 file_instance[2];
	__u32 pad;
};
enum fief_error {
	FIEF_ERR_NO_STORAGE,
	FIEF_ERR_STALE,
	FIEF_ERR_TABLE_FULL,
	FIEF_ERR_LOCK,
	FIEF_ERR_SWITCH,
	FIEF_ERRORS
};

/* containers of one user against the quota */
struct fief_user {
	__u32 containers;
	__u32 quota;		/* 0: fief_control.user_quota */
	struct fief_ref parent; /* user/<uid> */
};

/* a managed cgroup */
struct fief_unit {
	struct fief_ref home;
	__u32 task_flags; /* FIEF_TASK_* of its threads */
	__u32 pad;
};

/* What one socket or thread holds of a container; the sweep's iterators write these. */
struct fief_mark {
	struct fief_ref container;
	__u32 handles;
	__u32 threads;
};

/* arguments of the programs that only the privileged control plane runs (BPF_PROG_RUN); answers stand in them too */
struct fief_admin {
	struct fief_ref container; /* in: operand (create: parent); out: the new one */
	struct fief_ref parent;	   /* release: who takes it over if somebody still holds it; FIEF_NO_ID: nobody */
	__s32 pid;
	__u32 flags;
	__u32 slot; /* attributes, flip: policy slot */
	__u32 pad;
	__u64 value;
	char name[FIEF_NAME_LEN];
	struct fief_usage usage;
	struct fief_attributes attributes;
};
