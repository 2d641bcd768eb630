/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stream: the first bytes of a connection, gathered for the rules in a buffer of the CPU.
 */
#pragma once

#include "flow/options.bpf.h"
#include "ruling.bpf.h"
#include "scan.bpf.h"
#include "segment.bpf.h"

#define STREAM_PIECE	     (FIEF_HEADER_MAX - 512) /* of one packet; values of per-CPU maps are below 32 kB */
#define STREAM_ROOM	     (FIEF_HEADER_MAX + STREAM_PIECE)
#define STREAM_STEP	     512 /* bytes that are copied at once */
#define REQUESTS_MOST	     256 /* that are ruled in one packet */
#define SUM_PIECE	     512 /* bytes that bpf_csum_diff takes at once */
#define CHECKSUM_UNNECESSARY 1

#define STREAM_ENDS	     -2 /* no verdict yet (TCX_NEXT is -1): the stream is to be ruled as far as it has come */
#define STREAM_REFUSED	     -5 /* it was ruled before, as stream->ruling says */

/* What a connection is known by where begins of requests are kept (halves.bpf.h). */
struct half_name {
	__u32 tag;
	__u32 network;
	__u32 row;
	__u32 other_row;
	__u32 stride; /* between other rows; odd */
	__u32 mark;
};

struct stream {
	__u32 first;
	__u32 cookie;
	__u32 length;
	__u32 doubted;
	__u8 bytes[STREAM_ROOM + BYTES_SLACK];
	/* of the packet at hand; here, since the stack is short */
	struct handshake with;
	struct ruling ruling;
	struct fief_admitted admitted; /* what the first request's verdict leaves for the socket */
	__u32 from;		       /* of a later request: where the packet goes on with it */
	__u32 read;		       /* and where what was read of it ends */
	struct half_name half;
	__u32 held; /* where its begin is kept; HALF_NONE */
	struct fief_scan scan;
	__u32 known;	    /* bytes that are kept of it, and come before those of the packet */
	__u32 times;	    /* that a segment that may be a guess came before */
	__u32 deferred;	    /* the kernel makes no socket without bytes */
	__u32 unanswered;   /* not 0: the server may owe the answer to another request */
	__u32 acknowledged; /* of a request on a socket: as far as its client has what the server said */
	__u64 flow;	    /* hash of that of the packet which begins a connection */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stream);
} streams SEC(".maps");

static __always_inline struct stream *stream_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&streams, &zero);
}

/* Begins the stream of a request on a connection that is there, or is about to be; `next` is its first byte. */
static __always_inline void stream_begin(struct stream *stream, __u32 next)
{
	stream->first = next - 1;
	stream->cookie = next; /* tells it from a handshake's */
	stream->length = 0;
	stream->held = ~0u;
	stream->known = 0;
}

/* Appends up to STREAM_PIECE bytes of the packet's payload, without its first `skip`. How many, or negative. */
static __always_inline int stream_append(struct __sk_buff *skb, const struct packet *p, struct stream *stream,
					 __u32 skip)
{
	__u32 at = stream->length, count = p->payload_length - skip;

	if (skip >= p->payload_length)
		return 0;
	if (count > STREAM_PIECE)
		count = STREAM_PIECE;
	/* kept apart and from being left out: of one test for both the verifier of 6.12 learns nothing */
	barrier_var(count);
	if (at >= FIEF_HEADER_MAX || !count)
		return -1;
	barrier_var(count);
	if (count > STREAM_PIECE)
		return -1;
	if (bpf_skb_load_bytes(skb, p->payload + skip, stream->bytes + at, count))
		return -1;
	stream->length = at + count;
	return count;
}

/* Sum of `length` bytes from `from` on, which is a multiple of 4. To the verifier a function of its own, which it follows once. */
__noinline __u64 stream_sum(struct stream *stream __arg_nonnull, __u32 from, __u32 length)
{
	__u64 sum = 0;
	__u32 at, size, end = from + length, behind;
	int i;

	barrier_var(end); /* the verifier knows the bounds of a sum only if it is a value of its own */
	if (from >= STREAM_ROOM || length > STREAM_ROOM || end > STREAM_ROOM)
		return 0;
	/* words are summed: what follows the last byte must not count */
	__builtin_memcpy(&behind, stream->bytes + end, 4);
	__builtin_memset(stream->bytes + end, 0, 4);
	bpf_for (i, 0, STREAM_ROOM / SUM_PIECE) {
		at = i * SUM_PIECE;
		if (at >= length)
			break;
		size = length - at;
		if (size > SUM_PIECE)
			size = SUM_PIECE;
		size = (size + 3) & ~3u;
		at += from;
		barrier_var(at);
		if (at > STREAM_ROOM - SUM_PIECE)
			break;
		sum = bpf_csum_diff(NULL, 0, (__be32 *)(stream->bytes + at), size, sum);
	}
	__builtin_memcpy(stream->bytes + end, &behind, 4);
	return sum;
}
