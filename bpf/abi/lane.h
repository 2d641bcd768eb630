/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Receive: a lane for each class, whose own thread does the protocol work (LRP). */
#pragma once

#include "container.h"

#define FIEF_LANE_PACKETS 240 /* that may wait in a lane; the ring behind it has 256 places */

/* A number that means another lane, or interface, in another network namespace. */
struct fief_lane_key {
	__u32 netns; /* inode of the network namespace */
	__u32 of;    /* slot of the container; index of the receiving interface */
};

/*
 * A pair of virtual interfaces and the kernel thread that polls the second one: what is sent to the first is received
 * in that thread. Counted in segments; what waits is entered - left - amiss.
 */
struct fief_lane {
	struct fief_ref container;
	__u32 sends;  /* index of the interface that packets are sent to, in the network namespace of the key */
	__u32 thread; /* number of the one that was given to the container; an end that was down has another */
	__u64 entered;
	__u64 discarded;
	__s64 amiss;	    /* entered and were lost, less those that left and had not entered */
	__u64 left_seen;    /* `left` when it was last seen to have changed, */
	__u64 left_seen_ns; /* and when that was */
	__u64 apart;	    /* the other end writes what follows, on another CPU */
	__u64 left;
	__u64 apart_too[7];
};

/* Ports whose packets may have a lane, by policy slot. */
#define FIEF_PORT_WORDS 1024
struct fief_lane_ports {
	__u64 word[FIEF_PORT_WORDS];
};
