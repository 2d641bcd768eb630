/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Body: where the body of a request ends, found as its bytes come (RFC 9112, 6 and 7.1).
 *
 *   5;name=value CRLF hello CRLF 0 CRLF Trailer: value CRLF CRLF        a chunked body of five bytes
 *
 * Problem: the next request begins after the body. A client that can move that place for us, but not for the server, hides
 * requests in bodies.
 * How: one byte after the other, in explicit phases that are kept between segments (struct fief_body). body_skip() passes data
 * by its length alone. Where servers differ the body is odd (BODY_ODD), and what follows is unread: line ends of LF alone, a CR
 * without its LF, other control characters, sizes of more than 15 digits or with a sign, a prefix or nothing, data that ends
 * elsewhere than its chunk. All servers read blanks after the size and extensions alike, or refuse them.
 * Limits: the contents of trailers are not read. Servers that do not read the body of a request, such as Python's http.server,
 * take it for the next request; to us it is a body.
 */
#pragma once

#include "normal.bpf.h"

#define CHUNK_DIGITS 15

enum body_phase {
	BODY_DATA,	 /* of known length */
	BODY_SIZE_FIRST, /* at the size of a chunk */
	BODY_SIZE,
	BODY_SIZE_BLANK, /* behind it */
	BODY_EXTENSION,
	BODY_SIZE_LF,
	BODY_CHUNK, /* in its data */
	BODY_CHUNK_CR,
	BODY_CHUNK_LF,
	BODY_TRAILER, /* at the begin of a line */
	BODY_TRAILER_LINE,
	BODY_TRAILER_LF,
	BODY_LAST_LF,
	BODY_END, /* it is over: what follows is the next request */
	BODY_ODD, /* servers differ about where it ends */
};

static __always_inline void body_begin(struct fief_body *body, bool chunked, __u64 length)
{
	body->left = chunked ? 0 : length;
	body->phase = BODY_END;
	if (chunked)
		body->phase = BODY_SIZE_FIRST;
	else if (length)
		body->phase = BODY_DATA;
	body->digits = 0;
	body->pad = 0;
}

/* Whether the next body->left bytes are data. */
static __always_inline bool body_is_data(const struct fief_body *body)
{
	return body->phase == BODY_DATA || body->phase == BODY_CHUNK;
}

/* Passes by as many of the next `count` bytes as are data, unseen. How many. */
static __always_inline __u32 body_skip(struct fief_body *body, __u32 count)
{
	if (!body_is_data(body))
		return 0;
	if (count > body->left)
		count = body->left;
	body->left -= count;
	if (!body->left)
		body->phase = body->phase == BODY_DATA ? BODY_END : BODY_CHUNK_CR;
	return count;
}

static __always_inline bool is_control(__u8 byte)
{
	return (byte < ' ' && byte != '\t') || byte == 0x7f;
}

/* The phase after a byte of a size, or of what follows it in its line. */
static __always_inline __u32 size_phase(struct fief_body *body, __u32 phase, __u8 byte)
{
	__u32 digit = hex_digit(byte);

	if (phase <= BODY_SIZE && digit < 16) {
		if (body->digits >= CHUNK_DIGITS)
			return BODY_ODD;
		body->digits++;
		body->left = body->left << 4 | digit;
		return BODY_SIZE;
	}
	if (phase == BODY_SIZE_FIRST)
		return BODY_ODD;
	if (byte == '\r')
		return BODY_SIZE_LF;
	if (phase == BODY_EXTENSION)
		return is_control(byte) ? BODY_ODD : BODY_EXTENSION;
	if (byte == ';')
		return BODY_EXTENSION;
	return is_blank(byte) ? BODY_SIZE_BLANK : BODY_ODD;
}

/* The phase after a byte of the trailer. */
static __always_inline __u32 trailer_phase(__u32 phase, __u8 byte)
{
	if (byte == '\r')
		return phase == BODY_TRAILER ? BODY_LAST_LF : BODY_TRAILER_LF;
	if (is_control(byte) || (phase == BODY_TRAILER && is_blank(byte)))
		return BODY_ODD;
	return BODY_TRAILER_LINE;
}

/* The phase after the LF of a line. */
static __always_inline __u32 line_phase(struct fief_body *body, __u32 phase)
{
	switch (phase) {
	case BODY_SIZE_LF:
		return body->left ? BODY_CHUNK : BODY_TRAILER;
	case BODY_CHUNK_LF:
		body->digits = 0;
		return BODY_SIZE_FIRST;
	case BODY_TRAILER_LF:
		return BODY_TRAILER;
	default:
		return BODY_END;
	}
}

/* Goes on by a byte that is not data. */
__noinline int body_byte(struct fief_body *body __arg_nonnull, __u32 byte)
{
	switch (body->phase) {
	case BODY_SIZE_FIRST:
	case BODY_SIZE:
	case BODY_SIZE_BLANK:
	case BODY_EXTENSION:
		body->phase = size_phase(body, body->phase, byte);
		break;
	case BODY_TRAILER:
	case BODY_TRAILER_LINE:
		body->phase = trailer_phase(body->phase, byte);
		break;
	case BODY_CHUNK_CR:
		body->phase = byte == '\r' ? BODY_CHUNK_LF : BODY_ODD;
		break;
	default:
		body->phase = byte == '\n' ? line_phase(body, body->phase) : BODY_ODD;
	}
	return 0;
}

/*
 * Follows the body through [at, length). Where it ends, or `length`; body->phase tells which. What comes back for an odd one
 * means nothing.
 */
__noinline __u32 body_follow(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 length,
			     struct fief_body *body __arg_nonnull)
{
	for (at = loop_from(at); at < length && can_loop;) {
		at = loop_from(at);
		if (body->phase >= BODY_END)
			break;
		if (body_is_data(body)) {
			at += body_skip(body, length - at);
			continue;
		}
		body_byte(body, byte_at(bytes, at));
		at++;
	}
	return at;
}
