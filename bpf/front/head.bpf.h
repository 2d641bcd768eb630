/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Head: the head of a request from its first byte on: empty lines, the first line (line.bpf.h), and header lines (header.bpf.h). */
#pragma once

#include "header.bpf.h"
#include "line.bpf.h"

/* Behind the empty lines before a request. */
static __always_inline __u32 skip_empty(const struct request_bytes *bytes, __u32 at, __u32 length,
					struct front_request *request)
{
	__u8 byte, last = 0;

	for (at = loop_from(at); at < length && can_loop; at++) {
		byte = byte_at(bytes, at);
		if (byte != '\n' ? last == '\r' : last != '\r')
			request->odd = 1;
		if (byte != '\r' && byte != '\n')
			break;
		last = byte;
	}
	return loop_from(at);
}

/*
 * Finds the first line, [request.line, request.line_end), or what there is of it. REQUEST_COMPLETE: it is there, and what
 * follows it begins at request.head.
 */
__noinline int first_line(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			  struct front_request *request __arg_nonnull)
{
	__u32 at = skip_empty(bytes, 0, length, request), end;
	__u8 first = byte_at(bytes, at);

	request->line = at;
	request->line_end = at;
	if (at >= length)
		return request_wait(request, length);
	/* the PROXY protocol's second version: CR LF CR LF 0 CR LF "QUIT" LF */
	if (!first && at == 4 && (__u32)word_at(bytes, 0) == (__u32)LETTERS('\r', '\n', '\r', '\n', 0, 0, 0, 0))
		return request_unread(request, FIEF_UNREAD_PROXY);
	if (!is_token(first) && !is_blank(first))
		return request_unread(request, FIEF_UNREAD_OTHER);
	end = line_find(bytes, at, length, request);
	request->line_end = trim_returns(bytes, at, end);
	request->head = end + 1;
	return end < length ? REQUEST_COMPLETE : request_wait(request, length);
}

/* What there is of an HTTP/1 head in the first `length` bytes. */
static __always_inline int header_parse(const struct request_bytes *bytes, __u32 length, struct front_request *request)
{
	int state, version = false;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	state = first_line(bytes, length, request);
	if (request->line_end > request->line)
		version = request_line(bytes, request->line, request->line_end, request);
	if (state != REQUEST_COMPLETE)
		return state == REQUEST_UNREAD && request->head ? request_wait(request, length) : state;
	return version ? header_lines(bytes, request->head, length, request) : REQUEST_UNREAD;
}
