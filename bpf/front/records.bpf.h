/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Records: the records after a client hello until the client's bytes are encrypted (RFC 8446, 4.1.4).
 *
 * Problem: a server that accepts no key of the hello asks for another hello (HelloRetryRequest), and uses the name in that.
 * How: records are followed by their heads up to the first that shows that the first hello was taken: encrypted bytes, or a
 * handshake message that is no hello. Records that a server skips are skipped: change of cipher (20), alerts (21, a warning is
 * ignored), and encrypted ones (23) of a client that announced early data, which its server may refuse. These are skipped in
 * the first EARLY_MOST bytes of the connection, more than servers skip.
 * Limits: a client without TLS 1.3 is never asked for another hello. After a hello that was resumed under TLS 1.2 an encrypted
 * message that looks like a hello, one in some 20,000, is ruled as one. A second hello counts against rates as the first did.
 */
#pragma once

#include "chunks.bpf.h"
#include "clienthello.bpf.h"

#define TLS_CHANGE    20
#define TLS_ALERT     21
#define TLS_ENCRYPTED 23
#define EARLY_MOST    65536
#define RECORD_TOLD   (TLS_RECORD + 2) /* bytes of a record that tell what it is */

/* Of record_read(), beside REQUEST_NEED_MORE, _COMPLETE (it is skipped) and _UNREAD. */
#define RECORD_HELLO 16
#define RECORD_LAST  17 /* what is from here on is not ruled */

/* Whether a record of the kind handshake may begin a client hello: of what is encrypted all but few show that they do not. */
static __always_inline bool may_be_hello(const struct request_bytes *bytes, __u32 record)
{
	if (!record)
		return true; /* the parser knows */
	if (byte_at(bytes, TLS_RECORD) != TLS_CLIENT_HELLO)
		return false;
	return record < 2 || byte_at(bytes, TLS_RECORD + 1) < 3; /* longer ones no server takes */
}

/* Reads the head of the record at the begin of `length` bytes, at least one. `early`: encrypted ones may be skipped. */
__noinline int record_read(const struct request_bytes *bytes __arg_nonnull, __u32 length, __u32 early,
			   struct chunk_line *line __arg_nonnull)
{
	__u8 kind = byte_at(bytes, 0);
	__u32 record;

	if (kind == TLS_ENCRYPTED && !early)
		return RECORD_LAST;
	if (kind < TLS_CHANGE || kind > TLS_ENCRYPTED)
		return REQUEST_UNREAD;
	if (length < TLS_RECORD)
		return REQUEST_NEED_MORE;
	record = two_bytes(bytes, 3);
	if (kind == TLS_HANDSHAKE) {
		if (length < RECORD_TOLD && length < TLS_RECORD + record)
			return REQUEST_NEED_MORE;
		return may_be_hello(bytes, record) ? RECORD_HELLO : RECORD_LAST;
	}
	line->head = TLS_RECORD;
	line->data = record;
	return REQUEST_COMPLETE;
}
