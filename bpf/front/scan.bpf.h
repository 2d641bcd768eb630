/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Scan: whether a head can be complete, asked again with each segment.
 *
 * Problem: a head may come in segments of a byte. If each of them made us read the head from its begin, one of 16 kB would cost
 * as much as 8,000 of them.
 * How: scanned bytes are not scanned again (struct fief_scan): the scan finds line ends in HTTP, and the heads of records in
 * TLS. The head is parsed only at these places: at the end of its first line, since that can be a verdict, at its empty line,
 * at the last byte of a hello, at FIEF_HEADER_MAX bytes, and where it can be no head. That is never later than the parser's
 * first possible result.
 * Limits: after the first line the parser may still want more, so that a head is parsed twice at most.
 */
#pragma once

#include "clienthello.bpf.h"

enum scan_phase {
	SCAN_EMPTY, /* empty lines before a request, or nothing yet */
	SCAN_FIRST, /* in the first line */
	SCAN_FRESH, /* at the begin of a line, but for CRs */
	SCAN_LINE,  /* in a header line */
	SCAN_TLS,   /* at the head of a record */
	SCAN_READY, /* whatever follows */
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
	__u32 at;
	__u8 byte;

	for (at = loop_from(scan->at); at < length && can_loop; at++) {
		at = loop_from(at);
		byte = byte_at(bytes, at);
		if (byte != '\r' && byte != '\n')
			break;
	}
	scan->at = at;
	if (at >= length)
		return false;
	byte = byte_at(bytes, at);
	if (!at && byte == TLS_HANDSHAKE)
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

/*
 * Looks at what is new in the first `length` bytes of a connection, or of a later request, whose earlier ones `scan` knows.
 * Whether request_parse() can have more to say of them than REQUEST_NEED_MORE.
 */
static __always_inline bool head_scan(const struct request_bytes *bytes, __u32 length, struct fief_scan *scan)
{
	if (length >= FIEF_HEADER_MAX)
		return true;
	if (scan->phase == SCAN_EMPTY && begin_scan(bytes, length, scan))
		return true;
	if (scan->phase == SCAN_TLS)
		return hello_scan(bytes, length, scan);
	if (scan->phase == SCAN_READY)
		return true;
	return scan->phase != SCAN_EMPTY && lines_scan(bytes, length, scan);
}
