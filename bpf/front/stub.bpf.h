/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Stands for police and the request rules until they are there: every SYN is taken, every request is its client's. */
#pragma once

#include "context.bpf.h"

#define BYTES_SLACK 64
struct request_bytes {
	__u8 at[FIEF_HEADER_MAX + BYTES_SLACK];
};

struct ruling {
	struct fief_request rule;
	struct fief_ref container;
	enum fief_reason reason;
	bool refused;
	bool tracked;
	__u32 head;
	__u64 body;
};

#define REQUEST_DECIDED	  0
#define REQUEST_NEED_MORE 1

static __always_inline enum fief_reason police_syn(struct front_context *front, bool *drop)
{
	*drop = false;
	return FIEF_SYN_TAKEN;
}

static __always_inline void source_prove(struct front_context *front)
{
}

static __always_inline bool source_proven(struct front_context *front)
{
	return false;
}

static __always_inline void load_look(struct front_context *front, struct bpf_sock *listening)
{
}

static __always_inline bool level_reached(struct front_context *front, __u32 level)
{
	return level == FIEF_ALWAYS;
}

static __always_inline void verdict_count(struct front_context *front, struct fief_ref container, __u32 rule,
					  enum fief_reason reason, bool monitored)
{
	struct fief_verdict_key key = {.container = container,
				       .rule = rule,
				       .listener = front->listener->index,
				       .reason = reason,
				       .monitored = monitored};
	__u64 one = 1, *count = bpf_map_lookup_elem(&verdicts, &key);

	if (count)
		*count += 1;
	else
		bpf_map_update_elem(&verdicts, &key, &one, BPF_ANY);
}

/* For trials: a request is complete at an empty line, "/no" is refused by 503, "/reset" by a reset. */
static __noinline int request_rule(struct front_context *front, const struct request_bytes *bytes, __u32 length,
				   struct ruling *out)
{
	bool complete = false;
	int i;

	__builtin_memset(out, 0, sizeof(*out));
	out->container = front->client ? front->client->container : front->guard->fallback;
	out->reason = FIEF_REQUEST_CLIENT;
	bpf_for (i, 0, FIEF_HEADER_MAX) {
		if (i + 4 > length)
			break;
		if (*(__u32 *)(bytes->at + (i & 0x3fff)) == 0x0a0d0a0d) {
			complete = true;
			out->head = i + 4;
			out->tracked = 1;
			break;
		}
	}
	if (!complete && length < FIEF_HEADER_MAX)
		return REQUEST_NEED_MORE;
	if (*(__u32 *)(bytes->at + 4) == 0x206f6e2f)
		out->refused = true, out->rule.refusal = FIEF_REFUSE_503, out->rule.retry_after_s = 17;
	if (*(__u32 *)(bytes->at + 4) == 0x7365722f)
		out->refused = true, out->rule.refusal = FIEF_REFUSE_RESET;
	verdict_count(front, out->container, FIEF_NO_ID, out->refused ? FIEF_REQUEST_REFUSED : FIEF_REQUEST_CLIENT,
		      false);
	return REQUEST_DECIDED;
}
