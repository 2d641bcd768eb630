/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The parsers of bpf/front for user space, with the few functions that a test needs to reach them.
 */
#include <linux/types.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "bytes.bpf.h"
#include "mix.bpf.h"
#include "header.bpf.h"
#include "scan.bpf.h"
#include "body.bpf.h"
#include "ignored.bpf.h"
#include "unresolved.bpf.h"

struct parser {
	struct request_bytes stream;
	struct front_request request;
	struct hashes hashes;
};

struct parser_field {
	const __u8 *bytes;
	__u32 length;
	__u32 known;
};

struct parser *parser_new(void)
{
	struct parser *parser = malloc(sizeof(*parser));

	/* what was there before must not count */
	if (parser)
		memset(parser, 0xa5, sizeof(*parser));
	return parser;
}

void parser_free(struct parser *parser)
{
	free(parser);
}

/* Reads `length` bytes, at most FIEF_HEADER_MAX; `rest` is what stands behind them. */
int parser_read(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest, const __u64 *key, const __u64 *names)
{
	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	memset(&parser->stream, rest, sizeof(parser->stream));
	memcpy(parser->stream.at, bytes, length);
	request_begin(&parser->request, FIEF_GUARD_HEADERS | FIEF_GUARD_COOKIES, key, names);
	hashes_forget(&parser->hashes);
	return request_parse(&parser->stream, length, &parser->request);
}

struct parser_field parser_field(const struct parser *parser, __u32 field)
{
	const struct request_span *span = &parser->request.span[field];
	struct parser_field found = {.known = span->known};

	if (span->known) {
		found.bytes = (span->place ? parser->request.text.at : parser->stream.at) + span->at;
		found.length = span->length;
	}
	return found;
}

/* Puts the path as it is before it is resolved in the place of the other one. 0: there is none. */
int parser_unresolve(struct parser *parser)
{
	if (!parser->request.twofold)
		return 0;
	path_unresolved(&parser->stream, &parser->request);
	return 1;
}

/* What the first `length` bytes of a body of `body` bytes are to a server that takes it for the next request. */
int parser_inside(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest, __u32 body, bool last)
{
	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	memset(&parser->stream, rest, sizeof(parser->stream));
	memcpy(parser->stream.at, bytes, length);
	return inside_state(&parser->stream, body < length ? body : length, body <= length || last);
}

__u32 parser_head(const struct parser *parser)
{
	return parser->request.head;
}

__u64 parser_body(const struct parser *parser)
{
	return parser->request.body;
}

__u32 parser_tracked(const struct parser *parser)
{
	return parser->request.tracked;
}

__u32 parser_chunked(const struct parser *parser)
{
	return parser->request.chunked;
}

__u32 parser_upgrade(const struct parser *parser)
{
	return parser->request.upgrade;
}

/* Not 0: the server ends the connection behind the request. */
__u32 parser_last(const struct parser *parser)
{
	return is_last(&parser->request);
}

__u32 parser_unread(const struct parser *parser)
{
	return parser->request.unread;
}

/* 0: the request does not have what the shape looks at. */
int parser_shape(struct parser *parser, const struct fief_shape *shape, __u32 alpn, __u64 *hash)
{
	int has;

	parser->hashes.alpn = alpn;
	has = shape_hash(&parser->stream, &parser->request, &parser->hashes, shape);
	*hash = parser->hashes.shape;
	return has;
}

/* Looks through the first `length` bytes, of which those before were looked through with the same `scan`. */
int parser_scan(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest, struct fief_scan *scan)
{
	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	memset(&parser->stream, rest, sizeof(parser->stream));
	memcpy(parser->stream.at, bytes, length);
	return head_scan(&parser->stream, length, scan);
}

void parser_body_begin(struct fief_body *body, bool chunked, __u64 length)
{
	body_begin(body, chunked, length);
}

/* Follows a body through `length` bytes; how many of them are of it. */
__u32 parser_body_follow(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest, struct fief_body *body)
{
	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	memset(&parser->stream, rest, sizeof(parser->stream));
	memcpy(parser->stream.at, bytes, length);
	return body_follow(&parser->stream, 0, length, body);
}
