/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Judge: a later request that is in the stream, or the record of TLS before one, gets its verdict.
 *
 * Limits: after a request for another protocol the connection is ruled until its server agrees (confirmed.bpf.h).
 */
#pragma once

#include "behind.bpf.h"
#include "confirmed.bpf.h"
#include "keep.bpf.h"
#include "pipelined.bpf.h"
#include "records.bpf.h"
#include "rule.bpf.h"
#include "tracked.bpf.h"

/* The record of TLS at label->next is in the stream as far as it has come. RECORD_HELLO: it is to be ruled. */
static __noinline int later_record(struct front_context *front, struct connection *on, struct stream *stream)
{
	__u32 begin = on->tcp->rcv_nxt - (__u32)on->tcp->bytes_received, length = stream->length, early;
	struct chunk_line line = {};
	int state;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (!length)
		return TCX_NEXT;
	early = on->label->flags & FIEF_LABEL_EARLY && on->label->next - begin < EARLY_MOST;
	state = record_read((const struct request_bytes *)stream->bytes, length, early, &line);
	if (state == RECORD_HELLO)
		return RECORD_HELLO;
	if (state == RECORD_LAST) {
		stream->read = on->label->next + (length < TLS_RECORD ? length : TLS_RECORD);
		return later_untrack(front, on->label, on->label->flags & FIEF_LABEL_TURNS);
	}
	if (state == REQUEST_UNREAD)
		return later_unread(front, on->label, stream, FIEF_UNREAD_MALFORMED);
	if (state == REQUEST_NEED_MORE)
		return later_wait(front, on, stream);
	stream->read = on->label->next + line.head;
	on->label->next = stream->read + line.data;
	return LATER_AGAIN;
}

/* The request at label->next is in the stream as far as it has come. */
static __always_inline int later_judge(struct front_context *front, struct connection *on, struct stream *stream)
{
	struct ruling *ruling = &stream->ruling;
	__u32 length = stream->length, how;
	int verdict;

	if (on->label->flags & FIEF_LABEL_TLS) {
		verdict = later_record(front, on, stream);
		if (verdict != RECORD_HELLO)
			return verdict;
	}
	/* no constant: what follows is walked once, and not for each */
	how = loop_from((on->ended ? RULE_ENDED : 0) | (is_begin(on) ? RULE_FIRST : 0));
	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (on->label->flags & FIEF_LABEL_UPGRADE) {
		if (!is_confirmed(on->tcp, on->label)) {
			how |= RULE_UPGRADE;
		} else if (!length || !may_be_http2(stream->bytes, length)) {
			verdict_count(front, on->label->container, FIEF_NO_ID, FIEF_PASSED_UPGRADE, false);
			return later_untrack(front, on->label, 0);
		}
	}
	if (request_rule(front, (const struct request_bytes *)stream->bytes, length, how, ruling) == REQUEST_NEED_MORE)
		return later_wait(front, on, stream);
	if (ruling->refused)
		return LATER_REFUSED;
	pipelined_take(front, on->label, stream);
	return later_follow(front, on, stream);
}
