/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the parts of the door know about the current packet. */
#pragma once

#include "flow/packet.bpf.h"
#include "found.bpf.h"

struct front_context {
	struct packet packet;
	__u64 now; /* CLOCK_MONOTONIC */
	__u32 slot;
	struct listener_found *listener;
	struct fief_guard *guard;
	struct fief_client *client; /* of a SYN; NULL: no rule names it */
	bool proven;		    /* a SYN's source has returned a cookie before */
	bool isolated;		    /* the connection is of those that are served last, whatever its requests are */
	bool connected;		    /* a segment has a socket, and not only a listening one */
	bool ruled;		    /* it ends the head of a later request, which may pass */
	bool queued;		    /* one of the requests that it ends may have to wait */
	bool carried;		    /* it waited, and its bytes were acknowledged */
	struct fief_ref container;  /* whose a connection is as long as no request says otherwise */
};
