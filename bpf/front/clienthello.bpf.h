/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Client hello: the server name and the protocols (ALPN) that a TLS client asks for, unencrypted (RFC 8446, 4.1.2).
 *
 *   record     22, version, length | handshake message 1, length (3 bytes) | ...
 *   message    version 2, random 32, session id <1>, cipher suites <2>, compression <1>, extensions <2>
 *   extension  kind 2, length 2; 0: server name, 16: ALPN
 *
 * Problem: post-quantum keys make a hello longer than a segment, and it may be cut into several records, some of them empty.
 * How: a hello in one record is read in place; otherwise its pieces are first joined in request.text. Hellos that OpenSSL and
 * Go refuse (several names, an extension twice) are UNREAD, and so are records of other kinds before a hello, which OpenSSL
 * skips.
 * Limits: an encrypted client hello shows its public name only, and a name says nothing of the Host in the requests within.
 * Only the first 8 protocols are read. A hello above FIEF_HEADER_MAX bytes with the heads of its records is UNREAD (too long),
 * with the names that it has shown by then.
 */
#pragma once

#include "head.bpf.h"

#define TLS_HANDSHAKE	 22
#define TLS_CLIENT_HELLO 1
#define TLS_SERVER_NAME	 0
#define TLS_ALPN	 16
#define TLS_EARLY_DATA	 42
#define TLS_VERSIONS	 43 /* only clients that know TLS 1.3 send it */
#define TLS_RECORD	 5  /* bytes of its head */
#define TLS_RECORD_MAX	 16384

static __always_inline __u32 two_bytes(const struct request_bytes *bytes, __u32 at)
{
	return byte_at(bytes, at) << 8 | byte_at(bytes, at + 1);
}

/* The name in a server_name extension, which bears one; false: servers differ about it. */
static __always_inline bool server_name_set(const struct request_bytes *bytes, __u32 at, __u32 end, __u8 place,
					    struct front_request *request)
{
	__u32 length;

	if (at + 5 > end || byte_at(bytes, at + 2))
		return false;
	length = two_bytes(bytes, at + 3);
	at += 5;
	if (at + length != end)
		return false;
	if (length && byte_at(bytes, at + length - 1) == '.')
		length--;
	if (!length || length > REQUEST_NAME_MAX)
		return false;
	/* nginx takes what is behind a colon for a port */
	if (find_byte(bytes, at, at + length, ':') < at + length)
		return false;
	span_set(request, REQUEST_SERVER_NAME, at, length, place);
	request->span[REQUEST_SERVER_NAME].known |= SPAN_FOLD;
	return true;
}

static __always_inline void protocols_set(const struct request_bytes *bytes, __u32 at, __u32 end, __u8 place,
					  struct front_request *request)
{
	__u32 length, i;

	at += 2;
	for (i = loop_from(0); i < REQUEST_ALPN_MAX && at < end && can_loop; i++) {
		length = byte_at(bytes, at);
		if (!length || at + 1 + length > end)
			break;
		span_set(request, REQUEST_ALPN + i, at + 1, length, place);
		at += 1 + length;
	}
	request->alpns = i;
}

/* Reads an extension; false: servers differ about it. */
static __always_inline bool extension_read(const struct request_bytes *bytes, __u32 kind, __u32 at, __u32 end,
					   __u32 place, struct front_request *request)
{
	if (kind == TLS_SERVER_NAME) {
		if (request->hosts++)
			return false;
		return server_name_set(bytes, at, end, place, request);
	}
	if (kind == TLS_ALPN) {
		if (request->lengths++)
			return false;
		protocols_set(bytes, at, end, place, request);
	}
	if (kind == TLS_EARLY_DATA)
		request->hello |= HELLO_EARLY;
	if (kind == TLS_VERSIONS)
		request->hello |= HELLO_RETRY;
	return true;
}

/* Reads the body of a client hello, which begins behind its length at `at`; what is before `have` is there. */
__noinline int hello_fields(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 have,
			    struct front_request *request __arg_nonnull, __u32 place)
{
	__u32 end = at + (byte_at(bytes, at - 3) << 16) + two_bytes(bytes, at - 2), kind, length;
	__u32 lacking = have < end ? FIEF_UNREAD_TOO_LONG : FIEF_UNREAD_MALFORMED;

	at += 2 + 32;
	if (at >= have)
		return request_unread(request, lacking);
	at += 1 + byte_at(bytes, at);
	if (at + 2 > have)
		return request_unread(request, lacking);
	at += 2 + two_bytes(bytes, at);
	if (at + 1 > have)
		return request_unread(request, lacking);
	at += 1 + byte_at(bytes, at);
	if (at == end)
		return REQUEST_COMPLETE; /* no extensions, as before TLS 1.2 */
	if (at + 2 > have)
		return request_unread(request, lacking);
	if (at + 2 + two_bytes(bytes, at) != end)
		return request_unread(request, FIEF_UNREAD_MALFORMED);
	at += 2;
	for (at = loop_from(at); at + 4 <= have && can_loop; at += length) {
		kind = two_bytes(bytes, at);
		length = two_bytes(bytes, at + 2);
		at += 4;
		if (at + length > end)
			return request_unread(request, FIEF_UNREAD_MALFORMED);
		if (at + length > have)
			break;
		if (!extension_read(bytes, kind, at, at + length, place, request))
			request->odd = 1;
	}
	if (have < end || at != end || request->odd)
		return request_unread(request, lacking);
	return REQUEST_COMPLETE;
}

/* Puts `length` bytes from `at` behind `filled` of request.text, by eight; what is too much is overwritten later. */
__noinline int text_append(const struct request_bytes *bytes __arg_nonnull, __u32 at,
			   struct front_request *request __arg_nonnull, __u32 filled, __u32 length)
{
	__u32 i;

	for (i = loop_from(0); i < length && can_loop; i += 8)
		word_put(&request->text, filled + i, word_at(bytes, at + i));
	return 0;
}

/*
 * A message cut into records: puts together what there is of it in request.text, as many bytes as come back. -1: that
 * is no hello. request.head is where it ends, if a record ends there. The masks change nothing; they keep the verifier
 * from counting along.
 */
__noinline int hello_join(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			  struct front_request *request __arg_nonnull)
{
	__u32 at = loop_from(0), filled = loop_from(0), record, here;

	request->head = 0;

	while (can_loop) {
		at &= 2 * FIEF_HEADER_MAX - 1;
		filled &= 2 * FIEF_HEADER_MAX - 1;
		if (filled >= 4 && filled >= 4 + two_bytes(&request->text, 2) && !byte_at(&request->text, 1))
			break;
		if ((at < length && byte_at(bytes, at) != TLS_HANDSHAKE) ||
		    (at + 1 < length && byte_at(bytes, at + 1) != 3))
			return -1;
		if (at + TLS_RECORD > length)
			break;
		record = two_bytes(bytes, at + 3);
		if (record > TLS_RECORD_MAX)
			return -1;
		at += TLS_RECORD;
		here = record < length - at ? record : length - at;
		text_append(bytes, at, request, filled, here);
		filled += here;
		at += here;
		if (filled && byte_at(&request->text, 0) != TLS_CLIENT_HELLO)
			return -1;
		if (here < record) {
			request->head = 0;
			break;
		}
		request->head = at;
	}
	return filled;
}

/* More stands in the record that ends the hello, which no client sends. */
static __always_inline int hello_unended(struct front_request *request, int state)
{
	return state == REQUEST_COMPLETE ? request_unread(request, FIEF_UNREAD_MALFORMED) : state;
}

/* What there is of a client hello in the first `length` bytes, of which the first is TLS_HANDSHAKE. */
__noinline int hello_parse(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			   struct front_request *request __arg_nonnull)
{
	__u32 have, wanted;
	int joined, state;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (length >= TLS_RECORD + 4 && byte_at(bytes, 1) == 3 && byte_at(bytes, 5) == TLS_CLIENT_HELLO &&
	    !byte_at(bytes, 6) && two_bytes(bytes, 3) >= 4 + two_bytes(bytes, 7) &&
	    two_bytes(bytes, 3) <= TLS_RECORD_MAX) {
		wanted = 4 + two_bytes(bytes, TLS_RECORD + 2);
		if (length < TLS_RECORD + wanted && length < FIEF_HEADER_MAX)
			return REQUEST_NEED_MORE;
		have = length < TLS_RECORD + wanted ? length : TLS_RECORD + wanted;
		state = hello_fields(bytes, TLS_RECORD + 4, have, request, PLACE_STREAM);
		request->head = TLS_RECORD + wanted;
		return two_bytes(bytes, 3) == wanted ? state : hello_unended(request, state);
	}
	joined = hello_join(bytes, length, request);
	if (joined < 0)
		return request_unread(request, FIEF_UNREAD_MALFORMED);
	have = joined;
	if (have < 4)
		return request_wait(request, length);
	wanted = 4 + (byte_at(&request->text, 1) << 16) + two_bytes(&request->text, 2);
	if (have < wanted && length < FIEF_HEADER_MAX)
		return REQUEST_NEED_MORE;
	state = hello_fields(&request->text, 4, have < wanted ? have : wanted, request, PLACE_TEXT);
	return have == wanted && request->head ? state : hello_unended(request, state);
}

/* What the first `length` bytes of a connection, or of a later request, are; the fields are in `request`. */
static __always_inline enum request_state request_parse(const struct request_bytes *bytes, __u32 length,
							struct front_request *request)
{
	if (!length)
		return REQUEST_NEED_MORE;
	if (byte_at(bytes, 0) == TLS_HANDSHAKE)
		return hello_parse(bytes, length, request);
	return header_parse(bytes, length, request);
}
