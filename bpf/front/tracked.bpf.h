/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Tracked: whether the requests of a connection are ruled, where its next one begins, and whose it is.
 *
 * How: the label of its socket says so. A connection that is ruled no longer bears the number of the rules that decided so:
 * under other rules it is checked again.
 */
#pragma once

#include "guard.bpf.h"
#include "maps/containers.bpf.h"
#include "maps/labels.bpf.h"
#include "ruling.bpf.h"
#include "stream.bpf.h"

/* TCX_NEXT is -1 */
#define LATER_AGAIN   -2 /* the packet has more */
#define LATER_REFUSED -3 /* as stream->ruling says */
#define LATER_CUT     -4 /* what is behind stream->read comes again */
#define LATER_FREE    -5 /* ruled no longer: a turn of its client, perhaps */

/* A socket, and what is remembered of it. */
struct connection {
	struct tcp_sock *tcp;
	struct fief_label *label;
	struct head_ranges *ranges;
	bool ended; /* the packet at hand ends the client's side, and all of it is in the stream */
	bool owes;  /* before it, its client owed more of a request that the queue has let go */
};

/* Softirqs are not entered twice on a CPU, and a program runs to its end: the program that has taken a label leaves it. */
static __always_inline bool label_take(struct fief_label *label)
{
	return !__sync_val_compare_and_swap(&label->busy, 0, 1);
}

static __always_inline void label_leave(struct fief_label *label)
{
	__sync_val_compare_and_swap(&label->busy, 1, 0);
}

/* Whether the connection's first byte stands at label->next. */
static __always_inline bool is_begin(const struct connection *on)
{
	__u64 received = on->tcp->bytes_received;

	return received < 1u << 31 && on->label->next == on->tcp->rcv_nxt - (__u32)received;
}

#define OWED_MOST (1u << 30) /* more than a send buffer has */

/* Whether nothing has left since the latest request was ruled. An answer may be longer than half of the sequence numbers. */
static __always_inline bool is_owed_yet(const struct tcp_sock *tcp, const struct fief_label *label)
{
	return label->answer_at - tcp->snd_nxt < OWED_MOST;
}

/* Whether the server has said something that its client has not acknowledged, nor does by the packet. */
static __always_inline bool is_unacknowledged(const struct tcp_sock *tcp, const struct packet *p)
{
	return tcp->snd_una != tcp->write_seq && p->ack != tcp->write_seq;
}

/* As far as the client has acknowledged what the server said: by the packet, or by one before. Data may bear an old acknowledgement. */
static __always_inline __u32 acknowledged_to(const struct packet *p, const struct tcp_sock *tcp)
{
	__u32 known = tcp->snd_una, now = p->ack;

	barrier_var(now); /* one load for both would be of two kinds of memory */
	return is_behind(known, now) ? known : now;
}

/* The door looks no longer at what follows on this connection, but for its turns, if `turns` is FIEF_LABEL_TURNS. */
static __always_inline int later_untrack(const struct front_context *front, struct fief_label *label, __u32 turns)
{
	__sync_fetch_and_and(&label->flags, ~(FIEF_LABEL_VERDICT | FIEF_LABEL_LOST));
	label->next = front->guard->rules;
	__sync_fetch_and_or(&label->flags, FIEF_LABEL_PASSED | turns);
	return TCX_NEXT;
}

/* The bytes at label->next cannot be read, or nobody knows where that is. */
static __always_inline int later_unread(struct front_context *front, struct fief_label *label, struct stream *stream,
					enum fief_unread kind)
{
	unread_rule(front, &stream->ruling, kind);
	return stream->ruling.refused ? LATER_REFUSED : later_untrack(front, label, FIEF_LABEL_TURNS);
}

/* What cannot be ruled now comes again; a guard that watches holds nothing up. */
static __always_inline int later_wait_for(const struct front_context *front)
{
	return front->guard->flags & FIEF_GUARD_MONITOR ? TCX_NEXT : TCX_DROP;
}

/* TCP has taken nothing yet: what comes is ruled as the connection's first bytes, once more if it was before. */
static __always_inline void begin_again(struct fief_label *label, struct tcp_sock *tcp)
{
	label->next = tcp->rcv_nxt;
	__sync_fetch_and_and(&label->flags, ~(FIEF_LABEL_VERDICT & ~FIEF_LABEL_TRACKED));
	__sync_fetch_and_or(&label->flags, FIEF_LABEL_TRACKED);
}

static __always_inline struct fief_container *labelled_container(struct fief_ref ref)
{
	struct fief_container *c = bpf_map_lookup_elem(&containers, &ref.id);

	return c && c->generation == ref.generation ? c : NULL;
}

/*
 * The sockets of a container are counted once somebody has received from them. Whether the new one pays for this socket, and so counts it,
 * depends on its unit, which the core knows: it asks at the next receive.
 */
static __always_inline void label_move(struct fief_label *label, struct fief_ref to)
{
	struct fief_container *c;

	if (label->flags & FIEF_LABEL_HOLDS ||
	    (label->container.id == to.id && label->container.generation == to.generation))
		return;
	if (__sync_fetch_and_and(&label->flags, ~FIEF_LABEL_COUNTED) & FIEF_LABEL_COUNTED) {
		c = labelled_container(label->container);
		if (c)
			__sync_fetch_and_add(&c->sockets, -1);
	}
	label->container = to;
	if (label->owner) /* else nobody would tell its end */
		__sync_fetch_and_or(&label->flags, FIEF_LABEL_FRESH);
}
