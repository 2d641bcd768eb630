/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Ring: what a thread leaves in its own memory to be bound without a call (core/ring.bpf.h). */
#pragma once

#include "container.h"

#define FIEF_RINGS	     1024 /* threads that have one, on the whole machine */
#define FIEF_RING_RECORDS    256
#define FIEF_RING_PLACES     64 /* containers that one ring can name */
#define FIEF_RING_PLACE_BITS 6
#define FIEF_RING_HOME	     0 /* the place of the thread's home, which is always there */
#define FIEF_RING_ALIGN	     4096

/*
 * In the thread's memory, at a multiple of FIEF_RING_ALIGN. The kernel only reads it. A record says that the thread works for
 * the container in that place from that moment of CLOCK_MONOTONIC on:
 *
 *      63                                  6 5      0
 *     +-------------------------------------+--------+
 *     |        nanoseconds, modulo 2^58     | place  |
 *     +-------------------------------------+--------+
 *
 * A thread writes at most FIEF_RING_RECORDS of them between two calls of FIEF_RING_FLUSH.
 */
struct fief_ring_page {
	__u32
	    head; /* records so far, modulo 2^32; written after the record, which lies at head modulo FIEF_RING_RECORDS */
	__u32 live; /* the library's own: 0 in the child of a fork, which has no ring */
	__u64 spare[7];
	__u64 records[FIEF_RING_RECORDS];
};

/* The value of FIEF_RING. */
struct fief_ring_open {
	__u64 address; /* of a struct fief_ring_page */
	__u64 now_ns;  /* CLOCK_MONOTONIC as the caller has it, which in a time namespace is not the kernel's */
};

struct fief_ring_place {
	struct fief_ref container; /* holds a thread reference */
	__u32 rights;
	__u32 pad;
};

/* What the kernel knows of a ring. */
struct fief_ring {
	__u32 taken;
	__u32 generation; /* of this entry; counts its owners */
	__u64 address;
	__u64 clock_ns; /* CLOCK_MONOTONIC less the thread's own */
	__u64 filled;	/* a bit for each place that names a container */
	__u32 tail;	/* records that were taken */
	__u32 unread;	/* 1: it could not be read, which was counted */
	struct fief_ring_place places[FIEF_RING_PLACES];
};
