/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Line: the first line of a request, as servers read it: METHOD target HTTP/1.x
 *
 * How: words and gaps are what the most tolerant server takes for such; whatever is not as RFC 9112 has it makes the request odd.
 * So does a small letter in the method: gunicorn takes "post" for POST, the others for another method or none, and no registered
 * method has one.
 */
#pragma once

#include "normal.bpf.h"

/* What some server takes for a blank: Python's takes all of these. */
static __always_inline bool is_gap(__u8 byte)
{
	return byte <= ' ' || byte == 0x85 || byte == 0xa0;
}

/* Where the gap at `at` ends; one of other than blanks is odd. */
static __always_inline __u32 skip_gap(const struct request_bytes *bytes, __u32 at, __u32 end,
				      struct front_request *request)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		__u8 byte = byte_at(bytes, at);

		if (!is_gap(byte))
			break;
		if (byte != ' ')
			request->odd = 1;
	}
	return loop_from(at);
}

/* Where the word at `at` ends. */
static __always_inline __u32 word_end(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		if (is_gap(byte_at(bytes, at)))
			break;
	}
	return loop_from(at);
}

/* Whether all of [at, end) may stand in a method or a name, of which there is at least one byte. */
__noinline int is_name(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end)
{
	__u32 i;

	for (i = loop_from(at); i < end && can_loop; i++) {
		if (!is_token(byte_at(bytes, i)))
			break;
	}
	return i == end && at < end;
}

/* Whether there is a small letter in [at, end). */
static __always_inline bool has_small(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		if ((__u8)(byte_at(bytes, at) - 'a') < 26)
			break;
	}
	return at < end;
}

/*
 * Where the line at `at` ends: its LF, or `length`. A CR that no LF follows ends a line for some servers, and an LF that no CR
 * precedes does not for others: to gunicorn it is a byte of the line. No other control character but a tab may be there.
 */
__noinline __u32 line_find(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 length,
			   struct front_request *request __arg_nonnull)
{
	__u8 byte;

	for (at = loop_from(at); at < length && can_loop;) {
		if (!control_next(bytes, &at))
			continue;
		if (at >= length)
			break;
		byte = byte_at(bytes, at);
		if (byte == '\n') {
			if (byte_at(bytes, at - 1) != '\r') /* before an empty line stands the LF of another one */
				request->odd = 1;
			break;
		}
		if (byte == '\r' ? at + 1 < length && byte_at(bytes, at + 1) != '\n' : byte != '\t')
			request->odd = 1;
		at++;
	}
	return at < length ? at : length;
}

/* The end of a line without its CRs; more than one of them are odd already. */
static __always_inline __u32 trim_returns(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (end = loop_from(end); end > at && can_loop; end--) {
		if (byte_at(bytes, end - 1) != '\r')
			break;
	}
	return loop_from(end);
}

static __always_inline bool is_method(const struct request_bytes *bytes, __u32 at, __u32 length, __u64 letters,
				      __u32 wanted)
{
	return length == wanted && (word_at(bytes, at) & ~0ull >> (64 - 8 * wanted)) == letters;
}

static __always_inline bool has_body(const struct request_bytes *bytes, __u32 at, __u32 length)
{
	return is_method(bytes, at, length, LETTERS('P', 'O', 'S', 'T', 0, 0, 0, 0), 4) ||
	       is_method(bytes, at, length, LETTERS('P', 'U', 'T', 0, 0, 0, 0, 0), 3) ||
	       is_method(bytes, at, length, LETTERS('P', 'A', 'T', 'C', 'H', 0, 0, 0), 5);
}

/* Reads "HTTP/1.x", and no more. False: it is no version of HTTP at all. */
static __always_inline bool version_read(const struct request_bytes *bytes, __u32 at, __u32 end,
					 struct front_request *request)
{
	__u8 minor = byte_at(bytes, at + 7) - '0';

	if (at + 5 > end || (word_at(bytes, at) & ~0ull >> 24) != LETTERS('H', 'T', 'T', 'P', '/', 0, 0, 0))
		return false;
	if (at + 8 > end || byte_at(bytes, at + 5) != '1' || byte_at(bytes, at + 6) != '.' || minor > 9) {
		request->odd = 1;
		return true;
	}
	request->chunks = minor > 0;
	if (skip_gap(bytes, at + 8, end, request) != end)
		request->odd = 1;
	return true;
}

/* Reads as much of the first line as is there: [at, end). Whether header lines follow; else request.unread says why not. */
__noinline int request_line(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			    struct front_request *request __arg_nonnull)
{
	__u32 method = skip_gap(bytes, at, end, request), stop = word_end(bytes, method, end), length = stop - method;
	__u32 target = skip_gap(bytes, stop, end, request), version;

	request->unread = FIEF_UNREAD_OTHER;
	if (target >= end)
		return false;
	if (method != at || !is_name(bytes, method, stop) || has_small(bytes, method, stop))
		request->odd = 1;
	span_set(request, REQUEST_METHOD, method, length, PLACE_STREAM);
	if (is_method(bytes, method, length, LETTERS('P', 'R', 'O', 'X', 'Y', 0, 0, 0), 5) &&
	    (byte_at(bytes, target) == 'T' || byte_at(bytes, target) == 'U')) {
		request->unread = FIEF_UNREAD_PROXY;
		return false;
	}
	request->unread = FIEF_UNREAD_MALFORMED;
	request->options = is_method(bytes, method, length, LETTERS('O', 'P', 'T', 'I', 'O', 'N', 'S', 0), 7);
	request->connect = is_method(bytes, method, length, LETTERS('C', 'O', 'N', 'N', 'E', 'C', 'T', 0), 7);
	request->upgrade = request->connect;
	request->bodied = has_body(bytes, method, length);
	stop = word_end(bytes, target, end);
	target_set(bytes, target, stop, request);
	version = skip_gap(bytes, stop, end, request);
	/* to lighttpd a second blank is of the target, whose last segment is another one then */
	if (version < end && version > stop + 1)
		request->odd = 1;
	if (is_method(bytes, method, length, LETTERS('P', 'R', 'I', 0, 0, 0, 0, 0), 3) &&
	    byte_at(bytes, target) == '*' && version + 8 == end &&
	    word_at(bytes, version) == LETTERS('H', 'T', 'T', 'P', '/', '2', '.', '0')) {
		request->unread = FIEF_UNREAD_HTTP2;
		return false;
	}
	/* where words are parted at spaces alone it is of the target, and the line is answered at its end (HTTP/0.9) */
	if (byte_at(bytes, version - 1) != ' ')
		return false;
	return version_read(bytes, version, end, request);
}
