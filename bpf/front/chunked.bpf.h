/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Chunked: the lines of a body in chunks (chunks.bpf.h), on a connection that has its socket. */
#pragma once

#include "chunks.bpf.h"
#include "keep.bpf.h"
#include "tracked.bpf.h"

/* The line at label->next belongs to a body in chunks, and is in the stream as far as it has come. */
static __always_inline int chunk_rule(struct front_context *front, struct connection *on, struct stream *stream)
{
	struct chunk_line line = {.state = on->label->flags & CHUNK_STATES};
	__u32 length = stream->length;
	int state;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	state = chunks_read((const struct request_bytes *)stream->bytes, length, &line);
	if (state == REQUEST_UNREAD)
		return later_unread(front, on->label, stream, FIEF_UNREAD_MALFORMED);
	if (state == REQUEST_NEED_MORE && length == FIEF_HEADER_MAX)
		return later_unread(front, on->label, stream, FIEF_UNREAD_TOO_LONG);
	if (state == REQUEST_NEED_MORE)
		return later_wait(front, on, stream);
	stream->read = on->label->next + line.head;
	on->label->next = stream->read + line.data;
	__sync_fetch_and_and(&on->label->flags, ~(CHUNK_STATES | FIEF_LABEL_HALF));
	__sync_fetch_and_or(&on->label->flags, line.state);
	return LATER_AGAIN;
}
