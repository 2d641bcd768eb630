/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Halves: the begins of requests whose heads are not complete.
 *
 * Problem: each sender of half a head takes room, and there is little of it.
 * How: a network (IPv4 /24, IPv6 /48) has a row of places. A connection of it may also stand in one of three other rows, which
 * its own hash names, as long as there is a free place (keep.bpf.h).
 * One that was displaced after its bytes were acknowledged is known by its tag (tags.bpf.h).
 * Limits: begins of requests from a thousand networks displace all others, and in IPv6 a /36 has as many networks. Clients of
 * one network share its row. With one other row instead of three, hundreds of
 * clients of few networks had no room long before the places were full: where that row was full too.
 */
#pragma once

#include "bits.bpf.h"
#include "flow/aggregate.bpf.h"
#include "hash.bpf.h"
#include "stream.bpf.h"

#define HALF_ROWS	64
#define HALF_ROWS_OF	4 /* in which a connection may stand, the network's with them */
#define HALF_PLACES	16
#define HALVES		(HALF_ROWS * HALF_PLACES)
#define HALF_SILENT_NS	10000000000ull
#define HALF_DROPPED_NS 200000000ull /* the least time after which TCP sends again */
#define HALF_TAGS	65536
#define HALF_NONE	(~0u)

/* Whose the places of a row are. The tags lie side by side, since most connections have no place, and all rows are looked through. */
struct half_row {
	__u32 tag[HALF_PLACES];	    /* of the connection and its cookie */
	__u32 network[HALF_PLACES]; /* of its source */
	__u64 time_ns[HALF_PLACES]; /* when something was added; 0: free, though what it has may still be wanted */
};

/* The begin of a request. */
struct half {
	__u64 remote[2];
	__u64 local[2];
	__u16 remote_port;
	__u16 local_port;
	__u32 busy;
	__u32 first;
	__u32 cookie;
	__u32 length;
	__u32 doubted;
	__u64 refused_ns; /* when it was; 0: it was not */
	__u16 retry_after_s;
	__u8 refusal; /* enum fief_refusal: what its client got, and gets again */
	__u8 kind;    /* enum scan_kind */
	struct fief_scan scan;
	__u8 bytes[FIEF_HEADER_MAX + STREAM_STEP];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HALF_ROWS);
	__type(key, __u32);
	__type(value, struct half_row);
} half_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HALVES);
	__type(key, __u32);
	__type(value, struct half);
} halves SEC(".maps");

/* A later request needs no cookie for its name: its connection has a socket, and one place at most. */
#define HALF_LATER 0

/* What a stream is named by. */
static __always_inline __u32 half_cookie(const struct stream *stream)
{
	return stream->cookie == stream->first + 1 ? HALF_LATER : stream->cookie;
}

/* Names the connection of the packet with this cookie, or HALF_LATER. */
__noinline int half_name(const struct packet *p __arg_nonnull, __u32 cookie, struct half_name *name __arg_nonnull)
{
	__u32 zero = 0;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	__u64 words[2], hash;

	if (!secret)
		return false;
	__builtin_memcpy(words, p->source, 16);
	hash = address_hash(secret, words) ^ ((__u64)p->source_port << 48 | (__u64)p->destination_port << 32 | cookie);
	hash = hash_mix(hash ^ secret->pattern[1]);
	name->tag = (__u32)hash | 1;
	name->other_row = hash >> 32 & (HALF_ROWS - 1);
	name->stride = (hash >> 40 & (HALF_ROWS - 1)) | 1;
	name->mark = hash >> 48 & (HALF_TAGS - 1);
	network_take(words, p->ipv6);
	hash = hash_mix(address_hash(secret, words) ^ secret->pattern[0]);
	name->network = hash;
	name->row = hash >> 32 & (HALF_ROWS - 1);
	return true;
}

static __always_inline __u32 place_in_row(__u32 at)
{
	return as_index(at) & (HALF_PLACES - 1);
}

#define TAG_LANES 0x0000000100000001ull

/* The places whose tag this may be, as bits: a few too many, never one too few. Two are compared at once. */
static __always_inline __u64 places_tagged(const struct half_row *row, __u32 tag)
{
	const __u64 *words = (const __u64 *)row->tag;
	__u64 differs, same, places = 0;
	__u32 i;

	for (i = 0; i < HALF_PLACES / 2; i++) {
		differs = words[i] ^ tag * TAG_LANES;
		same = (differs - TAG_LANES) & ~differs & TAG_LANES << 31;
		places |= ((same >> 31 & 1) | (same >> 62 & 2)) << 2 * i;
	}
	return places;
}

/* The place of a connection in a row; HALF_NONE: it has none there. */
__noinline __u32 row_find(__u32 number, __u32 tag)
{
	struct half_row *row = bpf_map_lookup_elem(&half_rows, &number);
	__u64 places;
	__u32 at;

	if (!row)
		return HALF_NONE;
	for (places = places_tagged(row, tag); places && can_loop; places &= places - 1) {
		at = lowest_bit(places);
		if (row->tag[place_in_row(at)] == tag)
			return number * HALF_PLACES + at;
	}
	return HALF_NONE;
}

/* The rows in which a connection may stand: its network's, and others that differ. */
static __always_inline __u32 half_row_of(const struct half_name *name, __u32 turn)
{
	return turn ? (name->other_row + turn * name->stride) & (HALF_ROWS - 1) : name->row;
}

__noinline __u32 half_find(const struct half_name *name __arg_nonnull)
{
	__u32 turn, at = HALF_NONE;

	for (turn = loop_from(0); turn < HALF_ROWS_OF && at == HALF_NONE && can_loop; turn++)
		at = row_find(half_row_of(name, turn), name->tag);
	return at;
}

/* The place is `name`'s, at this time; 0: and may be taken by others. */
static __always_inline void half_touch(__u32 at, const struct half_name *name, __u64 now)
{
	__u32 number = at / HALF_PLACES, place = place_in_row(at);
	struct half_row *row = bpf_map_lookup_elem(&half_rows, &number);

	if (!row)
		return;
	row->tag[place] = name->tag;
	row->network[place] = name->network;
	row->time_ns[place] = now;
}

/* Its request has its verdict: what is kept counts only until somebody wants the place. */
static __always_inline void half_done(const struct stream *stream)
{
	if (stream->held != HALF_NONE)
		half_touch(stream->held, &stream->half, 0);
}

static __always_inline bool half_is(const struct half *half, const struct packet *p, __u32 cookie)
{
	const __u64 *remote = (const __u64 *)p->source, *local = (const __u64 *)p->destination;

	return half->cookie == cookie && half->remote_port == p->source_port &&
	       half->local_port == p->destination_port && half->remote[0] == remote[0] &&
	       half->remote[1] == remote[1] && half->local[0] == local[0] && half->local[1] == local[1];
}

static __always_inline bool half_lock(struct half *half)
{
	return !__sync_val_compare_and_swap(&half->busy, 0, 1);
}

static __always_inline void half_unlock(struct half *half)
{
	__sync_val_compare_and_swap(&half->busy, 1, 0);
}

/* Finds what is kept of the connection with this cookie and name; the bytes are left where they are. */
__noinline int half_look(const struct packet *p __arg_nonnull, __u32 cookie, __u32 name,
			 struct stream *stream __arg_nonnull)
{
	struct half *half;
	__u32 at;

	stream->held = HALF_NONE;
	if (!half_name(p, name, &stream->half))
		return false;
	at = half_find(&stream->half);
	half = bpf_map_lookup_elem(&halves, &at);
	if (!half || !half_is(half, p, cookie) || half->length > FIEF_HEADER_MAX)
		return false;
	stream->held = at;
	stream->first = half->first;
	stream->cookie = cookie;
	stream->doubted = half->doubted;
	stream->length = half->length;
	return true;
}

/* Puts what half_look() has found into the stream. */
__noinline int half_load(const struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull)
{
	__u32 at = stream->held, length = stream->length;
	struct half *half = bpf_map_lookup_elem(&halves, &at);

	barrier_var(length);
	if (!half || length > FIEF_HEADER_MAX)
		return false;
	if (length && bpf_probe_read_kernel(stream->bytes, length, half->bytes))
		return false;
	barrier();
	return half_is(half, p, stream->cookie) && half->length == stream->length;
}

/* Frees the place of a name if a reset that stands right behind what is kept there ends its connection. */
__noinline int half_reset(const struct packet *p __arg_nonnull, __u32 cookie, struct half_name *name __arg_nonnull)
{
	struct half *half;
	__u32 at;

	if (!half_name(p, cookie, name))
		return 0;
	at = half_find(name);
	half = bpf_map_lookup_elem(&halves, &at);
	if (half && half_is(half, p, half->cookie) && p->seq == half->first + 1 + half->length)
		half_touch(at, name, 0);
	return 0;
}
