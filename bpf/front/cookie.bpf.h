/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Cookie: what the door must know of a SYN later. The answer carries it, so the door keeps nothing.
 *
 *      31                       9   8   7       5   4   3         0
 *     +--------------------------+-----+-----------+------+------------+
 *     |  hash, 23 bits           |epoch|  segment  | SACK |  window    |   initial sequence number
 *     |                          |parity  size     |      |  scale     |   (15: none)
 *     +--------------------------+-----+-----------+------+------------+
 *
 *     timestamp value = 32 further bits of the hash + milliseconds, even: the lowest bit says ECN
 *
 * Problem: a sender of 10 million segments a second guesses 23 bits once a second.
 * How: a client with timestamps has to echo one that lies in the last two epochs as counted from a secret origin: 15 more bits.
 * From clients without timestamps, only a limited number of bad segments a second is checked (guesses.bpf.h). The key is
 * derived from the master for each epoch of 69 s; a cookie is valid in its epoch and the next.
 * Limits: a client that is silent for longer after the handshake has to connect again.
 */
#pragma once

#include "context.bpf.h"
#include "flow/options.bpf.h"
#include "siphash.bpf.h"
#include "maps/secrets.bpf.h"

#define RECEIVE_SCALE  10 /* windows up to 64 MB, in steps of 1 kB */

#define EPOCH_SHIFT    36			   /* of nanoseconds: 68.7 s */
#define COOKIE_PAST    12			   /* epochs that have run out, of one parity */
#define COOKIE_KEYS    32			   /* more than live and have run out; a power of two */
#define COOKIE_LIFE_MS (2ull << EPOCH_SHIFT >> 20) /* not more than two epochs */
#define COOKIE_LOW     0x1ffu
#define COOKIE_PARITY  0x100u
#define COOKIE_SIZE_AT 5
#define COOKIE_SACK    0x10u
#define COOKIE_SCALE   0x0fu

struct cookie_hash {
	__u32 sequence; /* upper 23 bits count */
	__u32 origin;	/* of the timestamps */
};

/* Each section of constants is a map, of which a program may have 64: in the one that is there anyway. */
static const __u16 segment_sizes[8] SEC(".rodata") = {536, 1220, 1300, 1360, 1400, 1440, 1460, 8900};
#define SEGMENT_SIZE_IPV6_LEAST 1220

static __always_inline __u32 segment_size_code(__u32 size)
{
	__u32 i, code = 0;

	for (i = 1; i < 8; i++)
		code += size >= segment_sizes[i];
	return code;
}

static __always_inline __u32 epoch_of(__u64 now)
{
	return now >> EPOCH_SHIFT;
}

static __always_inline __u32 cookie_clock_ms(__u64 now)
{
	return now / 1000000;
}

_Static_assert(COOKIE_KEYS > 2 * COOKIE_PAST + 2, "each epoch that is asked about has a place of its own");

/* The key of an epoch. Each CPU keeps those that it used, since deriving one costs twice what using it does. */
struct cookie_key {
	__u64 key[2];
	__u64 master; /* word of the master that it was derived from: an installation may get a new one */
	__u32 epoch;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COOKIE_KEYS);
	__type(key, __u32);
	__type(value, struct cookie_key);
} cookie_keys SEC(".maps");

static __noinline int cookie_key_derive(struct cookie_key *kept, __u32 epoch)
{
	__u32 zero = 0;
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);
	__u64 of[1];

	if (!secret)
		return -1;
	of[0] = (__u64)epoch << 1;
	kept->key[0] = siphash(secret->cookie, of, 1);
	of[0] |= 1;
	kept->key[1] = siphash(secret->cookie, of, 1);
	kept->master = secret->cookie[0];
	kept->epoch = epoch;
	return 0;
}

static __always_inline struct cookie_key *cookie_key(__u32 epoch)
{
	__u32 zero = 0, at = epoch & (COOKIE_KEYS - 1);
	struct cookie_key *kept = bpf_map_lookup_elem(&cookie_keys, &at);
	struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);

	if (!kept || !secret)
		return NULL;
	if ((kept->epoch != epoch || kept->master != secret->cookie[0]) && cookie_key_derive(kept, epoch))
		return NULL;
	return kept;
}

/* Of a client's first sequence number, and the low bits of our own. */
__noinline int cookie_hash_by(const struct packet *p __arg_nonnull, __u32 first, __u32 low,
			      const struct cookie_key *with __arg_nonnull, struct cookie_hash *hash __arg_nonnull)
{
	__u64 words[6], h;

	words[0] = (__u64)p->source_port << 48 | (__u64)p->destination_port << 32 | first;
	words[1] = low;
	if (p->ipv6) {
		__builtin_memcpy(words + 2, p->source, 16);
		__builtin_memcpy(words + 4, p->destination, 16);
		h = siphash(with->key, words, 6);
	} else {
		words[2] = (__u64)ipv4_of(p->source) << 32 | ipv4_of(p->destination);
		h = siphash(with->key, words, 3);
	}
	hash->sequence = h;
	hash->origin = h >> 32;
	return 0;
}

static __always_inline int cookie_hash(const struct packet *p, __u32 first, __u32 low, __u32 epoch,
				       struct cookie_hash *hash)
{
	struct cookie_key *with = cookie_key(epoch);

	return with ? cookie_hash_by(p, first, low, with, hash) : -1;
}

/* For a SYN: our first sequence number, and the timestamp to send. */
static __always_inline int cookie_make(struct front_context *front, const struct handshake *with, __u32 *sequence,
				       __u32 *timestamp)
{
	__u32 epoch = epoch_of(front->now), low;
	struct cookie_hash hash;

	low = (epoch & 1 ? COOKIE_PARITY : 0) | segment_size_code(with->segment_size) << COOKIE_SIZE_AT |
	      (with->sack ? COOKIE_SACK : 0) | with->scale;
	if (cookie_hash(&front->packet, front->packet.seq, low, epoch, &hash))
		return -1;
	*sequence = (hash.sequence & ~COOKIE_LOW) | low;
	*timestamp = (hash.origin & ~1u) + (cookie_clock_ms(front->now) & ~1u) + with->ecn;
	return 0;
}

/* What a cookie of ours says. */
static __always_inline void cookie_read(const struct packet *p, __u32 sequence, struct handshake *with)
{
	with->segment_size = segment_sizes[sequence >> COOKIE_SIZE_AT & 7];
	if (p->ipv6 && with->segment_size < SEGMENT_SIZE_IPV6_LEAST)
		with->segment_size = SEGMENT_SIZE_IPV6_LEAST;
	with->sack = !!(sequence & COOKIE_SACK);
	with->scale = sequence & COOKIE_SCALE;
	with->ecn = with->timestamps && with->echo & 1;
	with->receive_scale = RECEIVE_SCALE;
}

/* The younger of the living epochs that a cookie with these low bits can be of. */
static __always_inline __u32 cookie_epoch(__u64 now, __u32 low)
{
	__u32 epoch = epoch_of(now);

	return !(low & COOKIE_PARITY) != !(epoch & 1) ? epoch - 1 : epoch;
}

/* Whether `sequence` is a cookie of ours for a client that began with `first`; what it says is added to `with`. */
static __always_inline bool cookie_check(struct front_context *front, __u32 first, __u32 sequence,
					 struct handshake *with)
{
	__u32 low = sequence & COOKIE_LOW, age;
	struct cookie_hash hash;

	if (cookie_hash(&front->packet, first, low, cookie_epoch(front->now, low), &hash))
		return false;
	if ((hash.sequence ^ sequence) & ~COOKIE_LOW)
		return false;
	cookie_read(&front->packet, sequence, with);
	if (!with->timestamps)
		return true;
	age = (cookie_clock_ms(front->now) & ~1u) - ((with->echo & ~1u) - (hash.origin & ~1u));
	return age <= COOKIE_LIFE_MS;
}
