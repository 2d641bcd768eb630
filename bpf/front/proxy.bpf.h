/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Proxy: the PROXY head, in which a balancer names its client, before the request.
 *
 *   version 1   "PROXY TCP4 192.0.2.1 198.51.100.1 56324 80\r\n", at most 107 bytes
 *   version 2   \r\n\r\n\0\r\nQUIT\n, version and command 1, family 1, length 2, so many bytes
 *
 * Problem: the request after such a head is not at the beginning, and is not ruled.
 * How: from the peers that the policy names the head is skipped and the bytes after it are ruled. From other peers it is
 * unreadable (FIEF_UNREAD_PROXY), because its sender chooses the address in it.
 * Limits: the client rules, the penalties and the rates of a source see the balancer and not the client that it names. Heads of
 * up to PROXY_MOST bytes. At the begin of a connection only.
 */
#pragma once

#include "context.bpf.h"
#include "header.bpf.h"

#define PROXY_LINE_MOST 107
#define PROXY_MOST	4096
#define PROXY_TWO	16 /* bytes of version 2 before those that it counts */

/* What follows a PROXY head, for the parsers. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct request_bytes);
} unwrapped SEC(".maps");

#define PROXY_NEED_MORE -1
#define PROXY_UNREAD	-2

static __always_inline bool is_proxy_one(const struct request_bytes *bytes)
{
	return (word_at(bytes, 0) & ~0ull >> 16) == LETTERS('P', 'R', 'O', 'X', 'Y', ' ', 0, 0);
}

static __always_inline bool is_proxy_two(const struct request_bytes *bytes)
{
	return word_at(bytes, 0) == LETTERS('\r', '\n', '\r', '\n', 0, '\r', '\n', 'Q') &&
	       (__u32)word_at(bytes, 8) == (__u32)LETTERS('U', 'I', 'T', '\n', 0, 0, 0, 0);
}

/* Whether the bytes could become the begin of a head of version 2. */
static __always_inline bool may_be_proxy_two(const struct request_bytes *bytes, __u32 length)
{
	__u64 differs = word_at(bytes, 0) ^ LETTERS('\r', '\n', '\r', '\n', 0, '\r', '\n', 'Q');
	__u64 rest = (word_at(bytes, 8) ^ LETTERS('U', 'I', 'T', '\n', 0, 0, 0, 0)) << 32;

	if (length < 8)
		return !(differs & ~(~0ull << (length & 7) * 8));
	return !differs && !(rest & ~(~0ull << (32 + (length & 3) * 8)));
}

static __always_inline bool is_proxy(const struct request_bytes *bytes, __u32 length)
{
	return (length >= 6 && is_proxy_one(bytes)) || (length >= 12 && is_proxy_two(bytes));
}

/* Whether the policy takes PROXY heads from the packet's source. A function of its own to the verifier. */
__noinline int proxy_trusted(const struct packet *p __arg_nonnull, const struct fief_guard *guard __arg_nonnull)
{
	const __u64 *source = (const __u64 *)p->source;
	__u32 i;

	for (i = loop_from(0); i < guard->proxies && can_loop; i++) {
		const struct fief_proxy *proxy = &guard->proxy[as_index(i) & (FIEF_PROXIES - 1)];
		const __u64 *prefix = (const __u64 *)proxy->address;
		__u32 bits = proxy->bits;
		__u64 high = bits >= 64 ? ~0ull : ~(~0ull >> (bits & 63));
		__u64 low = bits >= 128 ? ~0ull : bits > 64 ? ~(~0ull >> (bits & 63)) : 0;

		i = loop_from(i);
		if (!((source[0] ^ prefix[0]) & bpf_cpu_to_be64(high)) &&
		    !((source[1] ^ prefix[1]) & bpf_cpu_to_be64(low)))
			return true;
	}
	return false;
}

/* How long the PROXY head at the begin is; 0: there is none. Negative: PROXY_*. */
static __always_inline int proxy_length(const struct request_bytes *bytes, __u32 length)
{
	__u32 end;

	if (length >= 6 && is_proxy_one(bytes)) {
		end = find_byte(bytes, 0, length < PROXY_LINE_MOST ? length : PROXY_LINE_MOST, '\n');
		if (end < length && end < PROXY_LINE_MOST)
			return end + 1;
		return length < PROXY_LINE_MOST ? PROXY_NEED_MORE : PROXY_UNREAD;
	}
	if (length < 12)
		return may_be_proxy_two(bytes, length) ? PROXY_NEED_MORE : 0;
	if (!is_proxy_two(bytes))
		return 0;
	if (length < PROXY_TWO)
		return PROXY_NEED_MORE;
	end = PROXY_TWO + (byte_at(bytes, 14) << 8 | byte_at(bytes, 15));
	if (byte_at(bytes, 12) >> 4 != 2 || end > PROXY_MOST)
		return PROXY_UNREAD;
	return end <= length ? (int)end : PROXY_NEED_MORE;
}

/* How long the PROXY head at the begin is; what follows it is put into `unwrapped`. 0: there is none. Or PROXY_*. */
static __noinline int proxy_skip(const struct request_bytes *bytes, __u32 length)
{
	struct request_bytes *to;
	__u32 zero = 0, left;
	int skip;

	skip = proxy_length(bytes, length);
	if (skip <= 0 || skip > PROXY_MOST)
		return skip;
	to = bpf_map_lookup_elem(&unwrapped, &zero);
	left = length - skip;
	if (!to || left > FIEF_HEADER_MAX || (left && bpf_probe_read_kernel(to, left, (const void *)bytes + skip)))
		return PROXY_NEED_MORE;
	return skip;
}
