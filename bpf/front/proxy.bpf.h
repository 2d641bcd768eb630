/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Proxy: the PROXY head, in which a balancer names its client, before the request.
 *
 *   version 1   "PROXY TCP4 192.0.2.1 198.51.100.1 56324 80\r\n", at most 107 bytes
 *   version 2   \r\n\r\n\0\r\nQUIT\n, version and command 1, family 1, length 2, so many bytes
 *
 * Limits: heads of up to PROXY_MOST bytes. At the begin of a connection only. Whose head is skipped stands in balancer.bpf.h.
 */
#pragma once

#include "bytes.bpf.h"

#define PROXY_LINE_MOST 107
#define PROXY_MOST	4096
#define PROXY_TWO	16 /* bytes of version 2 before those that it counts */

#define PROXY_NEED_MORE -1
#define PROXY_UNREAD	-2

/* Of which version the PROXY head is whose first bytes these begin with; 0: they begin with those of none. */
static __always_inline __u32 proxy_version(const struct request_bytes *bytes, __u32 length)
{
	if (length >= 6 && (word_at(bytes, 0) & ~0ull >> 16) == LETTERS('P', 'R', 'O', 'X', 'Y', ' ', 0, 0))
		return 1;
	if (length >= 12 && word_at(bytes, 0) == LETTERS('\r', '\n', '\r', '\n', 0, '\r', '\n', 'Q') &&
	    (__u32)word_at(bytes, 8) == (__u32)LETTERS('U', 'I', 'T', '\n', 0, 0, 0, 0))
		return 2;
	return 0;
}

/* Whether the bytes could become the begin of a head of version 2. */
static __always_inline bool may_be_proxy_two(const struct request_bytes *bytes, __u32 length)
{
	__u64 differs = word_at(bytes, 0) ^ LETTERS('\r', '\n', '\r', '\n', 0, '\r', '\n', 'Q');
	__u64 rest = (word_at(bytes, 8) ^ LETTERS('U', 'I', 'T', '\n', 0, 0, 0, 0)) << 32;

	if (length < 8)
		return !(differs & ~(~0ull << (length & 7) * 8));
	return !differs && !(rest & ~(~0ull << (32 + (length & 3) * 8)));
}

/* How long a head of version 2 says that it is, of which PROXY_TWO bytes are there. */
static __always_inline __u32 proxy_two_length(const struct request_bytes *bytes)
{
	return PROXY_TWO + (byte_at(bytes, 14) << 8 | byte_at(bytes, 15));
}

/* How long the PROXY head at the begin is; 0: there is none. Negative: PROXY_*. */
static __always_inline int proxy_length(const struct request_bytes *bytes, __u32 length)
{
	__u32 version = proxy_version(bytes, length), end;

	if (version == 1) {
		end = find_byte(bytes, 0, length < PROXY_LINE_MOST ? length : PROXY_LINE_MOST, '\n');
		if (end < length && end < PROXY_LINE_MOST)
			return end + 1;
		return length < PROXY_LINE_MOST ? PROXY_NEED_MORE : PROXY_UNREAD;
	}
	if (length < 12)
		return may_be_proxy_two(bytes, length) ? PROXY_NEED_MORE : 0;
	if (!version)
		return 0;
	if (length < PROXY_TWO)
		return PROXY_NEED_MORE;
	end = proxy_two_length(bytes);
	if (byte_at(bytes, 12) >> 4 != 2 || end > PROXY_MOST)
		return PROXY_UNREAD;
	return end <= length ? (int)end : PROXY_NEED_MORE;
}
