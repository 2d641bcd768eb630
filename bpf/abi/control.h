/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Control: what the privileged side sets, and the arguments of its programs. */
#pragma once

#include "container.h"

struct fief_control {
	__u32 abi_version;
	__u32 slot;	       /* policy tables in force: 0 or 1 */
	__u32 epoch;	       /* counts applied policies */
	__u32 containers;      /* slots of the table, those of Fief's own included */
	__u32 user_containers; /* held by unprivileged users now, all together */
	__u32 user_quota;      /* containers per unprivileged user */
	__u32 tree_lock;
	__u32 build;	 /* whose programs are in force: a hash of them */
	__u64 requests;	 /* that threads were left (core/request.bpf.h), counted when each can be seen */
	__u64 errors[8]; /* enum fief_error, which has no more */
	__u32 labelled;	 /* files */
	/* By policy slot: which instance of the files object charges labelled files; 0: files have no labels. */
	__u32 file_instance[2];
	__u32 last_filter; /* ids of filtered listeners count from 1, over upgrades too */
};
enum fief_error {
	FIEF_ERR_NO_STORAGE, /* a thread's record could not be made at that moment; one of a unit gets it at a later switch */
	FIEF_ERR_TABLE_FULL,
	FIEF_ERR_LOCK,
	FIEF_ERR_SWITCH,
	FIEF_ERR_DOOR,	  /* a part of the door was not there: the packet passed unruled */
	FIEF_ERR_VERDICT, /* the table of counters was full: a verdict was carried out and not counted */
	FIEF_ERR_RING,	  /* a thread's ring could not be read, or said what cannot be; each ring counts once */
	FIEF_ERR_UNBOUND, /* a new thread has no record and is in no unit: it stays without its creator's container */
	FIEF_ERRORS
};

/*
 * What unprivileged users cannot have of the table, all together: with it the operator can always apply a policy and
 * manage units. One part in so many.
 */
#define FIEF_RESERVED_PART 8

/* Owners of a container whose quota is nobody's: the operator, and a user's own parent (user/<uid>). */
#define FIEF_OWNER_OPERATOR    0xffffffffu
#define FIEF_OWNER_USER_PARENT 0xfffffffeu

/* containers of one user against the quota */
struct fief_user {
	__u32 containers; /* FIEF_USER_GONE: the entry is being removed; a new one takes its place */
	__u32 spare;
	struct fief_ref parent; /* user/<uid> */
};

#define FIEF_USER_GONE 0x80000000u

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

/* What a user asks of the control plane for itself (core/asked.bpf.h). */
enum fief_ask {
	FIEF_ASK_PLACE,	 /* user/<uid>, for a thread outside of every unit; out: container */
	FIEF_ASK_CREATE, /* a child of container, with that name; out: container */
	FIEF_ASK_END,
	FIEF_ASK_SET,  /* slot: FIEF_ATTR_*; value */
	FIEF_ASK_BIND, /* pid: a thread, of the process whose descriptor's inode is value */
};

/* The thread that asks, which waits for the answer, and the user that the kernel names with what it asks. */
struct fief_asker {
	__s32 thread;
	__u32 uid;
	__u32 ask; /* enum fief_ask */
	__u32 pad;
};

/* arguments of the programs that only the privileged control plane runs (BPF_PROG_RUN); answers stand in them too */
struct fief_admin {
	struct fief_ref container; /* in: operand (create: parent); out: the new one */
	struct fief_ref parent;	   /* release: who takes it over if somebody still holds it; FIEF_NO_ID: nobody */
	__s32 pid;
	__u32 flags;
	__u32 slot; /* attributes, flip: policy slot; set: FIEF_ATTR_* */
	__u32 pad;
	__u64 value; /* release: only if its parent has ended */
	char name[FIEF_NAME_LEN];
	struct fief_usage usage;
	struct fief_attributes attributes;
	struct fief_asker asker;
};
