/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Descriptors: what a container's socket stores, and the socket options that are the calls of applications, with their
 * values. docs/errors.md has the errno of each. Options of the listen shim and of filtered listeners take records of
 * steer.h, FIEF_DROPS one of verdict.h.
 */
#pragma once

#include "container.h"

/* What a descriptor's socket stores; never cloned, so that an accepted socket is never mistaken for a container. */
struct fief_descriptor {
	struct fief_ref container;
	__u32 rights;
	__u32 flags; /* FIEF_DESCRIPTOR_* */
};
#define FIEF_DESCRIPTOR_FILE 1u /* no container's, but the label of a file: holds the container and no more */

#define FIEF_SOL	     0x46696566

enum fief_option {
	/* setsockopt */
	FIEF_CREATE = 1, /* unbound AF_INET datagram socket: a child of the caller's container; fief_create or empty */
	FIEF_BIND = 2,	 /* bind the calling thread (no value), or struct fief_bind */
	FIEF_UNBIND = 3, /* the calling thread returns home; any container descriptor */
	FIEF_STAGE = 4,	 /* remember this container for the thread's next FIEF_DUP */
	FIEF_DUP = 5,	 /* fresh socket: becomes a second descriptor of the staged container, same rights */
	FIEF_OPEN_BINDING = 6,	/* fresh socket: becomes a descriptor of the thread's container; __u32: rights */
	FIEF_ADOPT = 7,		/* this container becomes a child of the caller's container */
	FIEF_SET_ATTRIBUTE = 8, /* struct fief_set_attribute */
	FIEF_DROP_RIGHTS = 9,	/* __u32: rights that stay */
	FIEF_ASSIGN = 10,	/* on any socket: label it with the caller's container */
	FIEF_SET_NAME = 11,	/* up to FIEF_NAME_LEN - 1 bytes, no '/' */
	FIEF_CLASS = 12,	/* on an unbound TCP socket: listener of the n-th class, __u32 (the listen shim) */
	FIEF_FILTER = 13,	/* on an unbound TCP socket: struct fief_filter, labelled with the caller's container */
	FIEF_UNASSIGN = 14,	/* on any socket: remove its label */
	FIEF_ENTER = 15,	/* bind the calling thread and remember what it was bound to, FIEF_NEST deep */
	FIEF_LEAVE = 16,	/* back to what FIEF_ENTER remembered; any container descriptor */
	FIEF_RENEW = 17, /* container descriptor: becomes one of a new child, as FIEF_CREATE, and lets go of the old */
	FIEF_ASSIGN_FILE =
	    18,		      /* fresh socket: becomes the label, with the caller's container, of the open file __s32 */
	FIEF_RING = 19,	      /* any socket: the calling thread's ring, struct fief_ring_open; no value: it ends */
	FIEF_RING_PLACE = 20, /* this container is in the place __u32 of the calling thread's ring */
	FIEF_RING_CLEAR = 21, /* any socket: nothing is in the place __u32 */
	FIEF_RING_FLUSH = 22, /* any socket: the records up to now are taken */
	FIEF_RESET_SCHEDULER_BINDING = 23, /* any socket: the calling thread is scheduled for its container alone */
	/* getsockopt */
	FIEF_USAGE = 32,      /* struct fief_usage, with the open stint of running threads */
	FIEF_ATTRIBUTES = 33, /* struct fief_attributes */
	FIEF_INFO = 34,	      /* struct fief_info */
	FIEF_BINDING = 35,    /* struct fief_ref of the calling thread; any socket of a managed unit */
	FIEF_CLASSES = 36,    /* on a listening or bound TCP socket: struct fief_classes */
	FIEF_LABEL = 37,      /* on any socket: struct fief_ref of its label */
	FIEF_DROPS = 38,      /* on a listening TCP socket: struct fief_drops */
};

/* Rights of a descriptor and of a binding made through it. */
#define FIEF_RIGHT_USE	      1u /* bind to it, assign to it */
#define FIEF_RIGHT_READ	      2u /* usage, attributes */
#define FIEF_RIGHT_CHILDREN   4u /* make and adopt children */
#define FIEF_RIGHT_ADMINISTER 8u /* attributes, name, adoption of itself */
#define FIEF_RIGHTS_ALL	      15u

struct fief_create {
	__u32 flags;  /* FIEF_CREATE_* */
	__u32 weight; /* 0: default */
};
#define FIEF_CREATE_PASS_UP 1u

struct fief_bind {
	__s32 thread; /* as the caller's pid namespace counts */
	__u32 pad;
};

struct fief_set_attribute {
	__u32 attribute;
	__u32 pad;
	__u64 value;
};

struct fief_info {
	struct fief_ref self;
	struct fief_ref parent; /* id FIEF_NO_ID: no parent */
	__u32 state;
	__u32 rights;
	__u32 depth;
	__u32 holders;
	__u32 children;
	__u32 threads;
	__u32 processes;
	__u32 sockets;
	char name[FIEF_NAME_LEN];
};
