/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Header: the head of an HTTP/1 request, as RFC 9112 has it and servers read it.
 *
 *   METHOD target HTTP/1.x       a version may be missing (HTTP/0.9): then the line is all
 *   Name: value                  only Host, Cookie, what says how long the body is, and what the rules want
 *   (empty line)
 *
 * Problem: a request that we read otherwise than the server passes round the rules; the verdict must not depend on
 * how the bytes were cut into segments.
 * How: what follows from bytes that can only be followed by others is said at once (MALFORMED), all else when the empty
 * line is there. Where servers are tolerant, so are we: empty lines first, LF without CR, several blanks. A head that
 * is longer than FIEF_HEADER_MAX is read as far as its whole lines go (CUT).
 * Limits: a folded line is not joined to the one before it; the first header of a name counts. Later requests are not
 * tracked behind a body in chunks or of doubtful length, an upgrade, or CONNECT.
 */
#pragma once

#include "hash.bpf.h"
#include "normal.bpf.h"

#define METHOD_MAX 32
#define BODY_MAX   0x40000000ull /* where the next request begins must fit into sequence numbers */

/* Eight letters as they stand in memory. */
#define LETTERS(a, b, c, d, e, f, g, h)                                                                                \
	((__u64)(a) | (__u64)(b) << 8 | (__u64)(c) << 16 | (__u64)(d) << 24 | (__u64)(e) << 32 | (__u64)(f) << 40 |    \
	 (__u64)(g) << 48 | (__u64)(h) << 56)
#define CASE 0x20

/* RFC 9110, 5.6.2: what methods and names are made of. */
static __always_inline bool is_token(__u8 byte)
{
	if (byte <= ' ' || byte >= 127)
		return false;
	/* none of the delimiters "(),/:;<=>?@[\]{} */
	if (byte < 64)
		return !(0xfc00930400000000ull >> byte & 1);
	return !(0x2800000038000001ull >> (byte - 64) & 1);
}

static __always_inline __u32 skip_blanks(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		if (!is_blank(byte_at(bytes, at)))
			break;
	}
	return at;
}

static __always_inline __u32 trim_blanks(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (end = loop_from(end); end > at && can_loop; end--) {
		if (!is_blank(byte_at(bytes, end - 1)))
			break;
	}
	return end;
}

/* ---- the request line ---- */

/* The length of the method at `at`; 0: none, whatever follows. At the end of the bytes: what there is of it. */
static __always_inline __u32 method_length(const struct request_bytes *bytes, __u32 at, __u32 length)
{
	__u32 i;

	for (i = loop_from(at); i < length && can_loop; i++) {
		__u8 byte = byte_at(bytes, i);

		if (is_blank(byte))
			break;
		if (!is_token(byte) || i - at >= METHOD_MAX)
			return 0;
	}
	return i - at;
}

static __always_inline bool is_connect(const struct request_bytes *bytes, __u32 at, __u32 length)
{
	return length == 7 && (word_at(bytes, at) & ~0ull >> 8) == LETTERS('C', 'O', 'N', 'N', 'E', 'C', 'T', 0);
}

/* Reads what follows the method. 0: MALFORMED; 1: there are header lines; 2: there are none, HTTP/0.9. */
static __always_inline int request_line(const struct request_bytes *bytes, __u32 at, __u32 end, bool connect,
					struct front_request *request)
{
	__u32 target = skip_blanks(bytes, at, end), i;

	for (i = loop_from(target); i < end && can_loop; i++) {
		if (is_blank(byte_at(bytes, i)))
			break;
	}
	if (i == target || !target_set(bytes, target, i, connect, request))
		return 0;
	i = skip_blanks(bytes, i, end);
	if (i == end)
		return 2;
	if (i + 7 > end || (word_at(bytes, i) & ~0ull >> 8) != LETTERS('H', 'T', 'T', 'P', '/', '1', '.', 0))
		return 0;
	return 1;
}

/* ---- header lines ---- */

static __always_inline void content_length(const struct request_bytes *bytes, __u32 at, __u32 end,
					   struct front_request *request)
{
	__u64 length = 0;
	__u32 i;

	if (at == end || end - at > 18)
		request->tracked = 0;
	for (i = loop_from(at); i < end && can_loop; i++) {
		__u8 digit = byte_at(bytes, i) - '0';

		if (digit > 9 || length > BODY_MAX) {
			request->tracked = 0;
			break;
		}
		length = length * 10 + digit;
	}
	if (length > BODY_MAX || (request->lengths && length != request->body))
		request->tracked = 0;
	request->body = length;
	request->lengths++;
}

/* Which of the names that the rules want this hash is; FIEF_NAMES: none. */
static __always_inline __u32 wanted_name(const struct front_request *request, __u64 hash)
{
	__u32 name;

	for (name = 0; name < FIEF_NAMES; name++) {
		if (request->name[name] == hash)
			break;
	}
	return name;
}

static __always_inline void value_set(struct front_request *request, __u32 name, __u32 at, __u32 end)
{
	if (name < FIEF_NAMES && !span_known(request, REQUEST_VALUE + name))
		span_set(request, REQUEST_VALUE + name, at, end - at, PLACE_STREAM);
}

/* Looks through "a=1; b=2" for the cookies that the rules want. */
__noinline int cookies_read(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			    struct front_request *request __arg_nonnull)
{
	__u32 stop, equals, name;

	for (at = loop_from(at); at < end && can_loop; at = stop + 1) {
		stop = find_byte(bytes, at, end, ';');
		at = skip_blanks(bytes, at, stop);
		equals = find_byte(bytes, at, stop, '=');
		name = trim_blanks(bytes, at, equals);
		if (equals < stop && name - at <= REQUEST_NAME_MAX) {
			__u32 value = skip_blanks(bytes, equals + 1, stop);

			value_set(request,
				  wanted_name(request, hash_name(bytes, at, name - at, request, FIEF_FIELD_COOKIE)),
				  value, trim_blanks(bytes, value, stop));
		}
	}
	return 0;
}

/* Reads the header line [at, end). */
__noinline int header_line(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			   struct front_request *request __arg_nonnull)
{
	__u32 colon = find_byte(bytes, at, end, ':'), length = colon - at, value;
	__u64 word = word_at(bytes, at), small = word | EACH_BYTE(CASE);

	if (colon >= end)
		return 0;
	value = skip_blanks(bytes, colon + 1, end);
	end = trim_blanks(bytes, value, end);
	if (request->wanted & FIEF_GUARD_HEADERS && length <= REQUEST_NAME_MAX)
		value_set(request, wanted_name(request, hash_name(bytes, at, length, request, FIEF_FIELD_HEADER)),
			  value, end);
	switch (length) {
	case 4: /* host */
		if ((__u32)small == (__u32)LETTERS('h', 'o', 's', 't', 0, 0, 0, 0) &&
		    !span_known(request, REQUEST_HOST) && !request->hosts++)
			host_set(bytes, value, end, request);
		break;
	case 6: /* cookie */
		if (request->wanted & FIEF_GUARD_COOKIES &&
		    (small & ~0ull >> 16) == LETTERS('c', 'o', 'o', 'k', 'i', 'e', 0, 0))
			cookies_read(bytes, value, end, request);
		break;
	case 7: /* upgrade */
		if ((small & ~0ull >> 8) == LETTERS('u', 'p', 'g', 'r', 'a', 'd', 'e', 0))
			request->tracked = 0;
		break;
	case 14: /* content-length */
		if ((word | LETTERS(CASE, CASE, CASE, CASE, CASE, CASE, CASE, 0)) ==
			LETTERS('c', 'o', 'n', 't', 'e', 'n', 't', '-') &&
		    ((word_at(bytes, at + 8) | EACH_BYTE(CASE)) & ~0ull >> 16) ==
			LETTERS('l', 'e', 'n', 'g', 't', 'h', 0, 0))
			content_length(bytes, value, end, request);
		break;
	case 17: /* transfer-encoding */
		if (small == LETTERS('t', 'r', 'a', 'n', 's', 'f', 'e', 'r') &&
		    (word_at(bytes, at + 8) | LETTERS(0, CASE, CASE, CASE, CASE, CASE, CASE, CASE)) ==
			LETTERS('-', 'e', 'n', 'c', 'o', 'd', 'i', 'n'))
			request->tracked = 0;
		break;
	}
	return 0;
}

/* Reads the lines from `at` on, up to the empty one. */
static __always_inline enum request_state header_lines(const struct request_bytes *bytes, __u32 at, __u32 length,
						       struct front_request *request)
{
	__u32 line, end;

	for (at = loop_from(at); at < length && can_loop; at = line + 1) {
		line = find_byte(bytes, at, length, '\n');
		if (line >= length)
			break;
		end = line > at && byte_at(bytes, line - 1) == '\r' ? line - 1 : line;
		if (end == at) {
			request->head = line + 1;
			return REQUEST_COMPLETE;
		}
		if (!is_blank(byte_at(bytes, at)))
			header_line(bytes, at, end, request);
	}
	return REQUEST_NEED_MORE;
}

/* What there is of an HTTP/1 head in the first `length` bytes. */
__noinline int header_parse(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			    struct front_request *request __arg_nonnull)
{
	__u32 at = loop_from(0), method, line, end;
	enum request_state state;
	bool connect;
	int shape;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	for (; at < length && can_loop; at++) {
		if (byte_at(bytes, at) != '\r' && byte_at(bytes, at) != '\n')
			break;
	}
	if (at == length)
		return length < FIEF_HEADER_MAX ? REQUEST_NEED_MORE : REQUEST_CUT;
	method = method_length(bytes, at, length);
	if (!method)
		return REQUEST_MALFORMED;
	line = find_byte(bytes, at, length, '\n');
	if (line >= length)
		return length < FIEF_HEADER_MAX ? REQUEST_NEED_MORE : REQUEST_CUT;
	end = byte_at(bytes, line - 1) == '\r' ? line - 1 : line;
	connect = is_connect(bytes, at, method);
	shape = request_line(bytes, at + method, end, connect, request);
	if (!shape)
		return REQUEST_MALFORMED;
	span_set(request, REQUEST_METHOD, at, method, PLACE_STREAM);
	request->tracked = shape == 1 && !connect;
	request->head = line + 1;
	if (shape == 2)
		return REQUEST_COMPLETE;
	state = header_lines(bytes, line + 1, length, request);
	return state == REQUEST_NEED_MORE && length == FIEF_HEADER_MAX ? REQUEST_CUT : state;
}
