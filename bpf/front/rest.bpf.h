/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rest: what stands behind the first request in the packet that makes the connection.
 *
 * Problem: several requests that come at once must all be ruled before the first of them passes.
 * How: they are read from the packet one after the other, as a socket's would be (next.bpf.h), and share the strictest verdict.
 * Limits: where there is more than is looked at in one go, the rest comes again.
 */
#pragma once

#include "admitted.bpf.h"
#include "behind.bpf.h"
#include "chunks.bpf.h"
#include "cut.bpf.h"
#include "inside.bpf.h"
#include "keep.bpf.h"
#include "pipelined.bpf.h"
#include "records.bpf.h"
#include "rule.bpf.h"

/* Reads the line of a body in chunks that begins the stream. REQUEST_UNREAD has its verdict. */
static __always_inline int rest_chunk(struct front_context *front, struct stream *stream, __u32 length)
{
	struct fief_admitted *entry = &stream->admitted;
	struct chunk_line line = {.state = entry->tracked & CHUNK_STATES};
	int state = chunks_read((const struct request_bytes *)stream->bytes, length, &line);

	if (state == REQUEST_NEED_MORE)
		return REQUEST_NEED_MORE;
	if (state == REQUEST_UNREAD) {
		unread_rule(front, &stream->ruling, FIEF_UNREAD_MALFORMED);
		return REQUEST_UNREAD;
	}
	entry->tracked = (entry->tracked & ~CHUNK_STATES) | line.state;
	entry->next += line.head + line.data;
	return REQUEST_COMPLETE;
}

/* Rules the body that begins the stream, which some servers take for a request. REQUEST_UNREAD: it is refused. */
static __always_inline int rest_inside(struct front_context *front, struct stream *stream, __u32 length, __u32 how)
{
	struct fief_admitted *entry = &stream->admitted;
	struct ruling *ruling = &stream->ruling;
	int state = inside_rule(front, (const struct request_bytes *)stream->bytes, length, entry->body, how, ruling);

	if (state == REQUEST_NEED_MORE)
		return REQUEST_NEED_MORE;
	if (state != REQUEST_COMPLETE && ruling->refused)
		return REQUEST_UNREAD;
	if (state != REQUEST_COMPLETE)
		pipelined_add(front, entry, ruling);
	entry->next += body_pass(&entry->body, &entry->tracked);
	return REQUEST_COMPLETE;
}

/* Reads the head of the record of TLS that begins the stream. RECORD_HELLO: it is to be ruled. */
static __always_inline int rest_record(struct front_context *front, struct stream *stream, __u32 length)
{
	struct fief_admitted *entry = &stream->admitted;
	struct chunk_line line = {};
	__u32 early = entry->tracked & FIEF_LABEL_EARLY && entry->next - entry->begin < EARLY_MOST;
	int state;

	if (!length)
		return REQUEST_NEED_MORE;
	state = record_read((const struct request_bytes *)stream->bytes, length, early, &line);
	if (state == REQUEST_COMPLETE)
		entry->next += line.head + line.data;
	if (state == REQUEST_UNREAD)
		unread_rule(front, &stream->ruling, FIEF_UNREAD_MALFORMED);
	if (state != RECORD_LAST)
		return state;
	stream->ruling.refused = false;
	return REQUEST_UNREAD;
}

/* Rules what stands at entry->next with what there is of it. */
static __always_inline int rest_step(struct front_context *front, struct stream *stream, bool ended)
{
	struct fief_admitted *entry = &stream->admitted;
	struct ruling *ruling = &stream->ruling;
	__u32 length = stream->length, how = ended ? RULE_ENDED : 0;
	int state;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (entry->tracked & FIEF_LABEL_BODY) {
		entry->next += body_pass(&entry->body, &entry->tracked);
		return REQUEST_COMPLETE;
	}
	if (entry->tracked & CHUNK_STATES)
		return rest_chunk(front, stream, length);
	if (entry->tracked & FIEF_LABEL_INSIDE)
		return rest_inside(front, stream, length, how);
	if (entry->tracked & FIEF_LABEL_TLS) {
		state = rest_record(front, stream, length);
		if (state != RECORD_HELLO)
			return state;
	}
	if (entry->tracked & FIEF_LABEL_UPGRADE)
		how |= RULE_UPGRADE;
	if (request_rule(front, (const struct request_bytes *)stream->bytes, length, how, ruling) == REQUEST_NEED_MORE)
		return REQUEST_NEED_MORE;
	if (ruling->refused)
		return REQUEST_UNREAD;
	pipelined_add(front, entry, ruling);
	admitted_go_on(front, stream, false);
	return REQUEST_COMPLETE;
}

/*
 * Rules what stands behind the first request in the packet that makes the connection, which has the whole stream now.
 * The begin of a last one without an end is kept for later.bpf.h; where there is more than is looked at in one go,
 * the rest comes again. REST_PASSES, REST_REFUSED as stream->ruling says, or REST_SPOILT.
 */
enum rest { REST_PASSES, REST_REFUSED, REST_SPOILT };

/* Whether anything stands there. */
static __always_inline bool has_rest(const struct packet *p, const struct fief_admitted *entry)
{
	return entry->tracked & FIEF_LABEL_TRACKED && entry->next - p->seq < p->payload_length;
}

static __noinline enum rest rest_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	struct fief_admitted *entry = &stream->admitted;
	struct packet *p = &front->packet;
	__u32 skip;
	bool last;
	int i, state;

	readings_allow();
	bpf_for (i, 0, 2 * REQUESTS_MOST) {
		if ((i >= REQUESTS_MOST || readings_spent()) && !(entry->tracked & BODY_STATES))
			break;
		skip = entry->next - p->seq;
		if (!(entry->tracked & FIEF_LABEL_TRACKED) || skip >= p->payload_length)
			return REST_PASSES;
		stream_begin(stream, entry->next);
		if (stream_append(skb, p, stream, skip) < 0)
			return REST_SPOILT;
		last = skip + stream->length == p->payload_length;
		state = rest_step(front, stream, last && p->flags & TCP_FIN);
		if (state == REQUEST_UNREAD) {
			if (stream->ruling.refused)
				return REST_REFUSED;
			admitted_pass(front, entry);
			return REST_PASSES;
		}
		if (state == REQUEST_NEED_MORE && !last)
			break;
		if (state == REQUEST_NEED_MORE && hold_keep(p, stream, entry->tracked, entry->body, 0)) {
			entry->tracked |= FIEF_LABEL_HALF;
			return REST_PASSES;
		}
		if (state == REQUEST_NEED_MORE) {
			unread_rule(front, &stream->ruling, FIEF_UNREAD_NO_ROOM);
			admitted_pass(front, entry);
			return stream->ruling.refused ? REST_REFUSED : REST_PASSES;
		}
	}
	skip = entry->next - p->seq;
	if (skip >= p->payload_length || front->guard->flags & FIEF_GUARD_MONITOR)
		return REST_PASSES;
	return packet_cut(skb, p, stream, skip) == TCX_DROP ? REST_SPOILT : REST_PASSES;
}
