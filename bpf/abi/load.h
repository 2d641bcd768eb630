/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Load: the levels of overload, and how they are found out. */
#pragma once

#include "verdict.h"

/* From which level of overload on a control is in force (Voigt et al. 2001, section 3). */
enum fief_level { FIEF_ALWAYS = 0, FIEF_BUSY = 1, FIEF_OVERLOADED = 2 };

/* Thresholds of the levels of overload, one for the policy; state of them, one for each listener. */
struct fief_thresholds {
	__u32 queue_percent[2]; /* of the accept queue, for busy and overloaded; 0: not looked at */
	__u32 cpu_percent[2];	/* of the machine at work for somebody */
	__u32 drops[2];		/* connections a second that found the accept queue full */
	__u64 hold_ns;		/* a level is left after so long below it */
};

/* An address and port of a listener at which nobody listens. Each is absent by itself: one with a server gives another one no more time. */
struct fief_absent {
	__u64 address[2]; /* as the packet has it */
	__u64 port;	  /* likewise */
	__u64 since_ns;	  /* a SYN found nobody, and none since found somebody; 0: not so */
	__u64 last_ns;	  /* when a SYN last found nobody */
};
#define FIEF_ABSENT_PLACES 8

struct fief_load {
	__u64 looked_ns;
	__u64 above_ns[2];	   /* when the level was last reached */
	__u64 idle_ns;		   /* of all CPUs, at the last look */
	__u64 unproven_arrival_ns; /* the budget of SYNs from unproven sources, as in struct fief_bucket */
	struct fief_absent absent[FIEF_ABSENT_PLACES]; /* by a hash of both */
	__u64 receiving_ns;			       /* of all CPUs for nobody, at the last look */
	__u64 dropped_seen;			       /* connections that we found no place for, at the last look */
	__u64 notice_ns[FIEF_REASON_ROOM];	       /* when the last notice for each reason went out */
	__u32 level;				       /* enum fief_level */
	__u32 queue_percent;  /* of the accept queue, or of the queue of requests: the fuller one */
	__u32 cpu_ppm;	      /* of the machine at work for somebody, smoothed over FIEF_LOAD_SMOOTH_NS */
	__u32 drops;	      /* a second, smoothed likewise */
	__u32 drops_seen;     /* counter of the listening socket at the last look */
	__u32 cpus;	      /* that were counted at the last look */
	__u32 accept_percent; /* of the accept queue */
	__u32 pad;
};
#define FIEF_LOAD_LOOK_NS   10000000ull	 /* at most one look in so long */
#define FIEF_LOAD_SMOOTH_NS 250000000ull /* a look at one moment says little about CPU time or a rate */
