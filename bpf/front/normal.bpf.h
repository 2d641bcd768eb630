/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Normal: the path that a request's target means, as servers read it before they look for a file.
 *
 *   /cgi-bin//./x?q    /%63gi-bin/x    /img/../cgi-bin/x    http://host/cgi-bin/x     all of them: /cgi-bin/x
 *
 * Problem: a rule on a path must hold for every way to write it.
 * How: one pass finds where the path ends and whether it needs work at all; most do not, and stay in place. For the others one
 * pass into request.text decodes %XX once, then turns runs of slashes into one, then resolves "." and ".." segments (RFC 3986,
 * 5.2.4).
 * A server that compares paths as they are written sees another path. Where "//", "." or ".." went, the path before that is a
 * second reading (unresolved.bpf.h), which is ruled too (readings.bpf.h).
 * A target without a slash is a path to Python's server: it gets its slash, and the request is odd. A backslash in the path,
 * which is a slash to some servers, and '#' are odd too.
 * Limits: the case does not change. ';' and '+' have no meaning here, although a Java server sees "/a/b" in "/a;x/b". Bytes
 * above ASCII and "%00" stay as they are; "*" and the authority of CONNECT too. A first "//" is one slash, which "new
 * URL(request.url, base)" in Node takes for the begin of a host.
 */
#pragma once

#include "request.bpf.h"

#define HOSTS_MOST 8 /* parts of a host that some take for a list */

/* Whether RFC 3986 allows a host this byte, but for '%', which Node's URL decodes and most servers do not. */
static __always_inline bool is_host_byte(__u8 byte)
{
	/* 64..: A-Z [ ] _ a-z ~; 32..: ! $ & ' ( ) * + , - . 0-9 : ; = */
	if (byte >= 64)
		return byte < 127 && 0x47fffffeaffffffeull >> (byte - 64) & 1;
	return 0x2fff7fd200000000ull >> byte & 1;
}

/* Parts of what may be a list of hosts. */
__noinline __u32 hosts_count(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end)
{
	__u32 count = 1;

	for (at = loop_from(at); at < end && can_loop; at++)
		count = loop_from(count) + (byte_at(bytes, at) == ',');
	return count;
}

/*
 * Sets the host, without the port and a last dot. Too long a name is none. Whatever is odd in it, and a name that is not
 * the one before, makes the request odd.
 */
__noinline int host_set(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			struct front_request *request __arg_nonnull)
{
	const struct request_span *before = &request->span[REQUEST_HOST];
	bool odd = false, other = !before->known;
	__u32 stop, i, length;

	for (i = loop_from(at); i < end && can_loop; i++) {
		i = loop_from(i);
		if (!is_host_byte(byte_at(bytes, i)))
			odd = true;
	}
	if (hosts_count(bytes, at, end) > HOSTS_MOST)
		odd = true;
	stop =
	    at < end && byte_at(bytes, at) == '[' ? find_byte(bytes, at, end, ']') + 1 : find_byte(bytes, at, end, ':');
	if (stop < end) {
		if (byte_at(bytes, stop) != ':')
			odd = true;
		for (i = loop_from(stop + 1); i < end && can_loop; i++) {
			i = loop_from(i);
			if ((__u8)(byte_at(bytes, i) - '0') > 9)
				odd = true;
		}
		end = stop;
	}
	if (end > at && byte_at(bytes, end - 1) == '.')
		end--;
	length = end > at ? end - at : 0;
	if (request->hosts + request->absolute > 1) {
		if (length != (other ? 0 : before->length))
			odd = true;
		for (i = loop_from(0); i < length && !odd && can_loop; i++) {
			i = loop_from(i);
			if (small_letter(byte_at(bytes, at + i)) != small_letter(byte_at(bytes, before->at + i)))
				odd = true;
		}
	} else if (length > REQUEST_NAME_MAX) {
		odd = true;
	} else if (length) {
		span_set(request, REQUEST_HOST, at, length, PLACE_STREAM);
		request->span[REQUEST_HOST].known |= SPAN_FOLD;
	}
	if (odd)
		request->odd = 1;
	return 0;
}

static __always_inline bool is_letter(__u8 byte)
{
	return (__u8)((byte | 0x20) - 'a') < 26;
}

/* Behind "scheme://" of an absolute target; 0: it is none. */
static __always_inline __u32 authority_begin(const struct request_bytes *bytes, __u32 at, __u32 end)
{
	__u32 colon = find_byte(bytes, at, end, ':'), slash = find_byte(bytes, at, end, '/');

	if (colon == at || colon + 3 > end || slash != colon + 1 || byte_at(bytes, colon + 2) != '/')
		return 0;
	return is_letter(byte_at(bytes, at)) ? colon + 3 : 0;
}

/* Takes the host of an absolute target; its path begins at what comes back. */
static __always_inline __u32 authority_take(const struct request_bytes *bytes, __u32 at, __u32 end,
					    struct front_request *request)
{
	__u32 i, begin = at;
	__u8 byte = 0;

	for (i = loop_from(at); i < end && can_loop; i++) {
		byte = byte_at(bytes, i);
		if (byte == '/' || byte == '?' || byte == '#')
			break;
		if (byte == '@') {
			request->odd = 1;
			begin = i + 1;
		}
	}
	/* HAProxy passes over such a query, and takes the slash behind it for the path's */
	if (i < end && byte != '/' && find_byte(bytes, i, end, '/') < end)
		request->odd = 1;
	request->absolute = 1;
	host_set(bytes, begin, i, request);
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

/* The byte at `at`, decoded if it is %XX: then `at` is put upon its last digit. */
static __always_inline __u8 decoded_at(const struct request_bytes *bytes, __u32 *at, __u32 end)
{
	__u8 byte = byte_at(bytes, *at);
	__u32 high, low;

	if (byte != '%' || *at + 2 >= end)
		return byte;
	high = hex_digit(byte_at(bytes, *at + 1));
	low = hex_digit(byte_at(bytes, *at + 2));
	if (high > 15 || low > 15)
		return byte;
	*at += 2;
	return high << 4 | low;
}

/*
 * Decodes and resolves [at, end), with the first `led` (0 or 1) bytes there already, into request.text. Returns the length;
 * `written` is what it is before it is resolved.
 */
__noinline int path_resolve(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			    struct front_request *request __arg_nonnull, __u32 led)
{
	__u32 i, length = led, segment = led, written = led;
	struct request_bytes *text = &request->text;
	__u8 byte;

	for (i = loop_from(at); i < end && can_loop; i++) {
		i = loop_from(i);
		length = loop_from(length);
		segment = loop_from(segment);
		written = loop_from(written) + 1;
		byte = decoded_at(bytes, &i, end);
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
	request->written = written;
	return segment_end(text, segment, length);
}

/* Resolves [at, end) into request.text, and remembers where it stands if a server that resolves nothing sees another path. */
static __always_inline void path_put(const struct request_bytes *bytes, __u32 at, __u32 end,
				     struct front_request *request, __u32 led)
{
	__u32 length = path_resolve(bytes, at, end, request, led);

	span_set(request, REQUEST_PATH, 0, length, PLACE_TEXT);
	request->twofold = length != request->written;
	request->path_at = at;
	request->path_end = end;
	request->path_led = led;
}

/* The path of a target, without the query. A slash is put before what has none. */
__noinline int path_set(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			struct front_request *request __arg_nonnull)
{
	bool plain = true;
	__u8 byte, last = 0;
	__u32 i;

	if (find_byte(bytes, at, end, '#') < end)
		request->odd = 1;
	for (i = loop_from(at); i < end && can_loop; i++) {
		byte = byte_at(bytes, i);
		if (byte == '?' || byte == '#')
			break;
		if (byte == '%' || (last == '/' && (byte == '/' || byte == '.')))
			plain = false;
		if (byte == '\\')
			request->odd = 1;
		last = byte;
	}
	request->text.at[0] = '/';
	if (i == at) /* an authority alone */
		span_set(request, REQUEST_PATH, 0, 1, PLACE_TEXT);
	else if (byte_at(bytes, at) != '/')
		path_put(bytes, at, i, request, 1);
	else if (plain)
		span_set(request, REQUEST_PATH, at, i - at, PLACE_STREAM);
	else
		path_put(bytes, at, i, request, 0);
	return 0;
}

/* Reads the target in [at, end), which is not empty. */
__noinline int target_set(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 end,
			  struct front_request *request __arg_nonnull)
{
	__u8 first = byte_at(bytes, at);
	/* without a port, or with a slash, it is no authority, but a path to some */
	bool authority_form =
	    request->connect && find_byte(bytes, at, end, ':') < end && find_byte(bytes, at, end, '/') == end;
	__u32 authority;

	if (authority_form || (first != '/' && first == '*' && end == at + 1)) {
		if (!authority_form && !request->options)
			request->odd = 1;
		span_set(request, REQUEST_PATH, at, end - at, PLACE_STREAM);
		if (authority_form)
			authority_take(bytes, at, end, request); /* to Go's server it is the host, whatever Host says */
		/* a path to Python's server */
		request->twofold = authority_form;
		request->path_at = at;
		request->path_end = end;
		request->path_led = 1;
		return 0;
	}
	if (request->connect)
		request->odd = 1;
	if (first != '/') {
		authority = authority_begin(bytes, at, end);
		if (authority)
			at = authority_take(bytes, authority, end, request);
		else
			request->odd = 1;
	}
	return path_set(bytes, at, end, request);
}
