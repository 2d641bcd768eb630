/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Admitted: what is remembered of a connection whose first bytes are ruled.
 *
 * Problem: what follows must find the verdict, before there is a socket and where there was one.
 * How: `admitted` has one entry for each flow. A cookie that has made its socket is `spent`. For servers in managed units the
 * core reports this; elsewhere it shows when the client ends the connection. In any case first bytes have VERDICTS_MOST verdicts
 * at most.
 * Limits: a spent cookie is known as long as `admitted` has its entry.
 */
#pragma once

#include "behind.bpf.h"
#include "claim.bpf.h"
#include "displaced.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/labels.bpf.h"
#include "stream.bpf.h"
#include "tracked.bpf.h"

/* As often as a client sends again while the accept queue is full: tcp_retries2. */
#define VERDICTS_MOST 16

/* The hash of a packet's flow, which the steps of a connection's begin share. A function of its own to the verifier. */
__noinline __u64 packet_flow(const struct packet *p __arg_nonnull)
{
	struct fief_flow_key key;

	flow_key(p, &key);
	return flow_hash(&key);
}

/* Nothing that follows is ruled. */
static __always_inline void admitted_pass(const struct front_context *front, struct fief_admitted *entry)
{
	entry->tracked = FIEF_LABEL_PASSED | (entry->tracked & FIEF_LABEL_TURNS);
	entry->next = front->guard->rules;
}

/* Notes in `entry` what follows the request that stands at entry->next. */
static __always_inline void admitted_go_on(struct front_context *front, struct stream *stream, bool first)
{
	struct fief_admitted *entry = &stream->admitted;

	__u32 pipelined = entry->tracked & FIEF_LABEL_PIPELINED;

	entry->tracked = pipelined | flags_behind(&front->packet, front->guard, &stream->ruling, first);
	entry->next += stream->ruling.head + passed_over(&stream->ruling, &entry->body, &entry->tracked);
	entry->tracked |= flags_owing(front, &stream->ruling, entry->tracked, entry->next);
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
	entry->answer_at = front->packet.ack;
	entry->next = entry->begin;
	entry->tracked = 0;
	admitted_go_on(front, stream, true);
	entry->spent = 0;
	entry->interim = 0;
	entry->verdicts = 1;
	entry->time_ns = front->now;
}

/*
 * A client resets or ends a connection that has its socket: its first bytes shall not make another one, and nobody looks for the
 * socket any more. Only with the very next byte that the socket expects: anybody can send a reset with another one, and TCP would
 * go on. Its verdict, or NULL: it goes on, or has none.
 */
static __noinline struct fief_admitted *admitted_ended(const struct packet *p, struct bpf_sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct fief_admitted *entry;
	struct fief_flow_key key;

	if (!tcp || tcp->rcv_nxt != p->seq)
		return NULL;
	flow_key(p, &key);
	entry = admitted_find(&key);
	return verdict_spend(entry, p->seq) ? entry : NULL;
}

/* A reset: whether the begin of a request may be kept. */
static __noinline bool reset_ended(const struct packet *p, struct bpf_sock *sk)
{
	struct fief_label *label = bpf_sk_storage_get(&labels, sk, 0, 0);
	struct fief_admitted *entry = admitted_ended(p, sk);
	__u32 flags = label ? label->flags : 0;

	return (entry ? flags | entry->tracked : flags) & FIEF_LABEL_HALF;
}

/*
 * Whether the connection whose first byte is `begin` was there and has ended: a late double, or somebody who wants more of
 * them than its connection requests were allowed.
 */
static __noinline bool cookie_spent(const struct packet *p, __u32 begin)
{
	struct fief_admitted *entry;
	struct fief_flow_key key;

	flow_key(p, &key);
	entry = admitted_find(&key);
	if (!entry)
		return false;
	if (entry->begin != begin)
		return admitted_before(&key, begin);
	return entry->spent || entry->verdicts >= VERDICTS_MOST;
}

/* Before the packet goes on: what follows it must find the verdict. `hash`: of its flow. */
static __noinline void admitted_note(struct __sk_buff *skb, struct front_context *front,
				     const struct fief_admitted *verdict, __u64 hash)
{
	struct displaced *of = displaced_get();
	struct admitted_pair *pair = admitted_pair(hash);
	struct admitted_line *line;
	struct admitted_key *own;

	if (!of || !pair)
		return;
	flow_key(&front->packet, &of->key);
	line = admitted_line(pair, hash, &own);
	if (line->flow && line->flow != hash && !line->verdict.spent)
		displaced_settle(skb, line, own, front->slot);
	admitted_keep(line, hash, own, &of->key, verdict);
}

/*
 * A connection that the kernel made and whose first bytes these are: remembered for what comes after its end
 * (stray.bpf.h).
 */
static __noinline void admitted_by_kernel(struct __sk_buff *skb, struct front_context *front, __u64 hash)
{
	struct fief_admitted entry = {
	    .container = client_container(front),
	    .rule = FIEF_NO_ID,
	    .spent = 1,
	    .begin = front->packet.seq,
	    .time_ns = front->now,
	    .answer_at = front->packet.ack,
	};

	admitted_note(skb, front, &entry, hash);
}

#define BEGUN_NS (CLAIM_MS * 1000000ll)
#define NO_CPU	 ~0u /* as the CPU of a verdict: none has its packet, since the listener had no room for the connection */

/*
 * Whether first bytes of another connection of the flow passed a moment ago, and its socket is not known of yet. A client has several
 * cookies that are good at once: of several SYNs, or one of the kernel's, for several numbers. Only one of them makes a connection, and what
 * follows its first bytes would be ruled by those of the other one.
 */
static __always_inline bool is_begun(const struct front_context *front, const struct fief_admitted *entry, __u32 begin)
{
	return entry && entry->begin != begin && !entry->spent && entry->cpu != NO_CPU &&
	       (__s64)(front->now - entry->time_ns) < BEGUN_NS;
}

/* The packet of a verdict upon the connection whose first byte is `begin` goes no further. `hash`: of its flow. */
static __noinline int admitted_fail(__u64 hash, __u32 begin)
{
	struct admitted_pair *pair = admitted_pair(hash);
	struct fief_admitted *entry = pair ? verdict_of(pair, hash) : NULL;

	if (entry && entry->begin == begin)
		entry->cpu = NO_CPU;
	return 0;
}

/*
 * Whether the same first bytes were ruled before, and made no connection: the listener had no room for it, or the request socket that they
 * came to is still there. That the verdict is not spent says less: of a server outside of managed units nobody tells that it has the
 * connection, and it may have ended that.
 */
static __always_inline bool is_unmade(const struct front_context *front, const struct fief_admitted *entry, __u32 begin)
{
	if (entry->begin != begin || entry->spent)
		return false;
	return entry->cpu == NO_CPU || (front->connected && entry->answer_at == front->packet.ack);
}

#define BEGIN_WAITS (-1ll)

/*
 * Takes the begin of the connection whose first byte is `begin` for the packet's bytes; a guard that watches holds nobody up. BEGIN_WAITS:
 * they may not pass now. Else one more than the rule that let the same bytes pass before, in vain; 0: there is none. `hash`: of its flow.
 */
static __noinline __s64 begin_claim(struct front_context *front, __u32 begin, __u64 hash)
{
	struct fief_admitted *entry;
	struct admitted_pair *pair;

	if (front->guard->flags & FIEF_GUARD_MONITOR)
		return 0;
	pair = admitted_pair(hash);
	if (!pair)
		return 0;
	entry = verdict_of(pair, hash);
	if (is_begun(front, entry, begin) || !claim_take(pair, hash, begin, front->now, false))
		return BEGIN_WAITS;
	if (!entry || !is_unmade(front, entry, begin))
		return 0;
	entry->cpu = bpf_get_smp_processor_id(); /* paid for once more, whatever becomes of it */
	return entry->rule + 1;
}

/* The bytes that begin_claim() took it for at this time go no further. */
static __noinline int begin_leave(__u64 now, __u32 begin, __u64 hash)
{
	struct admitted_pair *pair = admitted_pair(hash);

	return pair ? first_bytes_leave(pair, hash, begin, now) : 0;
}

/* The first bytes of a connection of which nothing is known. False: they have to wait. */
static __always_inline bool begin_take(struct __sk_buff *skb, struct front_context *front, struct connection *on)
{
	struct packet *p = &front->packet;
	bool first = !(on->label->flags & FIEF_LABEL_TRACKED);
	__u64 hash;

	if (is_behind(p->seq, on->tcp->rcv_nxt))
		return false;
	hash = packet_flow(p);
	if (begin_claim(front, on->tcp->rcv_nxt, hash) == BEGIN_WAITS)
		return false;
	begin_again(on->label, on->tcp);
	if (first && p->seq == on->tcp->rcv_nxt)
		admitted_by_kernel(skb, front, hash);
	return true;
}
