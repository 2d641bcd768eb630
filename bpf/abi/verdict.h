/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Verdicts: why one fell, how they are counted, and what is told of refusals. */
#pragma once

#include "admit.h"

/* Why a verdict fell: one closed list, counted by container, listener and rule (struct fief_verdict_key). */
enum fief_reason {
	FIEF_REASON_NONE,
	/* police: a SYN at a guarded listener */
	FIEF_SYN_TAKEN,	   /* answered, or left to the kernel to answer */
	FIEF_SYN_RATE,	   /* above the rate of its filter */
	FIEF_SYN_UNPROVEN, /* above what is answered to addresses that never returned a cookie */
	FIEF_SYN_ISOLATED, /* its source, or the prefix around it, sends too many */
	FIEF_SYN_PENALTY,  /* its source was refused a request a short time ago */
	FIEF_SYN_QUEUE,	   /* the listen queue of its class is full */
	/* admit: the handshake */
	FIEF_ACK_BAD,	/* no socket and no valid cookie */
	FIEF_ACK_LIMIT, /* too many of those: not even looked at */
	FIEF_SHAPE,	/* options, extension headers, fragments, tags or lengths that the door cannot read */
	/* admit: a request */
	FIEF_REQUEST_RULE,	/* a rule let it pass, perhaps into another container */
	FIEF_REQUEST_CLIENT,	/* no rule matched: the class of its client */
	FIEF_REQUEST_REFUSED,	/* a rule refuses it */
	FIEF_REQUEST_RATE,	/* above the rule's requests per second */
	FIEF_REQUEST_CPU,	/* above the rule's CPU time per second */
	FIEF_REQUEST_UNTRACKED, /* no longer counted (FIEF_PASSED_OTHER, FIEF_REFUSED_OTHER are); keeps its number */
	/* receive in a thread of the class */
	FIEF_LANE_FULL, /* the queue of the thread is full: discarded before any protocol work */
	/* the door itself */
	FIEF_ANSWER_UNROUTED, /* no route leads to its source: a SYN is the kernel's, anything else is dropped */
	FIEF_SYN_UNGUARDED,   /* a new connection that passed no door, at a listener that is guarded */
	/* admit: a later request, once more */
	FIEF_REQUEST_REPLACED, /* other bytes in the place of a request's head that was ruled: dropped */
	/* admit: what cannot be read, in the order of enum fief_unread. It passes into the class of the client ... */
	FIEF_PASSED_MALFORMED,
	FIEF_PASSED_TOO_LONG,
	FIEF_PASSED_UPGRADE,
	FIEF_PASSED_HTTP2,
	FIEF_PASSED_PROXY,
	FIEF_PASSED_NO_ROOM,
	FIEF_PASSED_OTHER,
	/* ... or is reset, without a penalty */
	FIEF_REFUSED_MALFORMED,
	FIEF_REFUSED_TOO_LONG,
	FIEF_REFUSED_UPGRADE,
	FIEF_REFUSED_HTTP2,
	FIEF_REFUSED_PROXY,
	FIEF_REFUSED_NO_ROOM,
	FIEF_REFUSED_OTHER,
	/* the queue of the listener */
	FIEF_REFUSED_QUEUE_FULL, /* no room for it */
	FIEF_REFUSED_QUEUE_WAIT, /* it waited too long, or would have */
	/* the door itself, before anything else */
	FIEF_BANNED, /* any packet of a client that the operator has shut out */
	/* police, before all else of it */
	FIEF_SYN_ABSENT, /* nobody listens now: the client is to send it again, and finds the server that starts */
	/* the queue of the listener, once more */
	FIEF_REFUSED_QUEUE_DISPLACED, /* one that waited gave way to another */
	/* ... and what is told of it, and not counted: no verdicts */
	FIEF_QUEUE_WAITS,    /* a request begins to wait */
	FIEF_QUEUE_RELEASED, /* one that waited goes to the server */
	FIEF_REASONS
};

/* Tables have room for so many reasons: a new one must not change the size of records, which would refuse every upgrade. */
#define FIEF_REASON_ROOM 64

struct fief_verdict_key {
	struct fief_ref container;
	__u32 rule; /* client rule (SYN_*), request rule (REQUEST_*) or FIEF_NO_ID */
	__u16 listener;
	__u8 reason;	/* enum fief_reason */
	__u8 monitored; /* counted only: nothing was done */
};

/* A drop or a refusal, told at most once in FIEF_NOTICE_NS for each bucket, listener and reason. */
#define FIEF_NOTICE_NS 10000000ull
struct fief_notice {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u8 source[16];
	__u8 destination[16];
	__u16 source_port;
	__u16 destination_port;
	struct fief_verdict_key verdict;
	__u32 count;	 /* how many it stands for */
	__u32 interface; /* where the last one came in; 0: that is not known */
};

/* A notice in the log. Its place there is its number modulo FIEF_NOTICES, and each reader goes through them by itself. */
struct fief_told {
	__u64 number; /* from 1; 0: it is being written */
	struct fief_notice notice;
};
#define FIEF_NOTICES 4096

/* SYNs and requests that we refused, by listener and CPU: what servers are told, and the level of overload counts. */
struct fief_refusals {
	__u64 refused;			/* all of them, ever */
	__u64 queue_full;		/* of these, connections that found the accept queue full */
	__u64 untold[FIEF_REASON_ROOM]; /* since this CPU's last notice */
};

/* What never reached a listening socket; the last notice of it changes at most once in FIEF_NOTICE_NS. */
struct fief_drops {
	__u64 dropped; /* by the kernel, because a queue of the socket was full */
	__u64 refused; /* by the policy, before any listener of the address */
	__u64 time_ns; /* of the notice, CLOCK_MONOTONIC; 0: none yet */
	__u8 source[16];
	__u32 count;  /* how many the notice stands for */
	__u32 reason; /* enum fief_reason */
};
