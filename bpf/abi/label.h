/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Labels: what a socket belongs to. */
#pragma once

#include "container.h"

#define FIEF_NO_LISTENER 0xffffu

struct fief_label {
	struct fief_ref container;
	__u16 listener; /* index in the policy, FIEF_NO_LISTENER: none */
	__u16 rule;	/* which client rule matched */
	__u32 flags;	/* FIEF_LABEL_* */
	__u64 owner;	/* the socket whose label counts and holds; a clone's differs */
	__u32 drops;	/* listeners: sk_drops at the last look; connections: the class that pays (core/labels.bpf.h) */
	__u32 next;	/* connections: sequence number at which the next request begins (FIEF_LABEL_TRACKED) */
	/* Bytes of the body that begins there instead (FIEF_LABEL_INSIDE, FIEF_LABEL_BODY). UNIX: the client it was sent for. */
	__u64 body;
	__u32 busy;	 /* connections: a CPU rules its bytes now */
	__u32 answer_at; /* sequence number at which the answer to its latest request begins (FIEF_LABEL_OWES) */
};
#define FIEF_LABEL_CLASS_LISTENER 1u /* hidden listener of one class: clones need no classification */
#define FIEF_LABEL_LISTENER	  2u /* listener of a policy's address: classify by the remote address */
#define FIEF_LABEL_COUNTED	  4u /* counted in the container's sockets */
#define FIEF_LABEL_HOLDS	  8u /* holds a reference (explicit ASSIGN) */
#define FIEF_LABEL_BINDING                                                                                             \
	16u			/* asked to be a class listener; bind() decides where, listen()          \
         registers it */
#define FIEF_LABEL_FILTER  32u	/* filtered listener */
#define FIEF_LABEL_FRESH   64u	/* accepted by TCP, or of another class since; nobody has received from it yet */
#define FIEF_LABEL_TRACKED 128u /* where its next request begins is known */
#define FIEF_LABEL_TAKEN   256u /* and TCP has taken every head of a request that was ruled */
/* What stands at `next` if it is not a request: */
#define FIEF_LABEL_CHUNK     512u     /* the line of a chunk's size, */
#define FIEF_LABEL_CHUNK_END 1024u    /* not the first: behind the end of the one before it */
#define FIEF_LABEL_TRAILER   2048u    /* a line behind the last chunk */
#define FIEF_LABEL_UPGRADE   8192u    /* or, beside a request, what the one before asked to change to */
#define FIEF_LABEL_INSIDE    131072u  /* a body that some servers take for the next request */
#define FIEF_LABEL_BODY	     8388608u /* more of a body than sequence numbers can tell at once */
#define FIEF_LABEL_LOST	     4096u    /* what has come before was not seen, or is forgotten */
/* Beside FIEF_LABEL_UPGRADE: */
#define FIEF_LABEL_FIRST                                                                                               \
	16384u /* the request that asked is the connection's first: the server's first bytes answer it */
#define FIEF_LABEL_CONNECT 32768u  /* and was CONNECT */
#define FIEF_LABEL_IPV4	   65536u  /* listener of both families: the policy names its IPv4 address alone */
#define FIEF_LABEL_TLS	   262144u /* `next`: a record of TLS, before anything is encrypted */
#define FIEF_LABEL_EARLY   524288u /* beside it: the client may send encrypted bytes that its server skips */
#define FIEF_LABEL_PASSED                                                                                              \
	1048576u /* ruled no longer, as the rules said that `next` is the number of (fief_guard.rules) */
#define FIEF_LABEL_HALF	 2097152u /* the begin of what stands at `next` is kept, or was (halves.bpf.h) */
#define FIEF_LABEL_WAITS 4194304u /* its latest request waits in a queue */
#define FIEF_LABEL_TAIL                                                                                                \
	16777216u /* the end of its first head was ruled and not delivered: it has to be the same (tail.bpf.h) */
#define FIEF_LABEL_TURNS                                                                                               \
	33554432u /* beside PASSED: what the client says after an answer is a turn for the queue (turns.bpf.h) */
#define FIEF_LABEL_OWES	     67108864u	/* the body of a request of a queue has not come to its end (late.bpf.h) */
#define FIEF_LABEL_PIPELINED 134217728u /* a request came before the answer to another one (pipelined.bpf.h) */
#define FIEF_LABEL_REGISTERED                                                                                          \
	268435456u /* beside CLASS_LISTENER: it has a turn among those of its class, until it is closed */
#define FIEF_LABEL_ASKED (FIEF_LABEL_UPGRADE | FIEF_LABEL_FIRST | FIEF_LABEL_CONNECT)
/* what a verdict upon the first request says */
#define FIEF_LABEL_VERDICT                                                                                             \
	(FIEF_LABEL_TRACKED | FIEF_LABEL_CHUNK | FIEF_LABEL_CHUNK_END | FIEF_LABEL_TRAILER | FIEF_LABEL_ASKED |        \
	 FIEF_LABEL_INSIDE | FIEF_LABEL_TLS | FIEF_LABEL_EARLY | FIEF_LABEL_PASSED | FIEF_LABEL_HALF |                 \
	 FIEF_LABEL_BODY | FIEF_LABEL_TAIL | FIEF_LABEL_TURNS | FIEF_LABEL_OWES | FIEF_LABEL_PIPELINED)
/* Each is a bit of its own: else their sum would not be what they are together. A new flag has to stand here too. */
_Static_assert((FIEF_LABEL_CLASS_LISTENER | FIEF_LABEL_LISTENER | FIEF_LABEL_COUNTED | FIEF_LABEL_HOLDS |
		FIEF_LABEL_BINDING | FIEF_LABEL_FILTER | FIEF_LABEL_FRESH | FIEF_LABEL_TRACKED | FIEF_LABEL_TAKEN |
		FIEF_LABEL_CHUNK | FIEF_LABEL_CHUNK_END | FIEF_LABEL_TRAILER | FIEF_LABEL_LOST | FIEF_LABEL_UPGRADE |
		FIEF_LABEL_FIRST | FIEF_LABEL_CONNECT | FIEF_LABEL_IPV4 | FIEF_LABEL_INSIDE | FIEF_LABEL_TLS |
		FIEF_LABEL_EARLY | FIEF_LABEL_PASSED | FIEF_LABEL_HALF | FIEF_LABEL_WAITS | FIEF_LABEL_BODY |
		FIEF_LABEL_TAIL | FIEF_LABEL_TURNS | FIEF_LABEL_OWES | FIEF_LABEL_PIPELINED | FIEF_LABEL_REGISTERED) ==
		   (FIEF_LABEL_CLASS_LISTENER + FIEF_LABEL_LISTENER + FIEF_LABEL_COUNTED + FIEF_LABEL_HOLDS +
		    FIEF_LABEL_BINDING + FIEF_LABEL_FILTER + FIEF_LABEL_FRESH + FIEF_LABEL_TRACKED + FIEF_LABEL_TAKEN +
		    FIEF_LABEL_CHUNK + FIEF_LABEL_CHUNK_END + FIEF_LABEL_TRAILER + FIEF_LABEL_LOST +
		    FIEF_LABEL_UPGRADE + FIEF_LABEL_FIRST + FIEF_LABEL_CONNECT + FIEF_LABEL_IPV4 + FIEF_LABEL_INSIDE +
		    FIEF_LABEL_TLS + FIEF_LABEL_EARLY + FIEF_LABEL_PASSED + FIEF_LABEL_HALF + FIEF_LABEL_WAITS +
		    FIEF_LABEL_BODY + FIEF_LABEL_TAIL + FIEF_LABEL_TURNS + FIEF_LABEL_OWES + FIEF_LABEL_PIPELINED +
		    FIEF_LABEL_REGISTERED),
	       "the flags of a label are distinct bits");
