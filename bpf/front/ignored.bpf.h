/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ignored: bodies of requests that have none as a rule (all but POST, PUT and PATCH).
 *
 * Problem: servers that expect no body, such as Python's http.server, do not read it and take it for the next request. To us
 * and to all others it is a body.
 * How: where the policy does not say that the server reads every body, the body is ruled as what follows the request, once its
 * first line is there. A server that takes the line for a request line serves one of three words, whose last one is a version,
 * or GET with a target alone (HTTP/0.9). It ends the connection on anything else: JSON, a form or prose is no request. A body
 * that could be a request is ruled as a later request, whose head must end where the body does; otherwise it is unread. A word
 * of capitals alone is unread too: a server joins it to the method of the following request.
 * After a request that ends its connection (RFC 9112, 9.6) nothing is a request.
 * Limits: a body that could be a request must end within FIEF_HEADER_MAX bytes. Servers are assumed to read the bodies of POST,
 * PUT and PATCH to the end.
 */
#pragma once

#include "line.bpf.h"
#include "request.bpf.h"
#include "version.bpf.h"

/* What the line at hand is to a server that takes it for the first of a request. */
enum inside { INSIDE_NOTHING, INSIDE_REQUEST, INSIDE_MORE };

/* Behind the ends of lines at `at`. */
static __always_inline __u32 skip_ends(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		if (byte_at(bytes, at) != '\r' && byte_at(bytes, at) != '\n')
			break;
	}
	return loop_from(at);
}

/* Where the spaces, or the word, at `at` end: within the line, or at its LF. */
__noinline __u32 spaces_end(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end, __u32 spaces)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		if (byte_at(bytes, at) == '\n' || is_space(byte_at(bytes, at)) != !!spaces)
			break;
	}
	return at;
}

/* Whether [at, end) could be the begin of a method that a rule names. */
static __always_inline bool is_capitals(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		__u8 byte = byte_at(bytes, at);

		if ((__u8)(byte - 'A') > 25 && byte != '-' && byte != '_')
			break;
	}
	return at >= end;
}

/* What stands in [at, end), which is all that the body has if `whole`. */
__noinline int inside_line(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end, __u32 whole)
{
	__u32 first, words, last = 0, stop = 0;
	bool get = false;

	first = spaces_end(bytes, skip_ends(bytes, at, end), end, true);
	at = first;
	for (words = 0; words < 4; words++) {
		at = spaces_end(bytes, at, end, true);
		if (at >= end || byte_at(bytes, at) == '\n')
			break;
		last = at;
		at = spaces_end(bytes, at, end, false);
		stop = at;
		if (words)
			continue;
		if (!is_name(bytes, first, at))
			return INSIDE_NOTHING;
		get = is_method(bytes, first, at - first, LETTERS('G', 'E', 'T', 0, 0, 0, 0, 0), 3);
	}
	if (words > 3)
		return INSIDE_NOTHING;
	if (at >= end && !whole)
		return INSIDE_MORE;
	if (words == 1 && stop == end)
		return is_capitals(bytes, first, end) ? INSIDE_REQUEST : INSIDE_NOTHING;
	if (words == 2)
		return get ? INSIDE_REQUEST : INSIDE_NOTHING;
	return words == 3 && is_version(bytes, last, stop) ? INSIDE_REQUEST : INSIDE_NOTHING;
}

/*
 * What there is to say of a body of which there are `length` bytes, or which has no more: REQUEST_NEED_MORE, REQUEST_COMPLETE if
 * there is no request in it, or REQUEST_DECIDED: its first line could begin one.
 */
__noinline int inside_state(const struct request_bytes *bytes __arg_nonnull, __u32 length, __u32 whole)
{
	switch (inside_line(bytes, 0, length, whole)) {
	case INSIDE_NOTHING:
		return REQUEST_COMPLETE;
	case INSIDE_REQUEST:
		return REQUEST_DECIDED;
	default:
		return REQUEST_NEED_MORE;
	}
}
