/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Scan: whether what is kept of a connection's bytes can be whole, asked again with each segment.
 *
 *   a head              in HTTP its line ends are found, in TLS the heads of its records; behind a PROXY head too
 *   a record            of TLS behind a hello: what its first bytes tell is asked for; then it is another hello
 *   a line of chunks    or of trailers: its end is found, and bytes that it cannot have
 *   a body              that may be a request: the words of its first line are counted, and then its line ends found
 *
 * Problem: a head may come in segments of a byte. If each of them made us read the head from its begin, one of 16 kB would cost
 * as much as 8,000 of them.
 * How: scanned bytes are not scanned again (struct fief_scan). The parser is asked only at these places: at the end of a first
 * line and of a PROXY head, since that can be a verdict, at an empty line, at the last byte of a hello or of a body, at
 * FIEF_HEADER_MAX bytes, and where it can be no such thing. That is never later than the parser's first possible result. A
 * segment costs its own bytes so, and the parser is asked once or twice for all of them.
 * Limits: each of the first bytes of a line of chunks (SIZE_MOST), of a record (RECORD_TOLD) and of a PROXY head of version 2
 * (PROXY_TWO) is for the parser.
 */
#pragma once

#include "clienthello.bpf.h"
#include "ignored.bpf.h"
#include "proxy.bpf.h"
#include "records.bpf.h"

/* Kinds of bytes whose begin is kept until all of them are here. */
enum scan_kind {
	SCAN_UNKNOWN, /* kept by programs of an older build, which scan otherwise: the parser is asked */
	SCAN_HEAD,
	SCAN_RECORD,
	SCAN_CHUNK,
	SCAN_BODY,
};

enum scan_phase {
	SCAN_EMPTY,  /* empty lines before a request, or nothing yet */
	SCAN_FIRST,  /* in the first line */
	SCAN_FRESH,  /* at the begin of a line, but for CRs */
	SCAN_LINE,   /* in a header line */
	SCAN_TLS,    /* at the head of a record */
	SCAN_READY,  /* whatever follows */
	SCAN_BEHIND, /* right behind a PROXY head */
	/* of the first line of a body, whose words are counted: */
	SCAN_GAP,
	SCAN_WORD,
};

/* Looks through the records. True: the message can be whole, or is none. */
__noinline int hello_scan(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			  struct fief_scan *scan __arg_nonnull)
{
	__u32 at, filled, record, here, wanted, i;

	while (can_loop) {
		at = loop_from(scan->at);
		filled = loop_from(scan->filled);
		if (at < length && byte_at(bytes, at) != TLS_HANDSHAKE)
			return true;
		if (at + 1 < length && byte_at(bytes, at + 1) != 3)
			return true;
		if (at + TLS_RECORD > length)
			break;
		record = two_bytes(bytes, at + 3);
		if (record > TLS_RECORD_MAX)
			return true;
		at += TLS_RECORD;
		here = record < length - at ? record : length - at;
		wanted = scan->wanted;
		for (i = loop_from(filled); i < 4 && i < filled + here && can_loop; i++)
			wanted = wanted << 8 | byte_at(bytes, at + i - filled);
		if (!filled && here && byte_at(bytes, at) != TLS_CLIENT_HELLO)
			return true;
		filled += here;
		if (filled >= 4 && filled >= 4 + (wanted & 0xffffff))
			return true;
		if (here < record)
			break;
		scan->filled = filled;
		scan->wanted = wanted;
		scan->at = at + record;
	}
	return false;
}

/* Goes on through the empty lines before a request. True: what follows them is none. */
__noinline int begin_scan(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			  struct fief_scan *scan __arg_nonnull)
{
	bool first = !scan->at || scan->phase == SCAN_BEHIND;
	__u32 at;
	__u8 byte;

	for (at = loop_from(scan->at); at < length && can_loop; at++) {
		at = loop_from(at);
		byte = byte_at(bytes, at);
		if (byte != '\r' && byte != '\n')
			break;
	}
	first &= at == scan->at;
	scan->at = at;
	if (at >= length) {
		if (!first)
			scan->phase = SCAN_EMPTY;
		return false;
	}
	byte = byte_at(bytes, at);
	if (first && byte == TLS_HANDSHAKE)
		scan->phase = SCAN_TLS;
	else
		scan->phase = is_token(byte) || is_blank(byte) ? SCAN_FIRST : SCAN_READY;
	return scan->phase == SCAN_READY;
}

/* Goes on through the lines. True: the head is at its end, or its first line is. */
__noinline int lines_scan(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			  struct fief_scan *scan __arg_nonnull)
{
	bool first = false;
	__u32 at;
	__u8 byte;

	for (at = loop_from(scan->at); at < length && can_loop;) {
		at = loop_from(at);
		if (scan->phase == SCAN_FRESH) {
			byte = byte_at(bytes, at);
			if (byte == '\r') {
				at++;
				continue;
			}
			scan->phase = byte == '\n' ? SCAN_READY : SCAN_LINE;
			if (byte == '\n')
				break;
		}
		at = find_byte(bytes, at, length, '\n');
		if (at >= length)
			break;
		at++;
		if (scan->phase == SCAN_FIRST)
			first = true;
		scan->phase = SCAN_FRESH;
	}
	scan->at = at;
	return first || scan->phase == SCAN_READY;
}

/* Goes on through a line of chunks, behind its size, or of trailers. True: it is at its end, or has a byte that it cannot have. */
__noinline int line_scan(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			 struct fief_scan *scan __arg_nonnull)
{
	__u32 at;
	__u8 byte;

	for (at = loop_from(scan->at); at < length && can_loop;) {
		at = loop_from(at);
		if (!control_next(bytes, &at))
			continue;
		if (at >= length)
			break;
		byte = byte_at(bytes, at);
		if (byte == '\r' && at + 1 == length)
			break; /* what follows it tells */
		if (byte != '\t')
			return true;
		at++;
	}
	scan->at = at < length ? at : length;
	return false;
}

/*
 * Goes on through the first line of a body, as a server does that takes it for a request's (ignored.bpf.h). True: it is at its
 * end, or is no such line.
 */
__noinline int words_scan(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			  struct fief_scan *scan __arg_nonnull)
{
	__u32 at = scan->at, from;

	if (scan->phase == SCAN_EMPTY) {
		at = skip_ends(bytes, at, length);
		if (at < length)
			scan->phase = SCAN_GAP;
	}
	while (at < length && can_loop) {
		from = loop_from(at);
		at = spaces_end(bytes, from, length, scan->phase == SCAN_GAP);
		if (scan->phase == SCAN_WORD && scan->filled == 1 && at > from && !is_name(bytes, from, at))
			return true;
		if (at >= length)
			break;
		if (byte_at(bytes, at) == '\n') {
			scan->phase = SCAN_FRESH;
			scan->at = at + 1;
			return true;
		}
		if (scan->phase == SCAN_GAP && scan->filled++ == 3)
			return true;
		scan->phase = scan->phase == SCAN_GAP ? SCAN_WORD : SCAN_GAP;
	}
	scan->at = at;
	return false;
}

/* Of a head, as scan_on(). */
static __always_inline bool head_scan(const struct request_bytes *bytes, __u32 length, struct fief_scan *scan)
{
	if ((scan->phase == SCAN_EMPTY || scan->phase == SCAN_BEHIND) && begin_scan(bytes, length, scan)) {
		/* more of this one is wanted only if it is to be skipped */
		if (length >= PROXY_TWO && proxy_version(bytes, length) == 2) {
			scan->at = proxy_two_length(bytes);
			scan->phase = SCAN_BEHIND;
		}
		return true;
	}
	if (scan->phase == SCAN_TLS)
		return hello_scan(bytes, length, scan);
	if (scan->phase == SCAN_READY)
		return true;
	return scan->phase != SCAN_EMPTY && scan->phase != SCAN_BEHIND && lines_scan(bytes, length, scan);
}

/* Of a record behind a hello, likewise. */
static __always_inline bool record_scan(const struct request_bytes *bytes, __u32 length, struct fief_scan *scan)
{
	if (scan->phase == SCAN_TLS)
		return hello_scan(bytes, length, scan);
	if (length >= RECORD_TOLD) {
		scan->phase = SCAN_TLS;
		hello_scan(bytes, length, scan);
	}
	return true;
}

/* Of a line of chunks. */
static __always_inline bool chunk_scan(const struct request_bytes *bytes, __u32 length, struct fief_scan *scan)
{
	if (scan->at + 1 >= SIZE_MOST)
		return line_scan(bytes, length, scan);
	scan->at = length ? length - 1 : 0; /* it may be the CR of its end */
	return true;
}

/* Of a body. */
static __always_inline bool body_scan(const struct request_bytes *bytes, __u32 length, struct fief_scan *scan)
{
	bool first = false;

	if (scan->phase == SCAN_EMPTY || scan->phase == SCAN_GAP || scan->phase == SCAN_WORD)
		first = words_scan(bytes, length, scan);
	if (scan->phase == SCAN_FRESH || scan->phase == SCAN_LINE)
		return lines_scan(bytes, length, scan) || first;
	return first || scan->phase == SCAN_READY;
}

/*
 * Looks at what is new in the first `length` bytes of something of this kind, whose earlier ones `scan` knows. Whether its
 * parser can have more to say of them than REQUEST_NEED_MORE. If it can and has not, `scan` knows them from then on.
 */
static __always_inline bool scan_on(enum scan_kind kind, const struct request_bytes *bytes, __u32 length,
				    struct fief_scan *scan)
{
	if (length >= FIEF_HEADER_MAX)
		return true;
	switch (kind) {
	case SCAN_HEAD:
		return head_scan(bytes, length, scan);
	case SCAN_RECORD:
		return record_scan(bytes, length, scan);
	case SCAN_CHUNK:
		return chunk_scan(bytes, length, scan);
	case SCAN_BODY:
		return length >= scan->wanted || body_scan(bytes, length, scan);
	default:
		return true;
	}
}

/* Nothing is known yet: of a head, which begins behind `skipped` bytes of a PROXY head, or of a body of `body` bytes. */
static __always_inline void scan_begin(enum scan_kind kind, __u32 skipped, __u64 body, struct fief_scan *scan)
{
	__builtin_memset(scan, 0, sizeof(*scan));
	if (kind == SCAN_HEAD && skipped) {
		scan->at = skipped;
		scan->phase = SCAN_BEHIND;
	}
	if (kind == SCAN_BODY)
		scan->wanted = body < FIEF_HEADER_MAX ? body : FIEF_HEADER_MAX;
}
