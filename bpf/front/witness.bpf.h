/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Witness: which sockets with a filter have begun to listen on an address (filter.bpf.h, filtered.bpf.h).
 *
 * Problem: only those that listen refuse clients that no filter names, and their tables say which are bound.
 * How: the address has places, in the table of the prefixes. A socket takes one when it begins to listen, and has it until it is closed. One
 * that listens no more may begin again: it takes another place, if somebody has its own by then.
 * Where all places are taken as a socket is bound, those become free whose sockets listen no more.
 * Limits: a socket that begins to listen and finds none takes over one by its number, since no program of listen() can look at sockets. That
 * was of a socket that this one can stand beside, or of another user's, which listens no more: the kernel lets only one user listen. A socket
 * that takes a place in the moment in which it becomes free loses it.
 */
#pragma once

#include "maps/class_listeners.bpf.h"
#include "maps/filters.bpf.h"

#define WITNESSES      32   /* places of an address */
#define WITNESS_PREFIX 0xff /* beside the filters' entries: no prefix is so long */

static __always_inline void witness_key(struct fief_filter_key *key, const struct fief_listener_key *address,
					__u32 place)
{
	__builtin_memset(key, 0, sizeof(*key));
	__builtin_memcpy(key->address, address->address, 16);
	key->client[0] = place;
	key->port = address->port;
	key->prefix_length = WITNESS_PREFIX;
}

/* A listen() that fails leaves the state for a moment, and no place in the kernel's table. */
static __always_inline bool is_listening(struct bpf_sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	return tcp && *(volatile __u32 *)&sk->state == BPF_TCP_LISTEN && !sk->bound_dev_if &&
	       tcp->inet_conn.icsk_inet.sk.__sk_common.skc_nulls_node.pprev;
}

__noinline int filter_listens(__u32 id)
{
	struct fief_class_key key = {.listener = FIEF_NO_LISTENER, .container = id};
	struct bpf_sock *sk = bpf_map_lookup_elem(&class_listeners, &key);
	bool listens;

	if (!sk)
		return 0;
	listens = is_listening(sk);
	bpf_sk_release(sk);
	return listens;
}

/* Whether the socket has the place that it took last; that place as a key. */
static __always_inline bool witness_stands(const struct fief_filtered *filtered, struct fief_filter_key *key)
{
	__u32 *id;

	if (!filtered->filter.pad[1])
		return false;
	witness_key(key, &filtered->address, filtered->filter.pad[1] - 1);
	id = bpf_map_lookup_elem(&filter_prefixes, key);
	return id && *id == filtered->id;
}

/* The socket listens. */
static __always_inline void witness_note(struct fief_filtered *filtered)
{
	__u32 id = filtered->id, place = id % WITNESSES;
	struct fief_filter_key key;
	int i;

	if (witness_stands(filtered, &key))
		return;
	bpf_for (i, 0, WITNESSES) {
		witness_key(&key, &filtered->address, i);
		if (bpf_map_update_elem(&filter_prefixes, &key, &id, BPF_NOEXIST))
			continue;
		filtered->filter.pad[1] = i + 1;
		return;
	}
	witness_key(&key, &filtered->address, place);
	bpf_map_update_elem(&filter_prefixes, &key, &id, BPF_ANY);
	filtered->filter.pad[1] = place + 1;
}

static __always_inline void witness_forget(const struct fief_filtered *filtered)
{
	struct fief_filter_key key;

	if (witness_stands(filtered, &key))
		bpf_map_delete_elem(&filter_prefixes, &key);
}

/* A socket is bound to the address. */
static __always_inline void witness_room(const struct fief_listener_key *address)
{
	struct fief_filter_key key;
	__u32 ended = 0, *id;
	int i;

	bpf_for (i, 0, WITNESSES) {
		witness_key(&key, address, i);
		id = bpf_map_lookup_elem(&filter_prefixes, &key);
		if (!id) {
			ended = 0; /* there is room */
			break;
		}
		if (!filter_listens(*id))
			ended |= 1u << (i & (WITNESSES - 1));
	}
	bpf_for (i, 0, WITNESSES) {
		if (!(ended >> (i & (WITNESSES - 1)) & 1))
			continue;
		witness_key(&key, address, i);
		bpf_map_delete_elem(&filter_prefixes, &key);
	}
}
