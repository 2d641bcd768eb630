/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Options: the TCP options of the current packet.
 *
 * How: they are copied into a fixed buffer and walked by a function that is verified once, on its own; an unrolled loop would
 * exceed the verifier's limit.
 * Limits: as in the kernel, the options after a malformed one are not read.
 */
#pragma once

#include "bytes.bpf.h"
#include "flow/packet.bpf.h"

#define OPTION_END	    0
#define OPTION_NOP	    1
#define OPTION_SIZE	    2
#define OPTION_SCALE	    3
#define OPTION_SACK	    4
#define OPTION_TIMESTAMPS   8
#define OPTIONS_MOST	    40
#define SCALE_MOST	    14
#define SCALE_NONE	    15
#define SEGMENT_SIZE_UNSAID 536

/* What both sides may use, from the SYN or back from the cookie. */
struct handshake {
	__u32 timestamp; /* the client's clock */
	__u32 echo;	 /* ours, as it came back */
	__u16 segment_size;
	__u8 scale; /* SCALE_NONE: none */
	__u8 sack;
	__u8 timestamps;
	__u8 ecn;
	__u8 receive_scale; /* ours */
	__u8 missing;	    /* bytes before the segment that have not come */
};

struct option_bytes {
	__u8 at[64]; /* so that a masked index stays inside */
} __attribute__((aligned(8)));

static __always_inline __u32 option_word(const struct option_bytes *bytes, __u32 at)
{
	return (__u32)bytes->at[at & 63] << 24 | (__u32)bytes->at[(at + 1) & 63] << 16 |
	       (__u32)bytes->at[(at + 2) & 63] << 8 | bytes->at[(at + 3) & 63];
}

struct option {
	__u32 kind; /* OPTION_END too where what stands there is malformed */
	__u32 size; /* in bytes, with its kind and length */
};

/* The option at `at` of so many bytes. */
static __always_inline struct option option_at(const struct option_bytes *bytes, __u32 at, __u32 length)
{
	struct option option = {.kind = at < length ? bytes->at[at & 63] : OPTION_END, .size = 1};

	if (option.kind == OPTION_END || option.kind == OPTION_NOP)
		return option;
	option.size = bytes->at[(at + 1) & 63];
	if (option.size < 2 || at + option.size > length)
		option.kind = OPTION_END;
	return option;
}

#define OPTIONS_OF_SEGMENT (OPTION_NOP << 24 | OPTION_NOP << 16 | OPTION_TIMESTAMPS << 8 | 10)
#define OPTIONS_OF_SYN	   (OPTION_SACK << 24 | 2 << 16 | OPTION_TIMESTAMPS << 8 | 10)

/*
 * Reads them where they are as Linux and Android write them: of a segment NOP, NOP, timestamps; of a SYN the segment size, SACK,
 * timestamps, NOP, the window scale. A walk takes eight times as long.
 */
static __always_inline bool options_usual(const struct option_bytes *bytes, __u32 length, struct handshake *with)
{
	const __u32 *words = (const __u32 *)bytes->at;
	__u32 stamps = 1;

	if (length == 20 && words[0] << 16 == bpf_htonl(OPTION_SIZE << 24 | 4 << 16) << 16 &&
	    words[1] == bpf_htonl(OPTIONS_OF_SYN) &&
	    bpf_ntohl(words[4]) >> 8 == (OPTION_NOP << 16 | OPTION_SCALE << 8 | 3)) {
		with->segment_size = bpf_ntohl(words[0]);
		with->sack = 1;
		with->scale = bytes->at[19] > SCALE_MOST ? SCALE_MOST : bytes->at[19];
		stamps = 2;
	} else if (length != 12 || words[0] != bpf_htonl(OPTIONS_OF_SEGMENT)) {
		return false;
	}
	with->timestamps = 1;
	with->timestamp = bpf_ntohl(words[stamps]);
	with->echo = bpf_ntohl(words[stamps + 1]);
	return true;
}

__noinline int options_walk(const struct option_bytes *bytes, __u32 length, struct handshake *with)
{
	struct option option;
	__u32 at = loop_from(0);
	int i;

	if (!bytes || !with || length > OPTIONS_MOST)
		return -1;
	if (options_usual(bytes, length, with))
		return 0;
	bpf_for (i, 0, OPTIONS_MOST) {
		option = option_at(bytes, at, length);
		if (option.kind == OPTION_END)
			break;
		if (option.kind == OPTION_SIZE && option.size == 4) {
			with->segment_size = option_word(bytes, at) & 0xffff;
		} else if (option.kind == OPTION_SCALE && option.size == 3) {
			with->scale = bytes->at[(at + 2) & 63];
			if (with->scale > SCALE_MOST)
				with->scale = SCALE_MOST;
		} else if (option.kind == OPTION_SACK && option.size == 2) {
			with->sack = 1;
		} else if (option.kind == OPTION_TIMESTAMPS && option.size == 10) {
			with->timestamps = 1;
			with->timestamp = option_word(bytes, at + 2);
			with->echo = option_word(bytes, at + 6);
		}
		at += option.size;
	}
	return 0;
}

static __always_inline int options_read(struct __sk_buff *skb, const struct packet *p, struct handshake *with)
{
	__u32 length = p->payload - p->transport - sizeof(struct tcphdr);
	struct option_bytes bytes = {};

	__builtin_memset(with, 0, sizeof(*with));
	with->segment_size = SEGMENT_SIZE_UNSAID;
	with->scale = SCALE_NONE;
	if (!length)
		return 0;
	if (length > OPTIONS_MOST)
		return -1;
	if (bpf_skb_load_bytes(skb, p->transport + sizeof(struct tcphdr), bytes.at, length))
		return -1;
	return options_walk(&bytes, length, with);
}
