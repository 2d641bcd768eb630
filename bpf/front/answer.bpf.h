/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Answer: what a refused client gets, without a socket.
 *
 * Problem: an answer (503, 429) has to end the connection in order, or the client sees a reset instead.
 * How: one segment bears the answer and the FIN. Further bytes of the client, up to its own FIN, are acknowledged and
 * forgotten; `answered` has the flows concerned.
 * Limits: if an answer is lost and the client sends its request again, the request is ruled and answered anew. TLS clients
 * cannot read an answer before the handshake and are reset.
 */
#pragma once

#include "flow/key.bpf.h"
#include "gather.bpf.h"
#include "ruling.bpf.h"
#include "verdict.bpf.h"
#include "maps/answered.bpf.h"

/* As the kernel's sink of a closing connection. */
#define ANSWER_WINDOW 1024

/* Both of one length: blanks before a value do not count (RFC 9110, 5.5). */
static const char unavailable[] = "HTTP/1.1 503 Service Unavailable\r\n"
				  "Content-Length: 0\r\n"
				  "Connection: close\r\n"
				  "Retry-After: ";
static const char too_many[] = "HTTP/1.1 429 Too Many Requests\r\n"
			       "Content-Length:   0\r\n"
			       "Connection: close\r\n"
			       "Retry-After: ";
#define RETRY_AFTER_AT (sizeof(unavailable) - 1)
_Static_assert(sizeof(too_many) == sizeof(unavailable), "one place for the number of seconds");

/* Its length. */
static __always_inline __u32 answer_write(__u8 *at, __u32 refusal, __u16 retry_after_s)
{
	__u32 digits = RETRY_AFTER_AT, place;

	if (refusal == FIEF_REFUSE_429)
		__builtin_memcpy(at, too_many, RETRY_AFTER_AT);
	else
		__builtin_memcpy(at, unavailable, RETRY_AFTER_AT);
	for (place = 10000; place; place /= 10) {
		if (retry_after_s >= place || place == 1)
			at[digits++] = '0' + retry_after_s / place % 10;
	}
	__builtin_memcpy(at + digits, "\r\n\r\n", 4);
	return digits + 4;
}

static __noinline void answered_note(const struct packet *p, __u64 now)
{
	struct fief_flow_key key;

	flow_key(p, &key);
	bpf_map_update_elem(&answered, &key, &now, BPF_ANY);
}

/* As long as the kernel knows a connection that it has closed (tcp_fin_timeout). Later its ports may be another one's. */
#define ANSWERED_NS 60000000000ull

static __noinline bool is_answered(const struct packet *p, __u64 now)
{
	struct fief_flow_key key;
	__u64 *at;

	flow_key(p, &key);
	at = bpf_map_lookup_elem(&answered, &key);
	return at && (__s64)(now - *at) < (__s64)ANSWERED_NS;
}

/* What the rule says that the client gets; not for FIEF_REFUSE_DROP. Its next byte from us is p->ack. */
static __always_inline struct segment *answer_segment(const struct packet *p, struct stream *stream)
{
	__u32 end = packet_end(p), refusal = ruling_refusal(&stream->ruling);
	__u16 retry_after_s = stream->ruling.rule.retry_after_s;
	struct segment *s;

	if (refusal < FIEF_REFUSE_503)
		return segment_begin(p->ack, end, 0, TCP_ACK | TCP_RST);
	s = segment_begin(p->ack, end, ANSWER_WINDOW, TCP_ACK | TCP_PSH | TCP_FIN);
	if (!s)
		return NULL;
	timestamps_option(s, &stream->with);
	/* two constant places rather than one that the verifier has to follow */
	if (s->options)
		s->payload = answer_write(s->rest + 12, refusal, retry_after_s);
	else
		s->payload = answer_write(s->rest, refusal, retry_after_s);
	answered_note(p, stream->ruling.by.now);
	return s;
}

/* Carries a refusal out. A function of its own to the verifier, as the next one. */
__noinline int answer(struct __sk_buff *skb, const struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull)
{
	struct segment *s;

	if (stream->ruling.rule.refusal == FIEF_REFUSE_DROP)
		return TCX_DROP;
	s = answer_segment(p, stream);
	return s ? segment_answer(skb, p, s) : TCX_DROP;
}
