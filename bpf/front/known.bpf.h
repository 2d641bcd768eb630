/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Known: heads of requests that this CPU has ruled before, and what was found of them.
 *
 *   head ──► its end and hash ──► kept? ──yes──► what was found then
 *                                   │no
 *                                   ▼
 *                              seen before? ──no──► its hash is noted; it is read
 *                                   │yes
 *                                   ▼
 *                              it is read, and kept if there is a place
 *
 * Problem: to read a head and to find its rules is half of what the door does for a request, some 10,000 instructions for a browser's.
 * And clients send the same heads again and again: those of a page, of an interface, of a health check.
 * How: what request_find() finds of a head that can be read follows from these, and from nothing else:
 *
 *   the head                         each byte of it is compared; no parser uses what stands behind its end
 *   the guard, rules and filters     named by slot and epoch of the policy and by the listener: tables in force do not change
 *   the level of overload            as of now
 *   what is said of the bytes        `how`: no readable head is ruled by it but for a PROXY head before it, which is not kept;
 *                                    it is compared all the same
 *   the parsers, the key of hashes   the map goes with the programs (goes_with_programs() in open.rs): what other parsers found
 *                                    is not here
 *
 * The client, the time, rates, penalties, isolation and containers come in behind it, for each request anew (decide.bpf.h).
 * A head is kept when it comes for the second time, so one that comes once costs its hash only. The hash is keyed: nobody foresees which
 * heads share a place. A head that is found is marked as used; who wants its place takes the mark off, and gets the place the next time
 * if there is none again.
 * Limits: the order in which epoch and slot are read and written is x86's. Heads of up to KNOWN_MOST bytes that end with CR LF CR LF and
 * begin with no empty line. What cannot be read and TLS are read each time. So is a request with another one behind it, if its packet ends
 * with a head. 42 kB for each CPU.
 */
#pragma once

#include "match.bpf.h"
#include "ruling.bpf.h"
#include "maps/controls.bpf.h"
#include "maps/secrets.bpf.h"

#define KNOWN_HEADS 64 /* a power of two */
#define KNOWN_BITS  6  /* of it */
#define KNOWN_WAYS  2  /* places that a head may have */
#define KNOWN_ASKED KNOWN_HEADS
#define KNOWN_MOST  512 /* bytes of a head; a power of two */
#define KNOWN_WORDS (KNOWN_MOST / 8)

_Static_assert(KNOWN_HEADS == 1 << KNOWN_BITS, "a place is some bits of the hash");

/* A head that is kept; at KNOWN_ASKED the one that is asked for. */
struct known_head {
	__u64 hash;   /* of the bytes, and of what follows but for the policy */
	__u32 length; /* 0: there is none, or it cannot be kept */
	__u32 listener;
	__u32 epoch; /* of the policy */
	__u32 slot;
	__u32 level;
	__u32 how;
	/* what was found */
	struct fief_request best;
	struct fief_request shadow;
	__u64 body;
	__u32 readings;
	__u32 place; /* of what is asked for: where it is to be kept */
	bool tracked;
	bool upgrade;
	bool connect;
	bool chunked;
	bool inside;
	bool used;  /* found since another one wanted its place */
	__u64 seen; /* hash of the last one that was not found and has its first place here */
	__u64 word[KNOWN_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KNOWN_HEADS + 1);
	__type(key, __u32);
	__type(value, struct known_head);
} known_heads SEC(".maps");

static __always_inline struct known_head *known_at(__u32 at)
{
	return bpf_map_lookup_elem(&known_heads, &at);
}

/* The places that a head may have. */
static __always_inline __u32 known_place(__u64 hash, __u32 way)
{
	return hash >> way * KNOWN_BITS & (KNOWN_HEADS - 1);
}

/* Whole words of so many bytes. Their bound is so low that the verifier may follow each pass of a loop: it needs no can_loop. */
static __always_inline __u32 words_of(__u32 length)
{
	__u32 words = length / 8;

	barrier_var(words);
	return words < KNOWN_WORDS ? words : KNOWN_WORDS;
}

/*
 * Where the first empty line ends, within so many bytes; 0: nowhere. Of two line ends in one word the second is missed: then the head is
 * not known, and nothing else. A function of its own, as the others with a loop: the verifier would follow what comes behind it once for
 * each pass.
 */
__noinline __u32 empty_end(const struct request_bytes *bytes __arg_nonnull, __u32 end)
{
	__u32 i, words = words_of(end + 7), at;
	__u64 found;

	for (i = 0; i < words; i++) {
		found = zero_bytes(word_at(bytes, i * 8) ^ EACH_BYTE('\n'));
		if (!found)
			continue;
		at = i * 8 + lowest_byte(found) + 1;
		if ((__u16)word_at(bytes, at) == (__u16)LETTERS('\r', '\n', 0, 0, 0, 0, 0, 0))
			return at + 2 <= end ? at + 2 : 0;
	}
	return 0;
}

/* The same of what may be a head that can be kept. */
static __always_inline __u32 known_end(const struct request_bytes *bytes, __u32 length)
{
	if (length < 4 || byte_at(bytes, 0) <= ' ')
		return 0;
	if (length > KNOWN_MOST)
		return empty_end(bytes, KNOWN_MOST);
	/* nothing behind it, as most are */
	if ((__u32)word_at(bytes, length - 4) == (__u32)LETTERS('\r', '\n', '\r', '\n', 0, 0, 0, 0))
		return length;
	return empty_end(bytes, length);
}

/* The bits of the last word that belong to so many bytes. */
static __always_inline __u64 rest_mask(__u32 length)
{
	return ~(~0ull << (length & 7) * 8);
}

static __always_inline __u64 halves_product(__u64 word)
{
	return (word >> 32) * (__u32)word;
}

/* Each word is moved by a secret of its place before its halves are multiplied: no two changes that cancel out can be foreseen. */
__noinline __u64 known_hash(const struct request_bytes *bytes __arg_nonnull, __u32 length,
			    const struct fief_secret *secret __arg_nonnull)
{
	__u64 moved = secret->pattern[0], step = secret->pattern[1] | 1, sum;
	__u32 words = words_of(length), i;

	sum = halves_product((word_at(bytes, length & ~7u) & rest_mask(length)) + moved);
	for (i = 0; i < words; i++) {
		moved += step;
		sum += halves_product(word_at(bytes, i * 8) + moved);
	}
	return sum;
}

/*
 * Whose tables the verdict is to be of. False: another policy comes into force right now. Read in this order, since they are
 * written in the other one (admin_slot): a slot never goes with the epoch of a policy that it does not have.
 */
static __always_inline bool known_epoch(struct known_head *asked)
{
	const struct fief_control *control = control_get();

	if (!control)
		return false;
	asked->epoch = *(const volatile __u32 *)&control->epoch;
	barrier();
	return (*(const volatile __u32 *)&control->slot & 1) == asked->slot;
}

/* Says which head it is that begins the bytes. False: none that could be known. */
static __always_inline bool known_ask(struct known_head *asked, const struct request_bytes *bytes, __u32 length,
				      __u32 how, const struct ruling *out, const struct match_state *match)
{
	__u32 zero = 0, end = known_end(bytes, length);
	const struct fief_secret *secret = bpf_map_lookup_elem(&secrets, &zero);

	if (!end || !secret)
		return false;
	asked->listener = out->by.listener;
	asked->slot = match->slot;
	asked->level = match->level;
	asked->how = how;
	if (!known_epoch(asked))
		return false;
	asked->length = end;
	asked->hash = hash_mix(known_hash(bytes, end, secret) ^
			       ((__u64)asked->listener << 32 | how << 24 | asked->level << 16 | end));
	return true;
}

/* Whether the head that is kept is the one that is asked for, which begins the bytes. */
__noinline int known_is(const struct known_head *kept __arg_nonnull, const struct known_head *asked __arg_nonnull,
			const struct request_bytes *bytes __arg_nonnull)
{
	__u32 length = asked->length, words = words_of(length), i;

	if (kept->length != length || kept->listener != asked->listener || kept->epoch != asked->epoch ||
	    kept->slot != asked->slot || kept->level != asked->level || kept->how != asked->how)
		return false;
	if ((kept->word[as_index(words) & (KNOWN_WORDS - 1)] ^ word_at(bytes, length & ~7u)) & rest_mask(length))
		return false;
	for (i = 0; i < words; i++) {
		if (kept->word[i] != word_at(bytes, i * 8))
			return false;
	}
	return true;
}

/* As request_find() leaves it, behind ruling_begin(). */
static __always_inline void known_tell(const struct known_head *kept, struct ruling *out, struct match_state *match)
{
	match->best = kept->best;
	match->shadow = kept->shadow;
	match->read = kept->readings;
	match->spent += kept->readings;
	out->tracked = kept->tracked;
	out->upgrade = kept->upgrade;
	out->connect = kept->connect;
	out->chunked = kept->chunked;
	out->inside = kept->inside;
	out->head = kept->length;
	out->body = kept->body;
}

/* Finds a place for what is asked for, if it was seen before, and if those that have one are not asked for too. */
static __always_inline void known_spare(struct known_head *asked)
{
	__u32 places[KNOWN_WAYS] = {known_place(asked->hash, 0), known_place(asked->hash, 1)};
	struct known_head *first = known_at(places[0]), *other = known_at(places[1]);

	if (!first || !other)
		goto none;
	if (first->seen != asked->hash) {
		first->seen = asked->hash;
		goto none;
	}
	asked->place = first->used ? places[1] : places[0];
	if (!first->used || !other->used)
		return;
	first->used = false;
	other->used = false;
none:
	asked->length = 0;
}

/*
 * Whether the head that begins the bytes is known: `out` and `matches` then say what request_find() finds of it. If not, and if
 * it is to be kept, it stands at KNOWN_ASKED. A function of its own to the verifier, and for the stack.
 */
__noinline int known_find(const struct request_bytes *bytes __arg_nonnull, __u32 length, __u32 how,
			  struct ruling *out __arg_nonnull)
{
	struct known_head *asked = known_at(KNOWN_ASKED), *kept;
	struct match_state *match;
	__u32 zero = 0, way;

	match = bpf_map_lookup_elem(&matches, &zero);
	if (!asked || !match)
		return false;
	asked->length = 0;
	if (how & (RULE_TRUSTED | RULE_UPGRADE) || !known_ask(asked, bytes, length, how, out, match))
		return false;
	for (way = 0; way < KNOWN_WAYS; way++) {
		kept = known_at(known_place(asked->hash, way));
		if (!kept || kept->hash != asked->hash)
			continue;
		if (known_is(kept, asked, bytes)) {
			kept->used = true;
			known_tell(kept, out, match);
			return true;
		}
		/* by rules that are no longer in force */
		asked->place = known_place(asked->hash, way);
		return false;
	}
	known_spare(asked);
	return false;
}

/* What request_find() says of the head that stands at KNOWN_ASKED; some are not kept. */
__noinline int known_said(const struct ruling *out __arg_nonnull)
{
	__u32 at = KNOWN_ASKED;
	struct known_head *asked = bpf_map_lookup_elem(&known_heads, &at);

	if (!asked || !asked->length)
		return 0;
	if (out->unread < FIEF_UNREADS || out->tls || out->skipped || out->head != asked->length) {
		asked->length = 0;
		return 0;
	}
	asked->body = out->body;
	asked->tracked = out->tracked;
	asked->upgrade = out->upgrade;
	asked->connect = out->connect;
	asked->chunked = out->chunked;
	asked->inside = out->inside;
	return 0;
}

/* Keeps it, which begins the bytes, with the rules that were found for it. In two steps, since the stack is short. */
__noinline int known_keep(const struct request_bytes *bytes __arg_nonnull)
{
	__u32 zero = 0, at = KNOWN_ASKED, i;
	const struct known_head *asked = bpf_map_lookup_elem(&known_heads, &at);
	const struct match_state *match = bpf_map_lookup_elem(&matches, &zero);
	struct known_head *kept;

	if (!asked || !match || !asked->length)
		return 0;
	at = asked->place;
	kept = bpf_map_lookup_elem(&known_heads, &at);
	if (!kept)
		return 0;
	/* none while it is written, whatever may come in between */
	*(volatile __u32 *)&kept->length = 0;
	barrier();
	kept->hash = asked->hash;
	kept->listener = asked->listener;
	kept->epoch = asked->epoch;
	kept->slot = asked->slot;
	kept->level = asked->level;
	kept->how = asked->how;
	kept->best = match->best;
	kept->shadow = match->shadow;
	kept->readings = match->read;
	kept->body = asked->body;
	kept->tracked = asked->tracked;
	kept->upgrade = asked->upgrade;
	kept->connect = asked->connect;
	kept->chunked = asked->chunked;
	kept->inside = asked->inside;
	for (i = 0; i < KNOWN_WORDS; i++)
		kept->word[i] = word_at(bytes, i * 8);
	barrier();
	*(volatile __u32 *)&kept->length = asked->length;
	return 0;
}
