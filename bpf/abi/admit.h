/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Admit: request rules, and connections whose request is ruled before their socket is there. */
#pragma once

#include "container.h"

#define FIEF_HEADER_MAX 16384

/*
 * Why the first bytes of a connection, or of a later request, cannot be read as a request. For each kind the policy says
 * whether such a connection is refused (fief_guard.unread_refused): what clients shape does not fail open.
 */
enum fief_unread {
	FIEF_UNREAD_MALFORMED, /* a head that breaks its own form, or ends before its end */
	FIEF_UNREAD_TOO_LONG,  /* no end of the head within FIEF_HEADER_MAX bytes */
	FIEF_UNREAD_UPGRADE,   /* what follows a request to change the protocol, or CONNECT */
	FIEF_UNREAD_HTTP2,     /* HTTP/2 without TLS */
	FIEF_UNREAD_PROXY,     /* a PROXY head from a peer that the policy does not take it from */
	FIEF_UNREAD_NO_ROOM,   /* unfinished heads that gave way to others */
	FIEF_UNREAD_OTHER,     /* neither HTTP nor TLS; a later request whose begin cannot be known */
	FIEF_UNREADS
};

/* What becomes of a refused request. */
enum fief_refusal { FIEF_REFUSE_DROP = 0, FIEF_REFUSE_RESET = 1, FIEF_REFUSE_503 = 2, FIEF_REFUSE_429 = 3 };

/* What a request rule says: a record of the rule table. */
struct fief_request {
	__u32 rule;
	__u32 bucket;		   /* 0: no rate */
	struct fief_ref container; /* id FIEF_NO_ID: the class of the client */
	__u64 penalty_ns;
	__u16 retry_after_s;
	__u8 refuse;  /* 1: refuse what matches; 0: only what is above the rate */
	__u8 refusal; /* enum fief_refusal */
	__u8 level;   /* enum fief_level */
	__u8 monitor;
	__u8 unqueued; /* 1: what matches waits in no queue, and takes no place */
	__u8 pad;
};

/* Keys of the door, from the kernel's random source, set once for an installation. */
struct fief_secret {
	__u64 cookie[2];  /* the cookies' own key is derived from it for each epoch */
	__u64 pattern[2]; /* of the hashes of request patterns, of names and of clients' prefixes */
};

/* A connection whose request was ruled before its socket was there; its label takes the container from here. */
struct fief_flow_key {
	__u8 remote[16];
	__u8 local[16];
	__u16 remote_port; /* host order */
	__u16 local_port;
	__u32 pad;
};
struct fief_admitted {
	struct fief_ref container;
	__u32 rule;	 /* of the first request */
	__u32 next;	 /* as in the label */
	__u32 tracked;	 /* flags for the label, of FIEF_LABEL_VERDICT */
	__u32 begin;	 /* sequence number of its first byte: what was left by an earlier connection has another */
	__u64 time_ns;	 /* of the verdict: what follows is let through for a short time, until the socket is there */
	__u32 answer_at; /* sequence number of the server's first byte: a client that acknowledges more was answered */
	__u32 verdicts;	 /* upon the same first bytes */
	__u32 cpu;	 /* that has its packet: there, what follows comes to TCP behind it */
	__u16 spent;	 /* its socket was made: who sends the same first bytes again sends a copy */
	__u16 interim;	 /* bytes of interim answers at `answer_at`, behind which the answer begins */
	__u64 body;	 /* as in struct fief_label */
};

/* How far what is kept was looked through for its end, as it comes: all zero at a head's begin. See the front room's scan.bpf.h. */
struct fief_scan {
	__u32 at;     /* what is before need not be looked at again */
	__u32 phase;  /* enum scan_phase */
	__u32 filled; /* TLS: bytes of the message in the records before `at`; a body: words of its first line */
	__u32 wanted; /* TLS: its length, as far as those bytes say it; a body: its bytes */
};

/* Where in its body a request has come to. See the front room's body.bpf.h. */
struct fief_body {
	__u64 left;   /* of the data, or of the chunk; while its size is read: that */
	__u16 phase;  /* enum body_phase */
	__u16 digits; /* of the size */
	__u32 pad;
};
