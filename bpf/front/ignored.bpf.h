/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ignored: bodies of requests that have none as a rule (GET and its like).
 *
 * Problem: servers that expect no body do not read it, as Python's http.server,
 * and take it for the next request; to us and to all others it is a body. How:
 * its first word is waited for. Where that could begin a request (a token and a
 * blank, or cut off by the end) the body is unread. Where it could not, as in
 * JSON, a server that takes it for a request refuses it and ends the
 * connection. Limits: a client that wants to be asked for the body (Expect:
 * 100-continue) waits until it gives up waiting. Of other methods servers are
 * taken to read the body.
 */
#pragma once

#include "header.bpf.h"

static __always_inline bool is_without_body(const struct request_bytes *bytes, const struct front_request *request)
{
	__u32 at = request->span[REQUEST_METHOD].at, length = request->span[REQUEST_METHOD].length;

	return is_method(bytes, at, length, LETTERS('G', 'E', 'T', 0, 0, 0, 0, 0), 3) ||
	       is_method(bytes, at, length, LETTERS('H', 'E', 'A', 'D', 0, 0, 0, 0), 4) ||
	       is_method(bytes, at, length, LETTERS('T', 'R', 'A', 'C', 'E', 0, 0, 0), 5) ||
	       is_method(bytes, at, length, LETTERS('D', 'E', 'L', 'E', 'T', 'E', 0, 0), 6) ||
	       is_method(bytes, at, length, LETTERS('O', 'P', 'T', 'I', 'O', 'N', 'S', 0), 7);
}

/* Behind the ends of lines at `at`. */
static __always_inline __u32 skip_ends(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		if (byte_at(bytes, at) != '\r' && byte_at(bytes, at) != '\n')
			break;
	}
	return loop_from(at);
}

static __always_inline __u32 skip_token(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		if (!is_token(byte_at(bytes, at)))
			break;
	}
	return loop_from(at);
}

/* Of a head that is there and has a body of known length. */
__noinline int ignored_body(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			    struct front_request *request __arg_nonnull)
{
	bool whole = request->head + request->body <= length;
	__u32 at, word, end = whole ? request->head + request->body : length;

	if (!is_without_body(bytes, request))
		return REQUEST_COMPLETE;
	at = skip_ends(bytes, request->head, end);
	if (at >= end && whole)
		return REQUEST_COMPLETE;
	word = skip_token(bytes, at, end);
	if (word >= end)
		return whole ? request_unread(request, FIEF_UNREAD_OTHER) : request_wait(request, length);
	if (byte_at(bytes, word) == '\n' || !is_gap(byte_at(bytes, word)))
		return REQUEST_COMPLETE;
	return request_unread(request, FIEF_UNREAD_OTHER);
}
