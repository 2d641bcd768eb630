/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Later: requests on a connection that has its socket. These are the requests after the first, and the first where the kernel
 * made the connection by itself (admission below its level, monitor mode, a reused TIME_WAIT).
 *
 * Problem: a persistent connection would have one verdict for all of its requests.
 * How: the label tells where the next request begins: end of the header + Content-Length. Bytes before that place pass unread.
 * From there on bytes are copied as they pass, in order; the segment that completes a header waits for the verdict. The label
 * takes the request's container, and the server's thread follows the label when it reads. A refused client gets its answer, the
 * socket a reset in the client's name. A socket that the core has not labelled gets its label here.
 * Only bytes that TCP would take are ruled (taken.bpf.h). A verdict counts for the bytes that it was about: until TCP has taken
 * them, others in their place are dropped (heads.bpf.h). Where a body comes in chunks the label tells where the next of its
 * lines begins (chunks.bpf.h). Three cases are for the policy to refuse: unreadable bytes, half a request whose begin was
 * displaced, and bytes after a gap that the door never saw. Both sides are then reset. A packet too long for one go passes as
 * far as it was ruled, and the rest comes again. The end of the client's side ends half a request too.
 * Limits: the listening socket stays that of the first request. Several requests in one segment share the strictest verdict.
 * Under TLS (the records before encrypted bytes are ruled: records.bpf.h), and after a request for another protocol, the
 * connection is no longer ruled and keeps its container. A connection older than the guard cannot be told from one whose
 * verdict was displaced. Under other rules than those that let it pass unread, TLS cannot be told from HTTP.
 */
#pragma once

#include "isolated.bpf.h"
#include "labelled.bpf.h"
#include "taken.bpf.h"

/* TCX_NEXT is -1 */
#define LATER_AGAIN   -2 /* the packet has more */
#define LATER_REFUSED -3 /* as stream->ruling says */
#define LATER_CUT     -4 /* what is behind stream->read comes again */

/* A socket, and what is remembered of it. */
struct connection {
	struct tcp_sock *tcp;
	struct fief_label *label;
	struct head_ranges *ranges;
	bool ended; /* the packet at hand ends the client's side, and all of it is in the stream */
};

/* What stands at label->next cannot be read, or nobody knows where that is. */
static __always_inline int later_unread(struct front_context *front, struct fief_label *label, struct stream *stream,
					enum fief_unread kind)
{
	unread_rule(front, &stream->ruling, kind);
	return stream->ruling.refused ? LATER_REFUSED : later_untrack(front, label);
}

/* The client's answer goes out as a copy; the packet itself becomes the reset of its socket. */
static __noinline int later_refuse(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
				   struct tcp_sock *tcp)
{
	struct packet *p = &front->packet;

	p->ack = tcp->snd_nxt;
	stream->with.echo = cookie_clock_ms(front->now) + tcp->tsoffset;
	return answer_and_reset(skb, p, stream, tcp->rcv_nxt);
}

/* Finds what was kept of the request that starts at label->next, and leaves it where it is. */
static __noinline void later_find(const struct packet *p, struct stream *stream, const struct fief_label *label)
{
	__u32 next = label->next;

	if (!(label->flags & FIEF_LABEL_HALF) || !half_look(p, next, HALF_LATER, stream) || stream->first != next - 1 ||
	    stream->length >= FIEF_HEADER_MAX)
		stream_begin(stream, next);
}

/* Puts what was found into the stream. */
static __always_inline bool later_load(const struct packet *p, struct stream *stream)
{
	if (!stream->length)
		return true;
	half_done(stream); /* until it is kept again */
	return half_load(p, stream);
}

/* What has come does not end: it is kept. */
static __always_inline int later_wait(struct front_context *front, struct connection *on, struct stream *stream)
{
	const struct packet *p = &front->packet;

	__sync_fetch_and_or(&on->label->flags, FIEF_LABEL_HALF); /* before: another CPU may have what follows */
	if (!hold_keep(p, stream))
		return later_unread(front, on->label, stream, FIEF_UNREAD_NO_ROOM);
	stream->read = on->label->next + stream->length;
	return stream->read == p->seq + p->payload_length ? TCX_NEXT : LATER_CUT;
}

/*
 * Puts the packet's bytes from `skip` on behind what was found, which stays where it is as long as there can be no verdict. A
 * verdict, or LATER_AGAIN: all of it is in the stream.
 */
static __noinline int later_join(struct __sk_buff *skb, struct front_context *front, struct connection *on,
				 struct stream *stream, __u32 skip)
{
	struct packet *p = &front->packet;
	enum half_added added = HALF_READY;
	__u32 known = stream->length;

	if (known && !(on->label->flags & (CHUNK_STATES | FIEF_LABEL_INSIDE | FIEF_LABEL_TLS))) {
		stream->length = 0;
		if (stream_append(skb, p, stream, skip) < 0)
			return TCX_DROP;
		stream->read = p->seq + skip + stream->length;
		added = half_add(p, stream, known, 0, p->flags & TCP_FIN ? HALF_ENDED : 0);
		stream->length = known;
	}
	if (added == HALF_KEPT)
		return stream->read == p->seq + p->payload_length ? TCX_NEXT : LATER_CUT;
	if (added == HALF_SPOILT || !later_load(p, stream))
		return TCX_DROP;
	if (stream_append(skb, p, stream, skip) < 0)
		return later_unread(front, on->label, stream, FIEF_UNREAD_TOO_LONG);
	return LATER_AGAIN;
}

/* The line at label->next belongs to a body in chunks, and is in the stream as far as it has come. */
static __always_inline int chunk_rule(struct front_context *front, struct connection *on, struct stream *stream)
{
	struct chunk_line line = {.state = on->label->flags & CHUNK_STATES};
	__u32 length = stream->length;
	int state;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	state = chunks_read((const struct request_bytes *)stream->bytes, length, &line);
	if (state == REQUEST_UNREAD)
		return later_unread(front, on->label, stream, FIEF_UNREAD_MALFORMED);
	if (state == REQUEST_NEED_MORE && length == FIEF_HEADER_MAX)
		return later_unread(front, on->label, stream, FIEF_UNREAD_TOO_LONG);
	if (state == REQUEST_NEED_MORE)
		return later_wait(front, on, stream);
	stream->read = on->label->next + line.head;
	on->label->next = stream->read + line.data;
	__sync_fetch_and_and(&on->label->flags, ~(CHUNK_STATES | FIEF_LABEL_HALF));
	__sync_fetch_and_or(&on->label->flags, line.state);
	return LATER_AGAIN;
}

/* The body at label->next, which some servers take for a request, is in the stream as far as it has come. */
static __always_inline int body_rule(struct front_context *front, struct connection *on, struct stream *stream)
{
	__u32 length = stream->length, body = on->label->body;
	int state;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	state = inside_rule(front, (const struct request_bytes *)stream->bytes, length, body,
			    on->ended ? RULE_ENDED : 0, &stream->ruling);
	if (state == REQUEST_NEED_MORE)
		return later_wait(front, on, stream);
	if (state != REQUEST_COMPLETE && stream->ruling.refused)
		return LATER_REFUSED;
	stream->read = on->label->next + (body < length ? body : length);
	on->label->next += body;
	__sync_fetch_and_and(&on->label->flags, ~(FIEF_LABEL_INSIDE | FIEF_LABEL_HALF));
	return LATER_AGAIN;
}

/* What stands behind the request whose head has `head` bytes. */
static __always_inline int later_follow(struct front_context *front, struct connection *on, struct stream *stream)
{
	struct ruling *ruling = &stream->ruling;
	__u32 begin = on->tcp->rcv_nxt - (__u32)on->tcp->bytes_received, flags;

	flags = flags_behind(&front->packet, front->guard, ruling, on->label->next == begin);
	if (!(flags & FIEF_LABEL_TRACKED))
		return later_untrack(front, on->label);
	stream->read = on->label->next + ruling->head;
	on->label->next = stream->read + passed_over(ruling);
	on->label->body = ruling->body;
	__sync_fetch_and_and(&on->label->flags,
			     ~(FIEF_LABEL_ASKED | FIEF_LABEL_TLS | FIEF_LABEL_EARLY | FIEF_LABEL_HALF));
	__sync_fetch_and_or(&on->label->flags, flags);
	return LATER_AGAIN;
}

/* The record of TLS at label->next is in the stream as far as it has come. RECORD_HELLO: it is to be ruled. */
static __noinline int later_record(struct front_context *front, struct connection *on, struct stream *stream)
{
	__u32 begin = on->tcp->rcv_nxt - (__u32)on->tcp->bytes_received, length = stream->length, early;
	struct chunk_line line = {};
	int state;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (!length)
		return TCX_NEXT;
	early = on->label->flags & FIEF_LABEL_EARLY && on->label->next - begin < EARLY_MOST;
	state = record_read((const struct request_bytes *)stream->bytes, length, early, &line);
	if (state == RECORD_HELLO)
		return RECORD_HELLO;
	if (state == RECORD_LAST)
		return later_untrack(front, on->label);
	if (state == REQUEST_UNREAD)
		return later_unread(front, on->label, stream, FIEF_UNREAD_MALFORMED);
	if (state == REQUEST_NEED_MORE)
		return later_wait(front, on, stream);
	stream->read = on->label->next + line.head;
	on->label->next = stream->read + line.data;
	return LATER_AGAIN;
}

/* The request at label->next is in the stream as far as it has come. */
static __always_inline int later_judge(struct front_context *front, struct connection *on, struct stream *stream)
{
	struct ruling *ruling = &stream->ruling;
	__u32 length = stream->length, how = on->ended ? RULE_ENDED : 0;
	int verdict;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (on->label->flags & FIEF_LABEL_TLS) {
		verdict = later_record(front, on, stream);
		if (verdict != RECORD_HELLO)
			return verdict;
	}
	if (on->label->flags & FIEF_LABEL_UPGRADE) {
		if (!is_confirmed(on->tcp, on->label)) {
			how |= RULE_UPGRADE;
		} else if (!length || !may_be_http2(stream->bytes, length)) {
			verdict_count(front, on->label->container, FIEF_NO_ID, FIEF_PASSED_UPGRADE, false);
			return later_untrack(front, on->label);
		}
	}
	if (request_rule(front, (const struct request_bytes *)stream->bytes, length, how, ruling) == REQUEST_NEED_MORE)
		return later_wait(front, on, stream);
	if (ruling->refused)
		return LATER_REFUSED;
	label_move(on->label, ruling->container);
	return later_follow(front, on, stream);
}

/* Rules what stands at label->next with what the packet adds to it. A verdict, or LATER_*. */
static __noinline int later_rule(struct __sk_buff *skb, struct front_context *front, struct connection *on,
				 struct stream *stream)
{
	struct packet *p = &front->packet;
	__u32 at, end = p->seq + p->payload_length;
	bool ended = p->flags & TCP_FIN && is_behind(end, on->label->next);
	int verdict;

	if (!is_behind(end, on->label->next))
		return TCX_NEXT;
	isolated_keep(front, on->label->container);
	if (on->label->flags & FIEF_LABEL_LOST)
		return later_unread(front, on->label, stream, FIEF_UNREAD_OTHER);
	later_find(p, stream, on->label);
	at = on->label->next + stream->length;
	if (is_behind(p->seq, at))
		/*
		 * a gap: what is behind it must not complete a head unseen, and comes again, unless TCP has taken what
		 * is missing here
		 */
		return is_behind(on->tcp->rcv_nxt, at) ? later_unread(front, on->label, stream, FIEF_UNREAD_NO_ROOM)
						       : TCX_DROP;
	if (!heads_room(p, on->ranges, stream->from) && !(front->guard->flags & FIEF_GUARD_MONITOR))
		return LATER_CUT; /* TCP has to take something first */
	if (is_behind(end, at)) {
		verdict = later_join(skb, front, on, stream, at - p->seq);
		if (verdict != LATER_AGAIN)
			return verdict;
	} else if (!ended) {
		return TCX_NEXT;
	} else if (later_load(p, stream)) {
		stream->length = end - on->label->next;
	} else {
		return TCX_DROP;
	}
	on->ended = ended && stream->first + 1 + stream->length == end;
	if (on->label->flags & CHUNK_STATES)
		return is_behind(end, at) ? chunk_rule(front, on, stream) : TCX_NEXT;
	if (on->label->flags & FIEF_LABEL_INSIDE)
		return body_rule(front, on, stream);
	return later_judge(front, on, stream);
}

/*
 * Holds what comes again against what was ruled. A verdict, or LATER_AGAIN: the packet may pass, as far as this goes.
 */
static __always_inline int repetition_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream,
					   struct head_ranges *ranges)
{
	enum heads is = heads_compare(skb, &front->packet, stream, ranges);
	bool watched = front->guard->flags & FIEF_GUARD_MONITOR;

	if (is == HEADS_OTHER)
		verdict_count(front, client_container(front), FIEF_NO_ID, FIEF_REQUEST_REPLACED, watched);
	if (is == HEADS_SAME || watched)
		return LATER_AGAIN;
	return is == HEADS_PART ? heads_cut(skb, &front->packet, stream) : TCX_DROP;
}

static __always_inline int requests_rule(struct __sk_buff *skb, struct front_context *front, struct connection *on,
					 struct stream *stream)
{
	struct head_ranges *ranges = on->ranges;
	int verdict = LATER_AGAIN, i;

	heads_forget(ranges, on->tcp->rcv_nxt);
	if (is_behind(ranges->read, front->packet.seq) && ranges->first != ranges->count)
		verdict = repetition_rule(skb, front, stream, ranges);
	if (verdict != LATER_AGAIN)
		return verdict;
	bpf_for (i, 0, 2 * REQUESTS_MOST) {
		if (i >= REQUESTS_MOST && !(on->label->flags & BODY_STATES))
			break;
		stream->from = heads_end(&front->packet, ranges, on->label->next);
		stream->read = stream->from;
		verdict = later_rule(skb, front, on, stream);
		if (verdict != LATER_REFUSED && is_behind(stream->read, stream->from)) {
			heads_note(skb, &front->packet, stream, ranges, stream->from);
			ranges->read = stream->read;
			__sync_fetch_and_and(&on->label->flags, ~FIEF_LABEL_TAKEN);
		}
		if (verdict != LATER_AGAIN)
			break;
	}
	if (verdict == LATER_AGAIN) {
		stream->read = on->label->next;
		verdict = is_behind(packet_end(&front->packet), stream->read) ? LATER_CUT : TCX_NEXT;
	}
	if (verdict == LATER_CUT)
		verdict = front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : heads_cut(skb, &front->packet, stream);
	return verdict == LATER_REFUSED ? later_refuse(skb, front, stream, on->tcp) : verdict;
}

/* Whether a packet on a tracked connection may pass unread: it ends before the next request, and replaces no head. */
static __always_inline bool is_settled(const struct packet *p, struct fief_label *label, struct tcp_sock *tcp,
				       const struct head_ranges *ranges)
{
	bool taken = true;

	if (ranges)
		taken = !is_behind(ranges->read, tcp->rcv_nxt);
	else
		taken = tcp->bytes_received;
	if (!ranges && !taken && !is_behind(p->seq, tcp->rcv_nxt))
		begin_again(label, tcp);
	if (is_behind(p->seq + p->payload_length, label->next))
		return false;
	if (taken)
		__sync_fetch_and_or(&label->flags, FIEF_LABEL_TAKEN);
	return taken || !ranges || !is_behind(ranges->read, p->seq);
}

/* What is remembered of the heads on this connection; `ranges`: if there is something. NULL: no memory. */
static __always_inline struct head_ranges *heads_get(struct bpf_sock *sk, struct tcp_sock *tcp,
						     struct head_ranges *ranges)
{
	if (ranges)
		return ranges;
	ranges = bpf_sk_storage_get(&heads, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (ranges)
		ranges->read = tcp->rcv_nxt;
	return ranges;
}

static __always_inline bool is_bare_end(const struct packet *p)
{
	return !p->payload_length && !p->odd;
}

/* Whether the end of a client's side, to a socket without a label, may be that of half a request. */
static __noinline bool half_admitted(const struct packet *p)
{
	struct fief_admitted *entry;
	struct fief_flow_key key;

	flow_key(p, &key);
	entry = admitted_find(&key);
	return entry && entry->tracked & FIEF_LABEL_TRACKED && is_behind(p->seq, entry->next);
}

/* Bytes to a socket that is there, or the end of them. */
static __noinline int data_arrives(struct __sk_buff *skb, struct front_context *front, struct bpf_sock *sk)
{
	struct packet *p = &front->packet;
	struct fief_label *label = bpf_sk_storage_get(&labels, sk, 0, 0);
	const __u32 settled = FIEF_LABEL_TRACKED | FIEF_LABEL_TAKEN;
	struct head_ranges *ranges = NULL;
	struct stream *stream;
	struct tcp_sock *tcp;
	struct connection on;
	bool first = false;

	/* where an odd packet ends is not known for sure */
	if (label && (label->flags & settled) == settled && !p->odd &&
	    !is_behind(p->seq + p->payload_length, label->next))
		return TCX_NEXT;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp)
		return TCX_NEXT;
	if (!label && is_bare_end(p) && !half_admitted(p))
		return TCX_NEXT;
	if (!label) {
		label = label_make(front, sk, tcp);
		if (!label)
			return TCX_NEXT;
	}
	if (label->flags & FIEF_LABEL_TRACKED) {
		ranges = bpf_sk_storage_get(&heads, sk, 0, 0);
		if (!p->odd && is_settled(p, label, tcp, ranges))
			return TCX_NEXT;
		if (!segment_guard_find(front))
			return TCX_NEXT;
	} else {
		first = first_of_kernel(front, label, tcp);
		if (!first && !is_lost(front, label, tcp))
			return TCX_NEXT;
	}
	if (p->odd)
		return shape_rule(front);
	stream = stream_get();
	if (!stream)
		return TCX_NEXT;
	if (!would_be_taken(skb, p, tcp, &stream->with))
		return front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : packet_cut(skb, p, stream, 0);
	if (first && p->seq == tcp->rcv_nxt)
		admitted_by_kernel(skb, front);
	ranges = heads_get(sk, tcp, ranges);
	if (!ranges)
		return TCX_DROP;
	on.tcp = tcp;
	on.label = label;
	on.ranges = ranges;
	return requests_rule(skb, front, &on, stream);
}
