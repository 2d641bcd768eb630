/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Bind: the record of a thread. */
#pragma once

#include "container.h"

#define FIEF_NEST 3

struct fief_nest {
	struct fief_ref container;
	__u32 rights;
	__u32 flags;
};

struct fief_task {
	__u64 request; /* left by another thread, taken at the next boundary; request.bpf.h draws it */
	struct fief_ref binding;
	struct fief_ref home;
	__u32 rights; /* of the descriptor the binding was made with */
	__u32 flags;  /* FIEF_TASK_* */
	struct fief_ref staged;
	__u32 staged_rights;
	__u32 made;		 /* 0: no, 1: it is being made, 2: yes */
	struct fief_ref counted; /* whose member it is counted as */
	__u32 nested;
	__u32 leads;		  /* 1: it is counted as its thread group's leader too */
	struct fief_ref followed; /* last label that was found below home */
	__u32 ring;		  /* its ring, by number + 1; 0: none (core/ring.bpf.h) */
	__u32 ring_generation;
	__u64 client;	  /* whose connection it followed last (abi/cost.h); 0: none, or nobody asks */
	__s64 carry_ns;	  /* steal that did not fit into the stint that showed it */
	__u64 pending_ns; /* time after a sleep that waits for the first socket event */
	/* the kernel's counters at the last look */
	__u64 user_ns;
	__u64 system_ns;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 minor_faults;
	__u64 major_faults;
	struct fief_nest nest[FIEF_NEST]; /* what FIEF_ENTER left; each holds its thread reference on, but for home */
};
#define FIEF_TASK_FOLLOW   1u /* takes the container of the socket it works on */
#define FIEF_TASK_EXPLICIT 2u /* bound by a call: sockets are not followed until it unbinds */
#define FIEF_TASK_SLEPT	   4u /* went to sleep by itself since the last socket event */
#define FIEF_TASK_MANAGED  8u
#define FIEF_TASK_WRITES   32u	/* a kernel thread that writes a labelled file back */
#define FIEF_TASK_SERVES   64u	/* has received from a client's connection */
#define FIEF_TASK_FORKED   128u /* of a process that a thread which serves forked */
#define FIEF_TASK_PROGRAM  256u /* of a program that was started for a client (core/program.bpf.h) */
