/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Hash: keyed hashes of a field's beginnings and ends, and of the names and shapes made of them.
 *
 *   forward    f = key0; for each byte: f = (f ^ byte) * (key1 | 1)      one pass gives every prefix
 *   backward   the same from the last byte on                            one pass gives every suffix
 *
 * Problem: rules need prefixes of many lengths of one value, and the value must not be read again for each.
 * How: a table for each direction, as long as the rules need. The key is secret, so that nobody can make a request with the
 * hash of another.
 * Limits: PATTERN_MAX bytes from either end. The policy's compiler has a twin of this code; a test compares them.
 */
#pragma once

#include "mix.bpf.h"
#include "request.bpf.h"

#define PATTERN_MAX 255 /* a mask too */

/* Of a name in [at, at + length): a header's folds case, a cookie's does not. */
__noinline __u64 hash_name(const struct request_bytes *bytes __arg_nonnull, __u32 at, __u32 length,
			   const struct front_request *request __arg_nonnull, __u32 kind)
{
	__u64 hash = request->key[0], factor = request->key[1] | 1;
	__u32 i;

	for (i = loop_from(0); i < length && can_loop; i++) {
		__u8 byte = byte_at(bytes, at + i);

		hash = (hash ^ (kind == FIEF_FIELD_HEADER ? small_letter(byte) : byte)) * factor;
	}
	return hash_mix(hash ^ kind);
}

/* Hashes of one field, made as far as they were asked for. */
struct hash_field {
	__u32 field; /* whose they are */
	__u32 forwards;
	__u32 backwards;
	__u32 pad;
	__u64 forward[PATTERN_MAX + 1];
	__u64 backward[PATTERN_MAX + 1];
};

/* Method, path, host and server name have their own; the values share one. */
#define HASH_FIELDS 5

struct hashes {
	struct hash_field of[HASH_FIELDS];
	__u64 shape; /* of the values that a shape looks at */
	__u32 alpn;  /* which of the protocols offered it looks at */
	__u32 pad;
};

static __always_inline struct hash_field *hash_field(struct hashes *hashes, __u32 field)
{
	return &hashes->of[field < REQUEST_ALPN ? field : REQUEST_ALPN];
}

static __always_inline void hashes_forget(struct hashes *hashes)
{
	__u32 i;

	for (i = 0; i <= REQUEST_ALPN; i++)
		hashes->of[i].field = REQUEST_FIELDS;
}

/* Makes the forward hashes of a value up to `length` bytes. */
__noinline int hash_forward(const struct request_bytes *bytes __arg_nonnull,
			    const struct request_span *span __arg_nonnull, struct hash_field *to __arg_nonnull,
			    const struct front_request *request __arg_nonnull, __u32 length)
{
	__u64 factor = request->key[1] | 1, hash;
	__u32 i = to->forwards, at = span->at;
	bool fold = span->known & SPAN_FOLD;

	hash = to->forward[i & PATTERN_MAX];
	for (i = loop_from(i); i < length && can_loop; i++) {
		__u8 byte = byte_at(bytes, at + i);

		hash = (hash ^ (fold ? small_letter(byte) : byte)) * factor;
		to->forward[as_index(i + 1) & PATTERN_MAX] = hash;
	}
	to->forwards = length;
	return 0;
}

/* The backward ones; `at` in the span is its begin here too. */
__noinline int hash_backward(const struct request_bytes *bytes __arg_nonnull,
			     const struct request_span *span __arg_nonnull, struct hash_field *to __arg_nonnull,
			     const struct front_request *request __arg_nonnull, __u32 length)
{
	__u64 factor = request->key[1] | 1, hash;
	__u32 i = to->backwards, last = span->at + span->length - 1;
	bool fold = span->known & SPAN_FOLD;

	hash = to->backward[i & PATTERN_MAX];
	for (i = loop_from(i); i < length && can_loop; i++) {
		__u8 byte = byte_at(bytes, last - i);

		hash = (hash ^ (fold ? small_letter(byte) : byte)) * factor;
		to->backward[as_index(i + 1) & PATTERN_MAX] = hash;
	}
	to->backwards = length;
	return 0;
}

/* Which span a condition is about; `alpn`: which of the protocols offered. */
static __always_inline __u32 condition_field(const struct fief_condition *condition, __u32 alpn)
{
	if (condition->field == FIEF_FIELD_ALPN)
		return REQUEST_ALPN + alpn;
	if (condition->field > FIEF_FIELD_ALPN)
		return REQUEST_VALUE + condition->name;
	return condition->field - 1;
}

/* The hash of what a condition looks at; false: the request does not meet it. */
static __always_inline bool condition_hash(const struct request_bytes *stream, struct front_request *request,
					   struct hashes *hashes, const struct fief_condition *condition, __u64 *hash)
{
	__u32 field = condition_field(condition, hashes->alpn) & (REQUEST_SPANS - 1), length = condition->length;
	const struct request_span *span = &request->span[field];
	struct hash_field *made = hash_field(hashes, field);

	if (!span->known || span->length < condition->least)
		return false;
	if (condition->match == FIEF_MATCH_PRESENT) {
		*hash = request->key[0];
		return true;
	}
	if (condition->match == FIEF_MATCH_EXACT)
		length = span->length;
	if (length > PATTERN_MAX || length > span->length)
		return false;
	if (made->field != field) {
		made->field = field;
		made->forwards = 0;
		made->backwards = 0;
		made->forward[0] = request->key[0];
		made->backward[0] = request->key[0];
	}
	if (condition->match == FIEF_MATCH_SUFFIX) {
		if (length > made->backwards)
			hash_backward(span->place ? &request->text : stream, span, made, request, length);
		*hash = made->backward[length & PATTERN_MAX];
		return true;
	}
	if (length > made->forwards)
		hash_forward(span->place ? &request->text : stream, span, made, request, length);
	*hash = made->forward[length & PATTERN_MAX];
	return true;
}

/* What a condition is, apart from the value: a prefix is never mistaken for an exact value. */
static __always_inline __u64 condition_tag(const struct fief_condition *condition)
{
	return condition->field | condition->match << 8 | condition->name << 16 | (__u64)condition->length << 32;
}

/* Of the values that a shape looks at, into hashes.shape; 0: the request lacks one, or it is too short. */
__noinline int shape_hash(const struct request_bytes *stream __arg_nonnull, struct front_request *request __arg_nonnull,
			  struct hashes *hashes __arg_nonnull, const struct fief_shape *shape __arg_nonnull)
{
	const struct fief_condition *condition;
	__u64 value;
	__u32 i;

	hashes->shape = request->key[1];
	for (i = loop_from(0); i < shape->conditions && can_loop; i++) {
		condition = &shape->condition[as_index(i) & (FIEF_CONDITIONS - 1)];
		if (!condition_hash(stream, request, hashes, condition, &value))
			return 0;
		hashes->shape = hash_mix((hashes->shape ^ value) + condition_tag(condition) * HASH_GOLDEN);
	}
	return 1;
}
