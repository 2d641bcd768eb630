/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Admit: hands a connection to the server once its first bytes are ruled.
 *
 * Problem: a server must spend nothing on a connection before the door knows its request, and the connection must reach the
 * listening socket of the request's class.
 * How: the first data segment bears the cookie (seq = first + 1). With the verdict the kernel gets the contents of the cookie
 * (bpf_sk_assign_tcp_reqsk) and a listening socket; the same segment then makes the socket. The label of the socket takes its
 * container from `admitted`. Several requests that come at once are all ruled before the first of them passes, and share the
 * strictest verdict. A cookie that has made its socket is `spent`. For servers in managed units the core reports this;
 * elsewhere it shows when the client ends the connection. In any case first bytes have VERDICTS_MOST verdicts at most.
 * Limits: a full accept queue makes the client send again, as in the kernel. A spent cookie is known as long as `admitted` has
 * its entry.
 */
#pragma once

#include "answer.bpf.h"
#include "behind.bpf.h"
#include "displaced.bpf.h"
#include "handshake.bpf.h"
#include "isolated.bpf.h"
#include "listening.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/class_listeners.bpf.h"
#include "requested.bpf.h"

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym;

/*
 * So far apart are numbers of one connection at most. With more, a later one with the same ports could be taken for it.
 */
#define FORGOTTEN_BYTES (1u << 24)

/* Nothing that follows is ruled. */
static __always_inline void admitted_pass(const struct front_context *front, struct fief_admitted *entry)
{
	entry->tracked = FIEF_LABEL_PASSED;
	entry->next = front->guard->rules;
}

/* Notes in `entry` what follows the request that stands at entry->next. */
static __always_inline void admitted_go_on(struct front_context *front, struct stream *stream, bool first)
{
	struct fief_admitted *entry = &stream->admitted;

	entry->tracked = flags_behind(&front->packet, front->guard, &stream->ruling, first);
	entry->next += stream->ruling.head + passed_over(&stream->ruling);
	entry->body = stream->ruling.body;
	if (!(entry->tracked & FIEF_LABEL_TRACKED))
		admitted_pass(front, entry);
}

/* What the verdict upon the first request, which begins the packet, leaves for the socket. */
static __always_inline void admitted_begin(struct front_context *front, struct stream *stream)
{
	const struct ruling *ruling = &stream->ruling;
	struct fief_admitted *entry = &stream->admitted;

	entry->container = ruling->container;
	entry->rule = ruling->rule.rule;
	entry->begin = front->packet.seq;
	entry->answer = front->packet.ack;
	entry->next = entry->begin;
	admitted_go_on(front, stream, true);
	entry->spent = 0;
	entry->verdicts = 1;
	entry->time_ns = front->now;
}

/* As often as a client sends again while the accept queue is full: tcp_retries2. */
#define VERDICTS_MOST 16

/*
 * A client resets or ends a connection that has its socket: its first bytes shall not make another one, and nobody looks for the
 * socket any more. Only with the very next byte that the socket expects: anybody can send a reset with another one, and TCP would
 * go on. Whether the begin of a request may be kept.
 */
static __noinline bool admitted_ended(const struct packet *p, struct bpf_sock *sk)
{
	struct fief_label *label = bpf_sk_storage_get(&labels, sk, 0, 0);
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	__u32 flags = label ? label->flags : 0;
	struct fief_admitted *entry;
	struct fief_flow_key key;

	if (!tcp || tcp->rcv_nxt != p->seq)
		return flags & FIEF_LABEL_HALF;
	flow_key(p, &key);
	entry = admitted_find(&key);
	if (!entry || p->seq - entry->begin >= FORGOTTEN_BYTES)
		return flags & FIEF_LABEL_HALF;
	entry->spent = 1;
	return (flags | entry->tracked) & FIEF_LABEL_HALF;
}

/*
 * Whether the packet begins a connection that was there and has ended: a late double, or somebody who wants more of
 * them than its connection requests were allowed.
 */
static __noinline bool cookie_spent(const struct packet *p)
{
	struct fief_admitted *entry;
	struct fief_flow_key key;

	flow_key(p, &key);
	entry = admitted_find(&key);
	return entry && entry->begin == p->seq && (entry->spent || entry->verdicts >= VERDICTS_MOST);
}

/* Before the packet goes on: what follows it must find the verdict. */
static __noinline void admitted_note(struct __sk_buff *skb, struct front_context *front,
				     const struct fief_admitted *verdict)
{
	struct displaced *of = displaced_get();
	struct admitted_line *line;
	struct admitted_key *own;
	__u64 hash;

	if (!of)
		return;
	flow_key(&front->packet, &of->key);
	line = admitted_line(&of->key, &hash, &own);
	if (!line)
		return;
	if (line->flow && line->flow != hash && !line->verdict.spent)
		displaced_settle(skb, line, own, front->slot);
	admitted_keep(line, hash, own, &of->key, verdict);
}

/*
 * A connection that the kernel made and whose first bytes these are: remembered for what comes after its end
 * (stray.bpf.h).
 */
static __noinline void admitted_by_kernel(struct __sk_buff *skb, struct front_context *front)
{
	struct fief_admitted entry = {
	    .container = client_container(front),
	    .rule = FIEF_NO_ID,
	    .spent = 1,
	    .begin = front->packet.seq,
	    .time_ns = front->now,
	    .answer = front->packet.ack,
	};

	admitted_note(skb, front, &entry);
}

enum assigned { ASSIGNED, ASSIGN_REFUSED, ASSIGN_FULL };

static __always_inline enum assigned assign_to(struct __sk_buff *skb, struct tcp_sock *listening,
					       const struct packet *p, const struct handshake *with)
{
	struct bpf_tcp_req_attrs attributes = {};

	if (!takes_family(listening, p))
		return ASSIGN_REFUSED;
	if (queue_full(listening))
		return ASSIGN_FULL;
	attributes.rcv_tsval = with->timestamp;
	attributes.rcv_tsecr = with->echo;
	attributes.mss = with->segment_size;
	attributes.tstamp_ok = with->timestamps;
	attributes.sack_ok = with->sack;
	attributes.ecn_ok = with->ecn;
	if (with->scale != COOKIE_NO_SCALE) {
		attributes.wscale_ok = 1;
		attributes.snd_wscale = with->scale;
		attributes.rcv_wscale = with->receive_scale;
	}
	if (bpf_sk_assign_tcp_reqsk(skb, (struct sock *)listening, &attributes, sizeof(attributes)))
		return ASSIGN_REFUSED;
	return ASSIGNED;
}

/* A socket of the class that takes it; several serve one class during a restart, or one for each family. */
static __always_inline enum assigned assign_to_class(struct __sk_buff *skb, struct front_context *front,
						     __u32 container, const struct handshake *with)
{
	struct fief_class_key key = {.listener = front->listener->index, .container = container};
	enum assigned now, best = ASSIGN_REFUSED;
	int turn;

	bpf_for (turn, 0, FIEF_CLASS_TURNS) {
		struct tcp_sock *listening;
		struct bpf_sock *sk;

		key.turn = turn;
		sk = bpf_map_lookup_elem(&class_listeners, &key);
		if (!sk)
			continue;
		listening = bpf_skc_to_tcp_sock(sk);
		now = listening ? assign_to(skb, listening, &front->packet, with) : ASSIGN_REFUSED;
		bpf_sk_release(sk);
		if (now == ASSIGNED)
			return ASSIGNED;
		if (now == ASSIGN_FULL)
			best = ASSIGN_FULL;
	}
	return best;
}

/*
 * A listener of multipath TCP takes no request socket of ours. Where the cookie is the kernel's, the packet bears it,
 * and the kernel makes the connection from it as if it had not been held.
 */
static __always_inline bool takes_cookies_alone(const struct front_context *front, struct tcp_sock *found)
{
	return front->guard->flags & FIEF_GUARD_KERNEL && is_multipath(found);
}

/*
 * Lets the packet make the connection. `found` is the listening socket that the kernel's lookup gives; NULL: the kernel
 * has made it as far as that.
 */
static __noinline int admit(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *found,
			    const struct stream *stream)
{
	enum assigned done = ASSIGN_REFUSED;

	admitted_note(skb, front, &stream->admitted);
	if (!found || takes_cookies_alone(front, found))
		return TCX_NEXT;
	if (front->listener->serve != FIEF_SERVE_SHARED)
		done = assign_to_class(skb, front, stream->admitted.container.id, &stream->with);
	if (done == ASSIGN_REFUSED)
		done = assign_to(skb, found, &front->packet, &stream->with);
	if (done == ASSIGNED) {
		front->connected = true; /* nobody looks for a listening socket */
		return TCX_NEXT;
	}
	verdict_count(front, stream->admitted.container, stream->admitted.rule, FIEF_SYN_QUEUE, false);
	return TCX_DROP;
}

/* Reads the line of a body in chunks that begins the stream. REQUEST_UNREAD has its verdict. */
static __always_inline int rest_chunk(struct front_context *front, struct stream *stream, __u32 length)
{
	struct fief_admitted *entry = &stream->admitted;
	struct chunk_line line = {.state = entry->tracked & CHUNK_STATES};
	int state = chunks_read((const struct request_bytes *)stream->bytes, length, &line);

	if (state == REQUEST_NEED_MORE)
		return REQUEST_NEED_MORE;
	if (state == REQUEST_UNREAD) {
		unread_rule(front, &stream->ruling, FIEF_UNREAD_MALFORMED);
		return REQUEST_UNREAD;
	}
	entry->tracked = (entry->tracked & ~CHUNK_STATES) | line.state;
	entry->next += line.head + line.data;
	return REQUEST_COMPLETE;
}

/* Rules the body that begins the stream, which some servers take for a request. REQUEST_UNREAD: it is refused. */
static __always_inline int rest_inside(struct front_context *front, struct stream *stream, __u32 length, __u32 how)
{
	struct fief_admitted *entry = &stream->admitted;
	struct ruling *ruling = &stream->ruling;
	int state = inside_rule(front, (const struct request_bytes *)stream->bytes, length, entry->body, how, ruling);

	if (state == REQUEST_NEED_MORE)
		return REQUEST_NEED_MORE;
	if (state != REQUEST_COMPLETE && ruling->refused)
		return REQUEST_UNREAD;
	entry->tracked &= ~FIEF_LABEL_INSIDE;
	entry->next += entry->body;
	return REQUEST_COMPLETE;
}

/* Reads the head of the record of TLS that begins the stream. RECORD_HELLO: it is to be ruled. */
static __always_inline int rest_record(struct front_context *front, struct stream *stream, __u32 length)
{
	struct fief_admitted *entry = &stream->admitted;
	struct chunk_line line = {};
	__u32 early = entry->tracked & FIEF_LABEL_EARLY && entry->next - entry->begin < EARLY_MOST;
	int state;

	if (!length)
		return REQUEST_NEED_MORE;
	state = record_read((const struct request_bytes *)stream->bytes, length, early, &line);
	if (state == REQUEST_COMPLETE)
		entry->next += line.head + line.data;
	if (state == REQUEST_UNREAD)
		unread_rule(front, &stream->ruling, FIEF_UNREAD_MALFORMED);
	if (state != RECORD_LAST)
		return state;
	stream->ruling.refused = false;
	return REQUEST_UNREAD;
}

/* Rules what stands at entry->next with what there is of it. */
static __always_inline int rest_step(struct front_context *front, struct stream *stream, bool ended)
{
	struct fief_admitted *entry = &stream->admitted;
	struct ruling *ruling = &stream->ruling;
	__u32 length = stream->length, how = ended ? RULE_ENDED : 0;
	int state;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	if (entry->tracked & CHUNK_STATES)
		return rest_chunk(front, stream, length);
	if (entry->tracked & FIEF_LABEL_INSIDE)
		return rest_inside(front, stream, length, how);
	if (entry->tracked & FIEF_LABEL_TLS) {
		state = rest_record(front, stream, length);
		if (state != RECORD_HELLO)
			return state;
	}
	if (entry->tracked & FIEF_LABEL_UPGRADE)
		how |= RULE_UPGRADE;
	if (request_rule(front, (const struct request_bytes *)stream->bytes, length, how, ruling) == REQUEST_NEED_MORE)
		return REQUEST_NEED_MORE;
	if (ruling->refused)
		return REQUEST_UNREAD;
	admitted_go_on(front, stream, false);
	return REQUEST_COMPLETE;
}

/*
 * Rules what stands behind the first request in the packet that makes the connection, which has the whole stream now.
 * What has come of a last one without an end is kept for later.bpf.h; where there is more than is looked at in one go,
 * the rest comes again. REST_PASSES, REST_REFUSED as stream->ruling says, or REST_SPOILT.
 */
enum rest { REST_PASSES, REST_REFUSED, REST_SPOILT };

static __noinline enum rest rest_rule(struct __sk_buff *skb, struct front_context *front, struct stream *stream)
{
	struct fief_admitted *entry = &stream->admitted;
	struct packet *p = &front->packet;
	__u32 skip;
	bool last;
	int i, state;

	bpf_for (i, 0, 2 * REQUESTS_MOST) {
		if (i >= REQUESTS_MOST && !(entry->tracked & BODY_STATES))
			break;
		skip = entry->next - p->seq;
		if (!(entry->tracked & FIEF_LABEL_TRACKED) || skip >= p->payload_length)
			return REST_PASSES;
		stream_begin(stream, entry->next);
		if (stream_append(skb, p, stream, skip) < 0)
			return REST_SPOILT;
		last = skip + stream->length == p->payload_length;
		state = rest_step(front, stream, last && p->flags & TCP_FIN);
		if (state == REQUEST_UNREAD) {
			if (stream->ruling.refused)
				return REST_REFUSED;
			admitted_pass(front, entry);
			return REST_PASSES;
		}
		if (state == REQUEST_NEED_MORE && !last)
			break;
		if (state == REQUEST_NEED_MORE && hold_keep(p, stream)) {
			entry->tracked |= FIEF_LABEL_HALF;
			return REST_PASSES;
		}
		if (state == REQUEST_NEED_MORE) {
			unread_rule(front, &stream->ruling, FIEF_UNREAD_NO_ROOM);
			admitted_pass(front, entry);
			return stream->ruling.refused ? REST_REFUSED : REST_PASSES;
		}
	}
	skip = entry->next - p->seq;
	if (skip >= p->payload_length || front->guard->flags & FIEF_GUARD_MONITOR)
		return REST_PASSES;
	return packet_cut(skb, p, stream, skip) == TCX_DROP ? REST_SPOILT : REST_PASSES;
}

/* Without a listening socket the kernel keeps the handshake, whose end may be on its way up already. */
static __always_inline int turn_away(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *found,
				     struct stream *stream)
{
	const struct packet *p = &front->packet;

	return found ? answer(skb, p, stream) : answer_and_reset(skb, p, stream, p->seq);
}

/* Rules the stream, and carries it out on the packet that ends it. */
static __noinline int stream_rule(struct __sk_buff *skb, struct front_context *front, struct tcp_sock *found,
				  struct stream *stream)
{
	struct packet *p = &front->packet;
	struct ruling *ruling = &stream->ruling;
	__u32 length = stream->length;
	__u32 how = RULE_FIRST;
	enum rest rest;

	if (length > FIEF_HEADER_MAX)
		length = FIEF_HEADER_MAX;
	isolated_look(front);
	if (p->flags & TCP_FIN && p->seq + p->payload_length == stream->first + 1 + length)
		how |= RULE_ENDED;
	if (request_rule(front, (const struct request_bytes *)stream->bytes, length, how, ruling) ==
	    REQUEST_NEED_MORE) {
		if (!found)
			return requested_cut(skb, front, stream);
		if (hold_keep(p, stream))
			return kept_acknowledge(skb, p, stream);
		unread_rule(front, ruling, FIEF_UNREAD_NO_ROOM);
	}
	half_done(stream);
	if (ruling->refused)
		return turn_away(skb, front, found, stream);
	if ((p->seq != stream->first + 1 || stream->known) && packet_grow(skb, p, stream))
		return TCX_DROP;
	admitted_begin(front, stream);
	rest = stream->admitted.tracked & FIEF_LABEL_TRACKED ? rest_rule(skb, front, stream) : REST_PASSES;
	if (rest == REST_REFUSED)
		return turn_away(skb, front, found, stream);
	if (rest == REST_SPOILT)
		return TCX_DROP;
	return admit(skb, front, found, stream);
}
