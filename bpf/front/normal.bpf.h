/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Normal: the path that a request's target means, as servers read it before they look for a file.
 *
 *   /cgi-bin//./x?q    /%63gi-bin/x    /img/../cgi-bin/x    http://host/cgi-bin/x     all of them: /cgi-bin/x
 *
 * Problem: a rule on a path must hold for every way to write it.
 * How: one pass finds where the path ends and whether it needs work at all; most do not, and stay where they are. Else
 * %XX is decoded once, then runs of slashes become one, then "." and ".." segments go (RFC 3986, 5.2.4), in one pass
 * into request.text.
 * Limits: no change of case; ';' and '+' are nothing special; "*" and the authority of CONNECT stay as they are.
 */
#pragma once

#include "request.bpf.h"

/* Where a host name ends: before the port, and a last dot. Too long a name is none. */
static __always_inline void host_set(const struct request_bytes *bytes, __u32 at, __u32 end,
				     struct front_request *request)
{
	__u32 stop =
	    at < end && byte_at(bytes, at) == '[' ? find_byte(bytes, at, end, ']') + 1 : find_byte(bytes, at, end, ':');

	if (stop < end)
		end = stop;
	if (end > at && byte_at(bytes, end - 1) == '.')
		end--;
	if (end <= at || end - at > REQUEST_NAME_MAX)
		return;
	span_set(request, REQUEST_HOST, at, end - at, PLACE_STREAM);
	request->span[REQUEST_HOST].known |= SPAN_FOLD;
}

/* Behind "scheme://" of an absolute target; 0: it is none. */
static __always_inline __u32 authority_begin(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	__u32 colon = find_byte(bytes, at, end, ':'), slash = find_byte(bytes, at, end, '/');

	if (colon == at || colon + 3 > end || slash != colon + 1 || byte_at(bytes, colon + 2) != '/')
		return 0;
	return colon + 3;
}

/* Takes the host of an absolute target; its path begins at what comes back. */
static __always_inline __u32 authority_take(const struct request_bytes *bytes, __u32 at, __u32 end,
					    struct front_request *request)
{
	__u32 i, begin = at;
	__u8 byte;

	for (i = loop_from(at); i < end && can_loop; i++) {
		byte = byte_at(bytes, i);
		if (byte == '/' || byte == '?' || byte == '#')
			break;
		if (byte == '@')
			begin = i + 1;
	}
	host_set(bytes, begin, i, request);
	request->hosts = 1; /* the header does not count any more (RFC 9112, 3.2.2) */
	return i;
}

static __always_inline __u32 hex_digit(__u8 byte)
{
	__u8 small = byte | 0x20;

	if (byte >= '0' && byte <= '9')
		return byte - '0';
	if (small >= 'a' && small <= 'f')
		return small - 'a' + 10;
	return 16;
}

/* The length of the path without its last segment, which ends before its slash at `length` - 1; the first slash stays. */
static __always_inline __u32 parent_length(const struct request_bytes *text, __u32 length)
{
	for (length = loop_from(length); length > 1 && can_loop;) {
		length--;
		if (byte_at(text, length - 1) == '/')
			break;
	}
	return length ? length : 1;
}

/* How long the path is once its last segment, which begins at `segment`, is resolved if it is "." or "..". */
static __always_inline __u32 segment_end(const struct request_bytes *text, __u32 segment, __u32 length)
{
	if (length == segment + 1 && byte_at(text, segment) == '.')
		return segment;
	if (length == segment + 2 && byte_at(text, segment) == '.' && byte_at(text, segment + 1) == '.')
		return parent_length(text, segment);
	return length;
}

/* Decodes and resolves [at, end), which begins with a slash, into request.text. Returns the length. */
__noinline int path_resolve(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			    struct front_request *request __arg_nonnull)
{
	__u32 i, length = 0, segment = 0, high, low;
	struct request_bytes *text = &request->text;
	__u8 byte;

	for (i = loop_from(at); i < end && can_loop; i++) {
		length = loop_from(length);
		segment = loop_from(segment);
		byte = byte_at(bytes, i);
		if (byte == '%' && i + 2 < end) {
			high = hex_digit(byte_at(bytes, i + 1));
			low = hex_digit(byte_at(bytes, i + 2));
			if (high < 16 && low < 16) {
				byte = high << 4 | low;
				i += 2;
			}
		}
		if (byte == '/') {
			if (length && length == segment)
				continue;
			length = segment_end(text, segment, length);
			if (length && byte_at(text, length - 1) == '/') {
				segment = length;
				continue;
			}
			segment = length + 1;
		}
		text->at[length & BYTES_MASK] = byte;
		length++;
	}
	return segment_end(text, segment, length);
}

/* The path of a target that begins with a slash, or of what follows an authority. */
static __always_inline void path_set(const struct request_bytes *bytes, __u32 at, __u32 end,
				     struct front_request *request)
{
	bool plain = true;
	__u8 byte, last = 0;
	__u32 i;

	for (i = loop_from(at); i < end && can_loop; i++) {
		byte = byte_at(bytes, i);
		if (byte == '?' || byte == '#')
			break;
		if (byte == '%' || (last == '/' && (byte == '/' || byte == '.')))
			plain = false;
		last = byte;
	}
	if (i == at) { /* an authority alone */
		request->text.at[0] = '/';
		span_set(request, REQUEST_PATH, 0, 1, PLACE_TEXT);
		return;
	}
	if (plain)
		span_set(request, REQUEST_PATH, at, i - at, PLACE_STREAM);
	else
		span_set(request, REQUEST_PATH, 0, path_resolve(bytes, at, i, request), PLACE_TEXT);
}

/* Reads the target in [at, end), which is not empty; false: it is none. */
static __always_inline bool target_set(const struct request_bytes *bytes, __u32 at, __u32 end, bool is_connect,
				       struct front_request *request)
{
	__u8 first = byte_at(bytes, at);
	__u32 authority;

	if (first == '/') {
		path_set(bytes, at, end, request);
		return true;
	}
	if (is_connect || (first == '*' && end - at == 1)) {
		span_set(request, REQUEST_PATH, at, end - at, PLACE_STREAM);
		return true;
	}
	authority = authority_begin(bytes, at, end);
	if (!authority)
		return false;
	path_set(bytes, authority_take(bytes, authority, end, request), end, request);
	return true;
}
