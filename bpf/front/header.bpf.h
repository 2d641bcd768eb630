/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Header: the head of an HTTP/1 request, as RFC 9112 has it and servers read it.
 *
 *   METHOD target HTTP/1.x
 *   Name: value                  only Host, Cookie, the fields for the body's length, and those that the rules name
 *   (empty line)
 *
 * Problem: a request that we read otherwise than the server evades the rules. The verdict must not depend on how the bytes were
 * cut into segments.
 * How: a head that RFC 9112 allows is read as every server reads it (COMPLETE). So are deviations that all servers which accept
 * them read alike: empty lines first, several blanks before the target. About all other heads servers differ:
 * some refuse, some skip lines, some read another request. Such a head is odd: it is read as the most tolerant of these servers
 * read it, and is UNREAD (malformed) at its end. A first line without a version, or without a space right before it, where some
 * servers find none (HTTP/0.9: some read on, some answer at once), of HTTP/2, of the PROXY protocol or of anything else is UNREAD
 * at the line's end. A head without an end within FIEF_HEADER_MAX bytes is UNREAD there. The readable fields of all of them are
 * set, those of an unfinished first line too.
 * Limits: of headers and cookies of one name the first counts, except for Host, of which there is one. Transfer codings other
 * than "chunked" alone are odd: most servers know no other.
 */
#pragma once

#include "hash.bpf.h"
#include "line.bpf.h"
#include "normal.bpf.h"

#define BODY_MAX      0x40000000ull /* of a body that is passed by at once: its end must fit into sequence numbers */
#define LENGTH_DIGITS 18
#define BODY_MOST     999999999999999999ull /* that they can say */

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

/* One number in digits; about all else servers differ. */
__noinline int content_length(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			      struct front_request *request __arg_nonnull)
{
	__u64 length = 0;
	__u32 i;

	if (at == end || end - at > LENGTH_DIGITS || request->lengths++)
		request->odd = 1;
	for (i = loop_from(at); i < end && can_loop; i++) {
		__u8 digit = byte_at(bytes, i) - '0';

		if (digit > 9) {
			request->odd = 1;
			break;
		}
		length = length * 10 + digit;
	}
	request->body = length;
	return 0;
}

static __always_inline void transfer_encoding(const struct request_bytes *bytes, __u32 at, __u32 end,
					      struct front_request *request)
{
	__u64 word = (word_at(bytes, at) | EACH_BYTE(CASE)) & ~0ull >> 8;

	if (end - at != 7 || word != LETTERS('c', 'h', 'u', 'n', 'k', 'e', 'd', 0) || request->codings++)
		request->odd = 1;
	request->chunked = 1;
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
		at = loop_from(at);
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

/* Skips blanks, and the ends of lines that are folded. */
static __always_inline __u32 skip_folds(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	for (at = loop_from(at); at < end && can_loop; at++) {
		__u8 byte = byte_at(bytes, at);

		if (!is_blank(byte) && byte != '\r' && byte != '\n')
			break;
	}
	return loop_from(at);
}

/*
 * RFC 9112, 9.3 and 9.6, where it is said in one way that all servers read alike. `end` is that of the line: to Python's server
 * "close" with a blank behind it is another word.
 */
static __always_inline void connection_set(const struct request_bytes *bytes, __u32 at, __u32 end,
					   struct front_request *request)
{
	__u64 word = (word_at(bytes, at) | EACH_BYTE(CASE)) & ~0ull >> 24;

	if (end - at == 5 && word == LETTERS('c', 'l', 'o', 's', 'e', 0, 0, 0))
		request->closes = 1;
	else if (request->chunks || end - at >= 10) /* as long as "keep-alive" */
		request->stays = 1;
}

/* Whether the server ends the connection behind the request. */
static __always_inline bool is_last(const struct front_request *request)
{
	return !request->stays && (request->closes || !request->chunks);
}

/* Reads the header line [at, end), with the lines that are folded into it. */
__noinline int header_line(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			   struct front_request *request __arg_nonnull)
{
	__u32 colon = find_byte(bytes, at, end, ':'), length = colon - at, line_end = end, value;
	__u64 word = word_at(bytes, at), small = word | EACH_BYTE(CASE);

	if (colon >= end || !is_name(bytes, at, colon))
		request->odd = 1;
	if (colon >= end)
		return 0;
	/* a blank before the colon: some servers skip such a line, some take it */
	length = trim_blanks(bytes, at, colon) - at;
	value = skip_folds(bytes, colon + 1, end);
	end = trim_blanks(bytes, value, end);
	if (request->wanted & FIEF_GUARD_HEADERS && length <= REQUEST_NAME_MAX)
		value_set(request, wanted_name(request, hash_name(bytes, at, length, request, FIEF_FIELD_HEADER)),
			  value, end);
	switch (length) {
	case 4: /* host */
		if ((__u32)small != (__u32)LETTERS('h', 'o', 's', 't', 0, 0, 0, 0))
			break;
		if (request->hosts++)
			request->odd = 1;
		host_set(bytes, value, end, request);
		break;
	case 6: /* cookie */
		if (request->wanted & FIEF_GUARD_COOKIES &&
		    (small & ~0ull >> 16) == LETTERS('c', 'o', 'o', 'k', 'i', 'e', 0, 0))
			cookies_read(bytes, value, end, request);
		break;
	case 7: /* upgrade */
		if ((small & ~0ull >> 8) == LETTERS('u', 'p', 'g', 'r', 'a', 'd', 'e', 0))
			request->upgrade = 1;
		break;
	case 10: /* connection */
		if (small == LETTERS('c', 'o', 'n', 'n', 'e', 'c', 't', 'i') &&
		    ((word_at(bytes, at + 8) | EACH_BYTE(CASE)) & ~0ull >> 48) == LETTERS('o', 'n', 0, 0, 0, 0, 0, 0))
			connection_set(bytes, value, line_end, request);
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
			LETTERS('-', 'e', 'n', 'c', 'o', 'd', 'i', 'n') &&
		    (byte_at(bytes, at + 16) | CASE) == 'g')
			transfer_encoding(bytes, value, end, request);
		break;
	}
	return 0;
}

/* The head is there, up to its empty line. */
static __always_inline int header_end(struct front_request *request)
{
	bool body = request->chunked || request->body;

	if (request->chunked && (request->lengths || !request->chunks))
		request->odd = 1;
	if (body && request->connect)
		request->odd = 1;
	if (request->chunked)
		request->body = 0;
	if (request->odd)
		return request_unread(request, FIEF_UNREAD_MALFORMED);
	/* the comparison always holds here; without it 6.18 stumbles over the loop in header_lines() (docs/kernel-facts.md) */
	request->tracked = !request->chunked && !request->upgrade && request->body <= BODY_MOST;
	return REQUEST_COMPLETE;
}

/* Reads the lines from `at` on, up to the empty one, each with those that are folded into it. */
__noinline int header_lines(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 length,
			    struct front_request *request __arg_nonnull)
{
	__u32 line, end, from = at;

	for (at = loop_from(at); at < length && can_loop; at = line + 1) {
		from = loop_from(from);
		line = line_find(bytes, at, length, request);
		if (line >= length)
			break;
		end = trim_returns(bytes, at, line);
		if (end == at) {
			request->head = line + 1;
			return header_end(request);
		}
		if (line + 1 < length && is_blank(byte_at(bytes, line + 1))) {
			request->odd = 1;
			continue;
		}
		header_line(bytes, from, end, request);
		from = line + 1;
	}
	return request_wait(request, length);
}
