/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Schedule: what the scheduler tells user space. */
#pragma once

#include "charge.h"

#define FIEF_SCHED_REASON  64
#define FIEF_SCHED_MESSAGE 128

/* One record, made anew each time that the scheduler is turned on. */
struct fief_sched {
	__u64 exit_kind; /* of the kernel's enum scx_exit_kind; 0: it runs */
	__s64 exit_code;
	char exit_reason[FIEF_SCHED_REASON];   /* the kind in the kernel's words */
	char exit_message[FIEF_SCHED_MESSAGE]; /* what happened; empty for some kinds */
	__u64 picked;			       /* times that a queue was chosen by the tree */
	__u64 kept;			       /* times that the running thread was chosen */
	__u64 held;			       /* times that a container was passed over since its limit was used up */
	__u64 floored;			       /* threads that had waited so long that they went first, for a moment */
	__u64 preempted;		       /* threads that a container of a higher priority took the CPU from */
	__u64 unqueued;	   /* threads without a queue of their container, since all queues were taken */
	__u64 lock_failed; /* times that the tree could not be locked: the thread went round it */
	__u64 combined;	   /* times that a thread waited on the allocation of another container than it worked for */
	__u64 lent;	   /* the same, since a request of that one waited for it */
};

/* A thread that is scheduled for other containers than it works for, by its and its process's number in the first PID namespace. */
struct fief_combined {
	__u32 thread;
	__u32 process;
	__u32 count; /* of those that it serves; 1: one whose turn is lent */
	__u32 pad;
	struct fief_ref lent; /* whose request waits for it; FIEF_NO_ID: it has no turn of that one's */
	struct fief_ref served[FIEF_SERVED];
};
