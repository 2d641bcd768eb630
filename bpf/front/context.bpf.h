/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the parts of the door know about the current packet. */
#pragma once

#include "flow/packet.bpf.h"
#include "found.bpf.h"

struct front_context {
	struct packet packet;
	__u32 slot;
	__u64 now;			 /* CLOCK_MONOTONIC */
	struct policy_listener listener; /* the packet's own, where there is a guard */
	struct fief_guard *guard;
	struct fief_client *client; /* of a SYN; NULL: no rule names it */
	bool live;		    /* its listener was seen listening a moment ago */
	bool proven;		    /* a SYN's source has returned a cookie before */
	bool isolated;		    /* the connection is of those that are served last, whatever its requests are */
	bool connected;		    /* a segment has a socket, and not only a listening one */
	bool ruled;		    /* it ends the head of a later request, which may pass */
	bool queued;		    /* one of the requests that it ends may have to wait */
	bool carried;		    /* it waited, and its bytes were acknowledged */
	struct fief_ref container;  /* whose a connection is as long as no request says otherwise */
};

/* The packet and its policy: the begin of the context, which one program hands to the next. Without what would fill its last word. */
struct arrival {
	struct packet packet;
	__u32 slot;
} __attribute__((packed, aligned(4)));

_Static_assert(offsetof(struct front_context, slot) == offsetof(struct arrival, slot), "it begins with an arrival");

/* Nothing but its arrival is known. */
static __always_inline void context_clear(struct front_context *front)
{
	__builtin_memset(&front->now, 0, sizeof(*front) - offsetof(struct front_context, now));
}

/* A packet that another program has read. What a map holds is at a multiple of 8, and copied in words of that size, here and below. */
static __always_inline void context_begin(struct front_context *front, const struct arrival *from)
{
	__builtin_memcpy(front, __builtin_assume_aligned(from, 8), sizeof(*from));
	context_clear(front);
}

/* Leaves it to another program. */
static __always_inline void context_hand(const struct front_context *front, struct arrival *to)
{
	__builtin_memcpy(__builtin_assume_aligned(to, 8), front, sizeof(*to));
}
