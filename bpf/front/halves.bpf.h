/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Halves: the begins of requests whose heads are not complete.
 *
 * Problem: each sender of half a head takes room, and there is little of it. And the bytes of a displaced connection were
 * acknowledged: its client would wait for ever.
 * How: a network (IPv4 /24, IPv6 /48) has a row of places. A connection of it may also stand in one of three other rows, which
 * its own hash names, as long as there is a free place. In a full row the network with the most places gives one to a network
 * with fewer; so does a connection that has been silent for HALF_SILENT_NS. The policy decides about a head that finds no place.
 * Each connection whose bytes were acknowledged has a tag. If it has a tag and no place, it was displaced and is reset.
 * The bytes of a place are written where they are. A word marks the place as being written; a CPU that finds it set drops its
 * packet, which comes again.
 * Limits: begins of requests from a thousand networks displace all others, and in IPv6 a /36 has as many networks. Clients of
 * one network share its row. Tags are overwritten by those of 65,536 others. With one other row instead of three, hundreds of
 * clients of few networks had no room long before the places were full: where that row was full too.
 */
#pragma once

#include "aggregate.bpf.h"
#include "hash.bpf.h"
#include "proxy.bpf.h"
#include "stream.bpf.h"

#define HALF_ROWS      64
#define HALF_ROWS_OF   4 /* in which a connection may stand, the network's with them */
#define HALF_PLACES    16
#define HALVES	       (HALF_ROWS * HALF_PLACES)
#define HALF_SILENT_NS 10000000000ull
#define HALF_TAGS      65536
#define HALF_WAYS      4 /* where a tag may stand */
#define HALF_NONE      (~0u)

struct half_place {
	__u32 tag;     /* of the connection and its cookie */
	__u32 network; /* of its source */
	__u64 time_ns; /* when something was added; 0: the place is free, though what it has may still be wanted */
};

struct half_row {
	struct half_place place[HALF_PLACES];
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

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HALF_TAGS);
	__type(key, __u32);
	__type(value, __u32);
} half_tags SEC(".maps");

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

static __always_inline struct half_place *place_at(struct half_row *row, __u32 at)
{
	return &row->place[as_index(at) & (HALF_PLACES - 1)];
}

/* The place of a connection in a row; HALF_NONE: it has none there. */
__noinline __u32 row_find(__u32 number, __u32 tag)
{
	struct half_row *row = bpf_map_lookup_elem(&half_rows, &number);
	__u32 i;

	if (!row)
		return HALF_NONE;
	for (i = loop_from(0); i < HALF_PLACES && can_loop; i++) {
		if (place_at(row, i)->tag == tag)
			return number * HALF_PLACES + i;
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

/* The place in a row that is free, or whose client has been silent for the longest time and for `silent` at least. */
__noinline __u32 row_spare(__u32 number, __u64 silent, __u64 now)
{
	struct half_row *row = bpf_map_lookup_elem(&half_rows, &number);
	__u64 time, oldest = now;
	__u32 i, found = HALF_NONE;

	if (!row)
		return HALF_NONE;
	for (i = loop_from(0); i < HALF_PLACES && can_loop; i++) {
		time = place_at(row, i)->time_ns;
		if (time < oldest && (!time || now - time >= silent)) {
			oldest = time;
			found = number * HALF_PLACES + i;
		}
	}
	return found;
}

__noinline __u32 row_count(struct half_row *row __arg_nonnull, __u32 network)
{
	__u32 i, count = 0;

	for (i = loop_from(0); i < HALF_PLACES && can_loop; i++)
		count += place_at(row, i)->network == network;
	return count;
}

/* The place of the network that has the most in the row, if that is more than the asking one has. */
__noinline __u32 row_displace(__u32 number, __u32 network)
{
	struct half_row *row = bpf_map_lookup_elem(&half_rows, &number);
	__u32 i, count, most, found = HALF_NONE;
	__u64 oldest = ~0ull, time;

	if (!row)
		return HALF_NONE;
	most = row_count(row, network) + 1;
	for (i = loop_from(0); i < HALF_PLACES && can_loop; i++) {
		count = row_count(row, place_at(row, i)->network);
		time = place_at(row, i)->time_ns;
		if (count > most || (count == most && time < oldest)) {
			most = count;
			oldest = time;
			found = number * HALF_PLACES + i;
		}
	}
	return found;
}

static __always_inline struct half_place *half_place(__u32 at)
{
	__u32 number = at / HALF_PLACES;
	struct half_row *row = bpf_map_lookup_elem(&half_rows, &number);

	return row ? place_at(row, at) : NULL;
}

__noinline __u32 half_spare(const struct half_name *name __arg_nonnull, __u64 silent, __u64 now)
{
	__u32 turn, at = HALF_NONE;

	for (turn = loop_from(0); turn < HALF_ROWS_OF && at == HALF_NONE && can_loop; turn++)
		at = row_spare(half_row_of(name, turn), silent, now);
	return at;
}

/* A place for a connection that has none. */
__noinline __u32 half_claim(const struct half_name *name __arg_nonnull, __u64 now)
{
	__u32 at = half_spare(name, ~0ull, now);

	if (at == HALF_NONE)
		at = half_spare(name, HALF_SILENT_NS, now);
	if (at == HALF_NONE)
		at = row_displace(name->row, name->network);
	return at;
}

/* The place is `name`'s, at this time; 0: and may be taken by others. */
static __always_inline void half_touch(__u32 at, const struct half_name *name, __u64 now)
{
	struct half_place *place = half_place(at);

	if (!place)
		return;
	place->tag = name->tag;
	place->network = name->network;
	place->time_ns = now;
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

/* Keeps the stream. False: there is no room. */
__noinline int hold_keep(const struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 at, length = stream->length;
	struct half *half;

	if (!half_name(p, half_cookie(stream), &stream->half))
		return false;
	at = half_find(&stream->half);
	if (at == HALF_NONE)
		at = half_claim(&stream->half, now);
	half = bpf_map_lookup_elem(&halves, &at);
	barrier_var(length);
	if (!half || length > FIEF_HEADER_MAX || !half_lock(half))
		return false;
	half_touch(at, &stream->half, now);
	stream->held = at;
	__builtin_memcpy(half->remote, p->source, 16);
	__builtin_memcpy(half->local, p->destination, 16);
	half->remote_port = p->source_port;
	half->local_port = p->destination_port;
	half->first = stream->first;
	half->cookie = stream->cookie;
	half->doubted = stream->doubted;
	half->length = 0;
	if (!length || !bpf_probe_read_kernel(half->bytes, length, stream->bytes))
		half->length = length;
	__builtin_memset(&half->scan, 0, sizeof(half->scan));
	__builtin_memset(&stream->scan, 0, sizeof(stream->scan));
	head_scan((const struct request_bytes *)half->bytes, length, &stream->scan);
	half->scan = stream->scan;
	half_unlock(half);
	return true;
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

/* Copies `count` bytes of the stream, which has the packet's payload, from `from` on behind the `known` bytes of a half. */
static __noinline int half_append(struct half *half, __u32 known, const struct stream *stream, __u32 from, __u32 count)
{
	__u32 done, size, to, at;

	for (done = loop_from(0); done < count && can_loop; done += STREAM_STEP) {
		size = count - done;
		if (size > STREAM_STEP)
			size = STREAM_STEP;
		to = known + done;
		at = from + done;
		barrier_var(size);
		barrier_var(to);
		barrier_var(at);
		if (!size || size > STREAM_STEP || to > FIEF_HEADER_MAX || at > STREAM_ROOM - STREAM_STEP)
			return -1;
		if (bpf_probe_read_kernel(half->bytes + to, size, stream->bytes + at))
			return -1;
	}
	return 0;
}

/* Of half_add(). */
#define HALF_ENDED   1u /* the client sends no more */
#define HALF_PROXIES 2u /* it may begin with a PROXY head */

enum half_added { HALF_SPOILT, HALF_KEPT, HALF_READY };

/*
 * Adds the packet's bytes from `skip` on to a half of `known` bytes; the stream has its payload. HALF_KEPT: there is nothing
 * to be ruled yet. Where there is, nothing has changed: the packet may come again.
 */
__noinline int half_add(const struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull, __u32 known,
			__u32 skip, __u32 how)
{
	__u32 at = stream->held, fresh = stream->length - skip, end = known + fresh;
	enum half_added done = HALF_SPOILT;
	struct half *half = bpf_map_lookup_elem(&halves, &at);

	if (!half || skip > stream->length || !half_lock(half))
		return HALF_SPOILT;
	if (!half_is(half, p, stream->cookie) || half->length != known)
		goto out;
	done = HALF_READY;
	if (end >= FIEF_HEADER_MAX || how & HALF_ENDED)
		goto out;
	/* what begins behind a PROXY head the scan does not know */
	if (how & HALF_PROXIES && (known < PROXY_TWO || is_proxy((const struct request_bytes *)half->bytes, known)))
		goto out;
	stream->scan = half->scan;
	if (half_append(half, known, stream, skip, fresh))
		done = HALF_SPOILT;
	else if (!head_scan((const struct request_bytes *)half->bytes, end, &stream->scan))
		done = HALF_KEPT;
	if (done == HALF_KEPT) {
		half->length = end;
		half->scan = stream->scan;
		half_touch(at, &stream->half, bpf_ktime_get_ns());
	}
out:
	half_unlock(half);
	return done;
}

/* Where the tag of a connection stands among the HALF_WAYS that it may; NULL: nowhere. */
static __always_inline __u32 *half_tag(const struct half_name *name, __u32 tag)
{
	__u32 i, at, *found;

	for (i = 0; i < HALF_WAYS; i++) {
		at = (name->mark & ~(HALF_WAYS - 1)) + i;
		found = bpf_map_lookup_elem(&half_tags, &at);
		if (found && *found == tag)
			return found;
	}
	return NULL;
}

/* Whether bytes of a connection that is not here have been acknowledged; after half_look(). */
__noinline int half_lost(const struct half_name *name __arg_nonnull)
{
	return half_tag(name, name->tag) != NULL;
}

/* Bytes of the connection have been acknowledged. */
__noinline int half_mark(const struct half_name *name __arg_nonnull)
{
	__u32 at = name->mark, *place;

	if (half_lost(name))
		return 0;
	place = half_tag(name, 0);
	if (!place)
		place = bpf_map_lookup_elem(&half_tags, &at);
	if (place)
		*place = name->tag;
	return 0;
}
