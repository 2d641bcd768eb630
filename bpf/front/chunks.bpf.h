/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Chunks: where a body in chunks ends (RFC 9112, 7.1), line by line.
 *
 *   5;name=value CR LF hello     a chunk: its size in hexadecimal, perhaps extensions; the data
 *   CR LF 0 CR LF                the next one begins after the end of the data; size 0: the last
 *   Name: value CR LF CR LF      perhaps trailers, up to an empty line
 *
 * Problem: the next request begins after the last line. A server that finds another place for it reads a request that nobody
 * ruled.
 * How: only the form above is taken, because servers agree about it. A line that cannot have this form is reported at the first
 * wrong byte. So is one that ends with a version ("0;a /secret HTTP/1.1"), once it is there: no extension does, and a server that
 * does not read the bodies of some methods takes it for a request (ignored.bpf.h).
 * Limits: a chunk of more than BODY_MAX bytes is not taken.
 */
#pragma once

#include "request.bpf.h"
#include "version.bpf.h"

#define SIZE_DIGITS 15
#define SIZE_MOST   (2 + SIZE_DIGITS + 1) /* bytes of a line up to what ends its size, with the CR LF before that */

/* What stands where a body goes on: flags of the label. */
#define CHUNK_STATES (FIEF_LABEL_CHUNK | FIEF_LABEL_CHUNK_END | FIEF_LABEL_TRAILER)

struct chunk_line {
	__u32 state; /* of CHUNK_STATES, before and after; 0: the body has ended */
	__u32 head;  /* where the line ends; before: what was read begins here */
	__u32 data;  /* bytes behind it up to the next one */
};

/* The value of a digit; 16: it is none. */
static __always_inline __u32 digit_value(__u8 byte)
{
	if (byte >= '0' && byte <= '9')
		return byte - '0';
	byte |= CASE;
	return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : 16;
}

/* Reads on to the end of the line, from `at`. REQUEST_COMPLETE: `head` is set. */
static __always_inline int line_rest(const struct request_bytes *bytes, __u32 at, __u32 length, struct chunk_line *line)
{
	for (at = loop_from(at); at < length && can_loop; at++) {
		__u8 byte = byte_at(bytes, at);

		if (byte == '\r') {
			if (at + 1 == length)
				return REQUEST_NEED_MORE;
			line->head = at + 2;
			return byte_at(bytes, at + 1) == '\n' ? REQUEST_COMPLETE : REQUEST_UNREAD;
		}
		if ((byte < ' ' && byte != '\t') || byte == 127)
			return REQUEST_UNREAD;
	}
	return REQUEST_NEED_MORE;
}

static __always_inline int trailer_read(const struct request_bytes *bytes, __u32 length, struct chunk_line *line)
{
	__u32 at = line->head;
	int state = line_rest(bytes, at, length, line);

	if (is_blank(byte_at(bytes, at)))
		return REQUEST_UNREAD;
	if (state == REQUEST_COMPLETE && line->head == at + 2)
		line->state = 0;
	return state;
}

/* Reads the line at line->head, of which there is at least one byte. REQUEST_NEED_MORE, _COMPLETE or _UNREAD. */
__noinline int chunk_read(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			  struct chunk_line *line __arg_nonnull)
{
	__u32 at = line->head, value;
	__u64 data = 0;
	int state, digits;

	line->data = 0;
	if (line->state & FIEF_LABEL_TRAILER)
		return trailer_read(bytes, length, line);
	if (line->state & FIEF_LABEL_CHUNK_END) {
		if (byte_at(bytes, at) != '\r' || (length > at + 1 && byte_at(bytes, at + 1) != '\n'))
			return REQUEST_UNREAD;
		at += 2;
	}
	at = loop_from(at);
	bpf_for (digits, 0, SIZE_DIGITS + 1) {
		value = at < length ? digit_value(byte_at(bytes, at)) : 16;
		if (value > 15)
			break;
		if (digits == SIZE_DIGITS)
			return REQUEST_UNREAD;
		data = data << 4 | value;
		at++;
	}
	line->data = data;
	if (data > BODY_MAX)
		return REQUEST_UNREAD;
	if (at >= length)
		return REQUEST_NEED_MORE;
	if (!digits || (byte_at(bytes, at) != '\r' && byte_at(bytes, at) != ';'))
		return REQUEST_UNREAD;
	state = line_rest(bytes, at, length, line);
	if (state == REQUEST_COMPLETE && ends_with_version(bytes, at, line->head))
		return REQUEST_UNREAD;
	if (state == REQUEST_COMPLETE)
		line->state = line->data ? FIEF_LABEL_CHUNK | FIEF_LABEL_CHUNK_END : FIEF_LABEL_TRAILER;
	return state;
}

/*
 * Reads as many lines as end in `length` bytes, from the begin on. REQUEST_COMPLETE: `line` is the last one of them.
 * REQUEST_NEED_MORE: none does.
 */
__noinline int chunks_read(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			   struct chunk_line *line __arg_nonnull)
{
	struct chunk_line next = {.state = line->state};
	int state = REQUEST_NEED_MORE;
	__u32 i;

	for (i = loop_from(0); i < length && can_loop; i++) {
		state = chunk_read(bytes, length, &next);
		if (state != REQUEST_COMPLETE)
			break;
		*line = next;
		next.head += next.data;
		if (!next.state || next.head >= length)
			break;
	}
	return state == REQUEST_NEED_MORE && i ? REQUEST_COMPLETE : state;
}
