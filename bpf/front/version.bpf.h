/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Version: whether a line ends as the first line of a request does, to servers that take words apart as Python's does. */
#pragma once

#include "bytes.bpf.h"

/* Whether a byte parts words to Python's server. Upon another control character that ends the connection. */
static __always_inline bool is_space(__u8 byte)
{
	return byte == ' ' || (byte >= '\t' && byte <= '\r') || (byte >= 0x1c && byte <= 0x1f) || byte == 0x85 ||
	       byte == 0xa0;
}

/* Whether [at, end) is "HTTP/", a number, a dot, a number. To Python's server a number may have a sign, and "_" between digits. */
__noinline int is_version(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end)
{
	__u32 i, dots = 0;
	__u8 byte = 0;

	if (at + 8 > end || (word_at(bytes, at) & ~0ull >> 24) != LETTERS('H', 'T', 'T', 'P', '/', 0, 0, 0))
		return false;
	for (i = loop_from(at + 5); i < end && can_loop; i++) {
		byte = byte_at(bytes, i);
		dots = loop_from(dots) + (byte == '.');
		if (byte != '.' && byte != '+' && byte != '-' && byte != '_' && (__u8)(byte - '0') > 9)
			return false;
	}
	return dots == 1 && byte != '.' && byte_at(bytes, at + 5) != '.';
}

/* Whether the last word of the line [at, end), with its end, is a version. */
__noinline int ends_with_version(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end)
{
	__u32 stop, begin;

	for (stop = loop_from(end); stop > at && can_loop; stop--) {
		if (!is_space(byte_at(bytes, stop - 1)))
			break;
	}
	stop = loop_from(stop);
	for (begin = loop_from(stop); begin > at && can_loop; begin--) {
		if (is_space(byte_at(bytes, begin - 1)))
			break;
	}
	return begin < stop && is_version(bytes, begin, stop);
}
