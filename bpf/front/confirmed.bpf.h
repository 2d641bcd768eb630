/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Confirmed: whether the server's answer agrees to leave HTTP.
 *
 * Problem: after a request for another protocol (Upgrade, CONNECT) the client's bytes are no longer HTTP if the server agrees.
 * Many servers ignore the request and go on with HTTP, so the request alone must not end the ruling.
 * How: a program at the sending side of the guarded interfaces reads the server's first answer. 101 agrees to Upgrade; other 1xx
 * answers are skipped with their heads. 2xx agrees to CONNECT once its head has ended: a server that takes CONNECT for any
 * request and stays with HTTP has to say where its answer ends, and one that opens a tunnel must not (RFC 9110, 9.3.6). So a
 * head with Content-Length or Transfer-Encoding agrees to nothing, nor do 204 and 205, which have no body anyway. The socket's
 * storage keeps the position, so the head may come in any pieces. The socket is the packet's own, whatever route the packet
 * takes. A confirmed connection passes for good, except HTTP/2, which is HTTP.
 * Limits: only the answer to a connection's first request has a place that is known without reading all answers: the begin of
 * the server's stream. So an upgrade after another request is never confirmed: the rest of an earlier answer, whose bytes a
 * client may have chosen, could stand at its place. An answer of which a part leaves by another interface confirms nothing.
 */
#pragma once

#include "flow/key.bpf.h"
#include "guard.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/labels.bpf.h"
#include "maps/sightings.bpf.h"

#define ANSWER_PIECE  64 /* bytes that are copied at once */
#define ANSWER_PIECES 64 /* of one packet: heads of 1xx answers are short */

enum answer_phase {
	ANSWER_LINE,	/* in its first line */
	ANSWER_HEAD,	/* in a line of its head whose rest is skipped */
	ANSWER_BREAK,	/* where a line of it ends: an empty one ends the head */
	ANSWER_AGREES,	/* to what was asked */
	ANSWER_DIFFERS, /* or not, or it was not seen */
	ANSWER_NAME,	/* in the name of a field that a tunnel must not have, as far as it has come */
};

struct confirmation {
	__u32 next;  /* sequence number of the first byte that was not read */
	__u32 phase; /* enum answer_phase */
	__u16 at;    /* place in the first line, or in a name */
	__u16 status;
	__u16 connect; /* 1: CONNECT was asked, else Upgrade */
	__u16 fits;    /* which names fit so far, of NAME_* */
};

/* Fields that say where an answer ends. */
#define NAME_LENGTH   1
#define NAME_ENCODING 2

static const char length_name[] = "content-length";
static const char encoding_name[] = "transfer-encoding";

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct confirmation);
} confirmations SEC(".maps");

struct answer_bytes {
	__u8 at[ANSWER_PIECE];
};

/* "HTTP/1.1 101", and what follows it is no digit. */
#define STATUS_AT  9
#define STATUS_END 12

static __always_inline bool is_digit(__u8 byte)
{
	return (__u8)(byte - '0') <= 9;
}

static __always_inline bool line_fits(__u32 at, __u8 byte)
{
	const __u64 begin = 'H' | 'T' << 8 | 'T' << 16 | (__u64)'P' << 24 | (__u64)'/' << 32;

	switch (at) {
	case 5:
	case 7:
		return is_digit(byte);
	case 6:
		return byte == '.';
	case 8:
		return byte == ' ';
	default:
		return at < 5 ? byte == (__u8)(begin >> at * 8) : is_digit(byte);
	}
}

/* Whether the status is one with which a server opens a tunnel. */
static __always_inline bool may_open(__u32 status)
{
	return status / 100 == 2 && status != 204 && status != 205;
}

static __always_inline __u32 status_judge(__u32 status, bool connect, __u8 byte)
{
	if (!connect && status == 101)
		return ANSWER_AGREES;
	if ((status / 100 != 1 || status == 101) && !(connect && may_open(status)))
		return ANSWER_DIFFERS;
	return byte == '\n' ? ANSWER_BREAK : ANSWER_HEAD;
}

/* What the next byte of a name makes of it. */
static __always_inline __u32 name_step(struct confirmation *known, __u8 byte)
{
	__u32 at = known->at++;

	if (byte == '\n')
		return ANSWER_BREAK;
	if (byte == ':' || byte == ' ' || byte == '\t') {
		if ((at == sizeof(length_name) - 1 && known->fits & NAME_LENGTH) ||
		    (at == sizeof(encoding_name) - 1 && known->fits & NAME_ENCODING))
			return ANSWER_DIFFERS;
		return ANSWER_HEAD;
	}
	byte |= 0x20; /* letters become small, and a hyphen stays one */
	if (at >= sizeof(length_name) - 1 || length_name[at] != byte)
		known->fits &= ~NAME_LENGTH;
	if (at >= sizeof(encoding_name) - 1 || encoding_name[at] != byte)
		known->fits &= ~NAME_ENCODING;
	return known->fits ? ANSWER_NAME : ANSWER_HEAD;
}

/* The byte behind the end of a line of the head. */
static __always_inline __u32 break_step(struct confirmation *known, __u8 byte)
{
	bool opens = may_open(known->status);

	if (byte == '\r')
		return ANSWER_BREAK;
	known->at = 0;
	if (byte == '\n' && opens)
		return ANSWER_AGREES;
	if (byte == '\n') {
		known->status = 0;
		return ANSWER_LINE;
	}
	known->fits = opens ? NAME_LENGTH | NAME_ENCODING : 0;
	return name_step(known, byte);
}

static __always_inline void answer_step(struct confirmation *known, __u8 byte)
{
	switch (known->phase) {
	case ANSWER_LINE:
		if (known->at == STATUS_END)
			known->phase =
			    is_digit(byte) ? ANSWER_DIFFERS : status_judge(known->status, known->connect, byte);
		else if (!line_fits(known->at, byte))
			known->phase = ANSWER_DIFFERS;
		else if (known->at >= STATUS_AT)
			known->status = known->status * 10 + byte - '0';
		known->at++;
		break;
	case ANSWER_HEAD:
		if (byte == '\n')
			known->phase = ANSWER_BREAK;
		break;
	case ANSWER_NAME:
		known->phase = name_step(known, byte);
		break;
	default:
		known->phase = break_step(known, byte);
	}
}

/* Whether nothing more is to be read. */
static __always_inline bool answer_known(const struct confirmation *known)
{
	return known->phase == ANSWER_AGREES || known->phase == ANSWER_DIFFERS;
}

/* A function of its own to the verifier, which then follows it once. */
__noinline int answer_piece(struct confirmation *known __arg_nonnull, const struct answer_bytes *bytes __arg_nonnull,
			    __u32 length)
{
	int i;

	bpf_for (i, 0, ANSWER_PIECE) {
		if (i >= length || answer_known(known))
			break;
		answer_step(known, bytes->at[i & (ANSWER_PIECE - 1)]);
	}
	return 0;
}

/* Reads on in the packet, from known->next. */
static __noinline int answer_read(struct __sk_buff *skb, const struct packet *p, struct confirmation *known)
{
	struct answer_bytes bytes;
	__u32 skip, length;
	int i;

	bpf_for (i, 0, ANSWER_PIECES) {
		skip = known->next - p->seq;
		if (skip >= p->payload_length)
			return 0;
		length = p->payload_length - skip;
		if (length > ANSWER_PIECE)
			length = ANSWER_PIECE;
		barrier_var(length);
		if (!length || length > ANSWER_PIECE || bpf_skb_load_bytes(skb, p->payload + skip, &bytes, length))
			break;
		answer_piece(known, &bytes, length);
		if (answer_known(known))
			return 0;
		known->next += length;
	}
	known->phase = ANSWER_DIFFERS;
	return 0;
}

/* What a socket's first request asks for: flags of its label. A socket without one has them where the door left them. */
static __noinline __u32 asked_first(const struct fief_label *label, const struct packet *p)
{
	struct fief_admitted *entry;
	struct fief_flow_key key;

	if (label)
		return label->flags;
	reversed_key(p, &key);
	entry = admitted_find(&key);
	return entry && entry->answer_at == p->seq ? entry->tracked : 0;
}

/* The server's first packet with bytes: begins to read it, if it is to be read. */
static __always_inline struct confirmation *answer_begin(struct bpf_sock *sk, const struct fief_label *label,
							 const struct packet *p)
{
	__u32 flags = asked_first(label, p);
	struct confirmation *known;

	if (!(flags & FIEF_LABEL_FIRST))
		return NULL;
	known = bpf_sk_storage_get(&confirmations, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!known)
		return NULL;
	known->next = p->seq;
	known->connect = !!(flags & FIEF_LABEL_CONNECT);
	return known;
}

/* A connection's first request asks for another protocol. */
static __always_inline void upgrade_note(void)
{
	struct fief_sightings *seen = sightings_get();

	if (seen && !seen->upgrades)
		*(volatile __u64 *)&seen->upgrades = 1;
}

/* Whether any may have. Each packet that leaves asks. */
static __always_inline bool upgrade_seen(void)
{
	struct fief_sightings *seen = sightings_get();

	return !seen || *(volatile __u64 *)&seen->upgrades;
}

/* A packet of this socket goes out. */
static __always_inline void answer_look(struct __sk_buff *skb, struct bpf_sock *sk)
{
	struct confirmation *known;
	struct packet packet = {};
	struct fief_label *label;
	struct tcp_sock *tcp;

	label = bpf_sk_storage_get(&labels, sk, 0, 0);
	if (label ? !(label->flags & FIEF_LABEL_FIRST) : !port_guarded(policy_slot(), sk->src_port))
		return;
	known = bpf_sk_storage_get(&confirmations, sk, 0, 0);
	if (known && answer_known(known))
		return;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp || (!known && tcp->bytes_acked))
		return;
	if (packet_read(skb, &packet) || !packet.payload_length)
		return;
	if (!known && packet.seq != tcp->snd_una)
		return;
	if (!known)
		known = answer_begin(sk, label, &packet);
	if (!known)
		return;
	if (is_behind(packet.seq, known->next))
		known->phase = ANSWER_DIFFERS; /* what lies between was not seen */
	else if (is_behind(packet.seq + packet.payload_length, known->next))
		answer_read(skb, &packet, known);
}

/* Whether the server has agreed to what the socket's first request asked for. */
static __always_inline bool is_confirmed(struct tcp_sock *tcp, const struct fief_label *label)
{
	struct confirmation *known;

	if (!(label->flags & FIEF_LABEL_FIRST))
		return false;
	known = bpf_sk_storage_get(&confirmations, tcp, 0, 0);
	return known && known->phase == ANSWER_AGREES;
}
