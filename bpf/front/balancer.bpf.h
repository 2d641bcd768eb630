/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Balancer: whose PROXY head (proxy.bpf.h) is skipped, so that the request behind it is ruled.
 *
 * Problem: the request after such a head is not at the beginning, and is not ruled.
 * How: from the peers that the policy names the head is skipped and the bytes after it are ruled. From other peers it is
 * unreadable (FIEF_UNREAD_PROXY), because its sender chooses the address in it.
 * Limits: the client rules, the penalties and the rates of a source see the balancer and not the client that it names.
 */
#pragma once

#include "context.bpf.h"
#include "proxy.bpf.h"

/* The bytes behind a PROXY head, for the parsers. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct request_bytes);
} unwrapped SEC(".maps");

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
