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
	__u32 skipped; /* bytes of a PROXY head before what was read last */
};

/* What the door keeps the begin of. */
enum parser_kept {
	KEPT_HEAD,
	KEPT_BALANCED, /* a head from a balancer, which may send a PROXY head before it */
	KEPT_RECORD,   /* a record of TLS behind a hello */
	KEPT_CHUNK,    /* the first line of a body in chunks */
	KEPT_NEXT_CHUNK,
	KEPT_TRAILER,
	KEPT_BODY, /* a body that may be a request */
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

/* Puts the bytes into the stream, at most FIEF_HEADER_MAX; `rest` stands behind them. How many. */
static __u32 take(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest)
{
	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	memset(&parser->stream, rest, sizeof(parser->stream));
	memcpy(parser->stream.at, bytes, length);
	return length;
}

/* Reads `length` bytes, at most FIEF_HEADER_MAX; `rest` is what stands behind them. */
int parser_read(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest, const __u64 *key, const __u64 *names)
{
	length = take(parser, bytes, length, rest);
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
	length = take(parser, bytes, length, rest);
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

static int ask_head(struct parser *parser, __u32 length)
{
	const __u64 none[FIEF_NAMES] = {0};

	request_begin(&parser->request, 0, none, none);
	return request_parse(&parser->stream, length, &parser->request);
}

/* As request_find() in rule.bpf.h. */
static int ask_balanced(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest)
{
	int skip = proxy_length(&parser->stream, length);

	if (skip == PROXY_NEED_MORE)
		return REQUEST_NEED_MORE;
	if (skip > 0) {
		parser->skipped = skip;
		length = take(parser, bytes + skip, length - skip, rest);
	}
	return ask_head(parser, length);
}

/* As later_record() in judge.bpf.h. */
static int ask_record(struct parser *parser, __u32 length)
{
	struct chunk_line line = {0};
	int state = record_read(&parser->stream, length, false, &line);

	return state == RECORD_HELLO ? ask_head(parser, length) : state;
}

static int ask_line(struct parser *parser, __u32 length, __u32 state, __u32 *detail)
{
	struct chunk_line line = {.state = state};
	int said = chunks_read(&parser->stream, length, &line);

	*detail = line.head + line.data + line.state;
	return said;
}

/* As inside_find() in inside.bpf.h. */
static int ask_body(struct parser *parser, __u32 length, __u32 body)
{
	const __u64 none[FIEF_NAMES] = {0};
	bool whole = body <= length || length == FIEF_HEADER_MAX;
	int state;

	if (body < length)
		length = body;
	state = inside_state(&parser->stream, length, whole);
	if (state != REQUEST_DECIDED)
		return state;
	request_begin(&parser->request, 0, none, none);
	state = header_parse(&parser->stream, length, &parser->request);
	return state == REQUEST_NEED_MORE && whole ? REQUEST_DECIDED : state;
}

/*
 * What the door says of the first `length` bytes of something whose begin it may keep: enum request_state, and RECORD_LAST for
 * what is ruled no longer, with some detail above. 0: it wants more.
 */
__u64 parser_ask(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest, __u32 kept, __u32 body)
{
	__u32 detail = 0;
	int state;

	length = take(parser, bytes, length, rest);
	parser->skipped = 0;
	switch ((enum parser_kept)kept) {
	case KEPT_BALANCED:
		state = ask_balanced(parser, bytes, length, rest);
		break;
	case KEPT_RECORD:
		state = ask_record(parser, length);
		break;
	case KEPT_CHUNK:
		state = ask_line(parser, length, FIEF_LABEL_CHUNK, &detail);
		break;
	case KEPT_NEXT_CHUNK:
		state = ask_line(parser, length, FIEF_LABEL_CHUNK | FIEF_LABEL_CHUNK_END, &detail);
		break;
	case KEPT_TRAILER:
		state = ask_line(parser, length, FIEF_LABEL_TRAILER, &detail);
		break;
	case KEPT_BODY:
		state = ask_body(parser, length, body);
		break;
	default:
		state = ask_head(parser, length);
	}
	if (state == REQUEST_NEED_MORE && length == FIEF_HEADER_MAX)
		state = REQUEST_UNREAD; /* as all of them say of what is too long */
	return state == REQUEST_NEED_MORE ? 0 : (__u64)detail << 32 | state;
}

static enum scan_kind kind_of(enum parser_kept kept)
{
	switch (kept) {
	case KEPT_RECORD:
		return SCAN_RECORD;
	case KEPT_CHUNK:
	case KEPT_NEXT_CHUNK:
	case KEPT_TRAILER:
		return SCAN_CHUNK;
	case KEPT_BODY:
		return SCAN_BODY;
	default:
		return SCAN_HEAD;
	}
}

/* Keeps the bytes, of which parser_ask() has just wanted more. */
void parser_scan_begin(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest, __u32 kept, __u32 body,
		       struct fief_scan *scan)
{
	scan_begin(kind_of(kept), parser->skipped, body, scan);
	length = take(parser, bytes, length, rest);
	scan_on(kind_of(kept), &parser->stream, length, scan);
}

/* Whether they are to be asked about, of which those before were kept with the same `scan`. */
int parser_scan_on(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest, __u32 kept,
		   struct fief_scan *scan)
{
	length = take(parser, bytes, length, rest);
	return scan_on(kind_of(kept), &parser->stream, length, scan);
}

void parser_body_begin(struct fief_body *body, bool chunked, __u64 length)
{
	body_begin(body, chunked, length);
}

/* Follows a body through `length` bytes; how many of them are of it. */
__u32 parser_body_follow(struct parser *parser, const __u8 *bytes, __u32 length, __u8 rest, struct fief_body *body)
{
	length = take(parser, bytes, length, rest);
	return body_follow(&parser->stream, 0, length, body);
}
