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
 * them read alike: empty lines first, LF without CR, several blanks before the target. About all other heads servers differ:
 * some refuse, some skip lines, some read another request. Such a head is odd: it is read as the most tolerant of these servers
 * read it, and is UNREAD (malformed) at its end. A first line without a version (HTTP/0.9, after which some servers read on and
 * some do not), of HTTP/2, of the PROXY protocol or of anything else is UNREAD at the line's end. A head without an end within
 * FIEF_HEADER_MAX bytes is UNREAD there. The readable fields of all of them are set, those of an unfinished first line too.
 * Limits: of headers and cookies of one name the first counts, except for Host, of which there is one. Transfer codings other
 * than "chunked" alone are odd: most servers know no other.
 */
#pragma once

#include "hash.bpf.h"
#include "normal.bpf.h"

#define BODY_MAX 0x40000000ull /* where the next request begins must fit into sequence numbers */

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

/*
 * Where the line at `at` ends: its LF, or `length`. A CR that no LF follows ends a line for some servers; no other control
 * character but a tab may be there.
 */
__noinline __u32 line_find(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 length,
			   struct front_request *request __arg_nonnull)
{
	__u64 found;
	__u8 byte;

	for (at = loop_from(at); at < length && can_loop;) {
		found = control_bytes(word_at(bytes, at));
		if (!found) {
			at += 8;
			continue;
		}
		at += lowest_byte(found);
		if (at >= length)
			break;
		byte = byte_at(bytes, at);
		if (byte == '\n')
			break;
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

/* ---- the request line ---- */

static __always_inline bool is_method(const struct request_bytes *bytes, __u32 at, __u32 length, __u64 letters,
				      __u32 wanted)
{
	return length == wanted && (word_at(bytes, at) & ~0ull >> (64 - 8 * wanted)) == letters;
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
	if (method != at || !is_name(bytes, method, stop))
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
	return version_read(bytes, version, end, request);
}

/* ---- header lines ---- */

/* One number in digits; about all else servers differ. */
__noinline int content_length(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			      struct front_request *request __arg_nonnull)
{
	__u64 length = 0;
	__u32 i;

	if (at == end || end - at > 18 || request->lengths++)
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

/* RFC 9112, 9.3 and 9.6, where it is said in one way that all servers read alike. */
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
	__u32 colon = find_byte(bytes, at, end, ':'), length = colon - at, value;
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
			connection_set(bytes, value, end, request);
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
	request->tracked = !request->chunked && !request->upgrade && request->body <= BODY_MAX;
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

/* Behind the empty lines before a request. */
static __always_inline __u32 skip_empty(const struct request_bytes *bytes, __u32 at, __u32 length,
					struct front_request *request)
{
	__u8 byte;

	for (at = loop_from(at); at < length && can_loop; at++) {
		byte = byte_at(bytes, at);
		if (byte == '\r' && at + 1 < length && byte_at(bytes, at + 1) != '\n')
			request->odd = 1;
		if (byte != '\r' && byte != '\n')
			break;
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
