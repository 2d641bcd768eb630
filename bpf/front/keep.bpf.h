/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Keep: the begin of a request that has no end yet is kept.
 *
 * Problem: each sender of half a head takes room, and there is little of it.
 * How: in a full row the network with the most places gives one to a network with fewer; so does a connection that has been
 * silent for HALF_SILENT_NS. The policy decides about a head that finds no place.
 */
#pragma once

#include "halves.bpf.h"
#include "scan.bpf.h"
#include "tracked.bpf.h"

/* The place in a row that is free, or whose client has been silent for the longest time and for `silent` at least. */
__noinline __u32 row_spare(__u32 number, __u64 silent, __u64 now)
{
	struct half_row *row = bpf_map_lookup_elem(&half_rows, &number);
	__u64 time, oldest = now;
	__u32 i, found = HALF_NONE;

	if (!row)
		return HALF_NONE;
	for (i = loop_from(0); i < HALF_PLACES && can_loop; i++) {
		time = row->time_ns[place_in_row(i)];
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
		count += row->network[place_in_row(i)] == network;
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
		count = row_count(row, row->network[place_in_row(i)]);
		time = row->time_ns[place_in_row(i)];
		if (count > most || (count == most && time < oldest)) {
			most = count;
			oldest = time;
			found = number * HALF_PLACES + i;
		}
	}
	return found;
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

/* A label with these flags: the kind of the bytes at its `next`. */
static __always_inline enum scan_kind scan_kind(__u32 flags)
{
	if (flags & CHUNK_STATES)
		return SCAN_CHUNK;
	if (flags & FIEF_LABEL_INSIDE)
		return SCAN_BODY;
	return flags & FIEF_LABEL_TLS ? SCAN_RECORD : SCAN_HEAD;
}

/*
 * Keeps the stream, of which its parser wants more. `flags`, of a label, say what it is: a line of chunks, a body of `body`
 * bytes, a record, or a head, which begins behind `skipped` bytes of a PROXY head. False: there is no room.
 */
__noinline int hold_keep(const struct packet *p __arg_nonnull, struct stream *stream __arg_nonnull, __u32 flags,
			 __u64 body, __u32 skipped)
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
	half->refused_ns = 0;
	half->length = 0;
	if (!length || !bpf_probe_read_kernel(half->bytes, length, stream->bytes))
		half->length = length;
	half->kind = scan_kind(flags);
	scan_begin(half->kind, skipped, body, &stream->scan);
	scan_on(half->kind, (const struct request_bytes *)half->bytes, length, &stream->scan);
	half->scan = stream->scan;
	half_unlock(half);
	return true;
}

/* The bytes that have come do not end what stands at label->next: they are kept. */
static __always_inline int later_wait(struct front_context *front, struct connection *on, struct stream *stream)
{
	const struct packet *p = &front->packet;

	__sync_fetch_and_or(&on->label->flags, FIEF_LABEL_HALF); /* before: another CPU may have what follows */
	if (!hold_keep(p, stream, on->label->flags, on->label->body, stream->ruling.skipped))
		return later_unread(front, on->label, stream, FIEF_UNREAD_NO_ROOM);
	stream->read = on->label->next + stream->length;
	return stream->read == p->seq + p->payload_length ? TCX_NEXT : LATER_CUT;
}
