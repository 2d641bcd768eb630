/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Request: the fields that the rules compare. The parsers (header, clienthello) fill them, and the matcher reads them.
 */
#pragma once

#include "bytes.bpf.h"

#define REQUEST_ALPN_MAX 8
#define REQUEST_NAME_MAX 255 /* bytes of a host or server name, and of a name of a header or cookie */

enum request_place { PLACE_STREAM = 0, PLACE_TEXT = 1 };

/* A field's value: where it stands. */
struct request_span {
	__u32 at;
	__u16 length;
	__u8 place; /* enum request_place: in the stream, or in request.text */
	__u8 known; /* 1: the request has this field; 2: and case does not count in it */
};
#define SPAN_KNOWN 1
#define SPAN_FOLD  2

/* Order of the spans; method to server name stand at enum fief_field, less one. */
enum request_field {
	REQUEST_METHOD,
	REQUEST_PATH,
	REQUEST_HOST,
	REQUEST_SERVER_NAME,
	REQUEST_ALPN,
	REQUEST_VALUE = REQUEST_ALPN + REQUEST_ALPN_MAX, /* of fief_guard.name */
	REQUEST_FIELDS = REQUEST_VALUE + FIEF_NAMES,
};
#define REQUEST_SPANS 32 /* a power of two, for a mask */

enum request_state {
	REQUEST_NEED_MORE,
	REQUEST_COMPLETE,
	REQUEST_UNREAD,	 /* it cannot be read to its end, as request.unread says: what was read of it is set */
	REQUEST_DECIDED, /* any but the first: what request_rule() says */
};

/* What a client of TLS says of records to come. */
#define HELLO_RETRY 1 /* it knows TLS 1.3, so that its server can ask for another hello */
#define HELLO_EARLY 2 /* it may send encrypted bytes at once */

struct front_request {
	struct request_span span[REQUEST_SPANS];
	__u32 alpns;
	__u32 head;    /* bytes up to the body, empty lines before the request included */
	__u64 body;    /* length of the body */
	__u32 tracked; /* 1: the next request begins behind the body */
	__u16 lengths; /* how many headers told the length of the body */
	__u16 hosts;   /* and the host */
	__u32 unread;  /* enum fief_unread, with REQUEST_UNREAD */
	__u32 upgrade; /* 1: it asks for another protocol, or is CONNECT */
	__u32 chunked; /* 1: its body is chunked; `body` is 0 */
	__u8 odd;      /* 1: servers differ about what they have read so far */
	__u8 chunks;   /* 1: of a version that knows chunked bodies */
	__u8 codings;  /* how many headers told the coding of the body */
	__u8 absolute; /* 1: the target has told the host */
	__u16 connect; /* 1: the method is CONNECT */
	__u16 options; /* 1: it is OPTIONS */
	__u16 bodied;  /* 1: a method that has a body as a rule */
	__u8 twofold;  /* 1: the path is another one before it is resolved, of `written` bytes */
	__u8 path_led; /* 1: it was given its slash */
	__u8 closes;   /* 1: the server ends the connection behind it, whatever follows */
	__u8 stays;    /* 1: a header told what becomes of the connection, and not that */
	__u32 path_at; /* where it stands */
	__u32 path_end;
	__u32 written;
	__u32 line; /* the first line, without its end */
	__u32 line_end;
	/* what it is parsed for */
	__u32 wanted; /* FIEF_GUARD_HEADERS, FIEF_GUARD_COOKIES */
	__u32 hello;  /* of HELLO_* */
	__u64 key[2]; /* fief_secret.pattern */
	__u64 name[FIEF_NAMES];
	struct request_bytes text; /* the path in normal form, or the ClientHello out of its records */
};

static __always_inline void span_set(struct front_request *request, __u32 field, __u32 at, __u32 length, __u8 place)
{
	struct request_span *span = &request->span[as_index(field) & (REQUEST_SPANS - 1)];

	span->at = at;
	span->length = length;
	span->place = place;
	span->known = SPAN_KNOWN;
}

static __always_inline bool span_known(struct front_request *request, __u32 field)
{
	return request->span[as_index(field) & (REQUEST_SPANS - 1)].known;
}

static __always_inline int request_unread(struct front_request *request, __u32 unread)
{
	request->unread = unread;
	return REQUEST_UNREAD;
}

/* The first `length` bytes do not suffice: more have to come, if more are looked at. */
static __always_inline int request_wait(struct front_request *request, __u32 length)
{
	return length < FIEF_HEADER_MAX ? REQUEST_NEED_MORE : request_unread(request, FIEF_UNREAD_TOO_LONG);
}

/* Forgets the last request, and says what this one is parsed for. */
static __always_inline void request_begin(struct front_request *request, __u32 wanted, const __u64 *key,
					  const __u64 *names)
{
	__u32 i;

	for (i = 0; i < REQUEST_FIELDS; i++)
		request->span[i].known = 0;
	request->alpns = 0;
	request->head = 0;
	request->body = 0;
	request->tracked = 0;
	request->lengths = 0;
	request->hosts = 0;
	request->unread = 0;
	request->upgrade = 0;
	request->chunked = 0;
	request->odd = 0;
	request->chunks = 0;
	request->codings = 0;
	request->absolute = 0;
	request->connect = 0;
	request->options = 0;
	request->bodied = 0;
	request->twofold = 0;
	request->closes = 0;
	request->stays = 0;
	request->hello = 0;
	request->wanted = wanted & (FIEF_GUARD_HEADERS | FIEF_GUARD_COOKIES);
	request->key[0] = key[0];
	request->key[1] = key[1];
	for (i = 0; i < FIEF_NAMES; i++)
		request->name[i] = names[i];
}
