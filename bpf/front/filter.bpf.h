/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Filter: several listening sockets on one address and port, each for some clients (Resource Containers, 4.8).
 *
 *   socket()  setsockopt(SO_REUSEPORT), setsockopt(FIEF_FILTER)   the socket remembers its filter
 *   bind(A)   the kernel decides as usual who may; then the filter enters the tables of A
 *   listen()  the socket enters the map of class listeners, and is noted as one who listens on A
 *   close()   removes all of it
 *
 * Problem: an unprivileged server must be able to divide its clients, and must get no connection that was not its own.
 * How: the sockets are a group of SO_REUSEPORT, which the kernel lets only one user join. Which of them a connection reaches says
 * filtered.bpf.h.
 * Limits: an address of the policy belongs to the policy. In the group of a filter a socket without one gets no connections.
 * Each address has one complement at most. Filters work only where connections are steered (is_steered), and not for sockets of one
 * interface.
 */
#pragma once

#include "bits.bpf.h"
#include "register.bpf.h"
#include "steer.bpf.h"
#include "maps/filters.bpf.h"
#include "quota.bpf.h"
#include "witness.bpf.h"

#define FILTERS_PER_USER 1024
#define FILTERS_OF_USERS (FILTER_SETS / 8 * 7)

/* Numbers count from 1; one that is used again after 2^32 listeners meets no socket. 0: there are no controls. */
static __always_inline __u32 filter_number(void)
{
	struct fief_control *control = control_get();

	return control ? __sync_fetch_and_add(&control->last_filter, 1) + 1 : 0;
}

/* ---- setsockopt ---- */

static __always_inline int filter_take(struct fief_filtered *filtered)
{
	int err = quota_take(&filter_users, filtered->uid, FILTERS_PER_USER);

	if (err)
		return err;
	err = quota_take_all(&filter_users, filtered->uid, FILTERS_OF_USERS);
	if (err)
		quota_give(&filter_users, filtered->uid);
	filtered->filter.pad[0] = !err;
	return err;
}

/* Those that an older version let in were not counted among all. */
static __always_inline void filter_give(const struct fief_filtered *filtered)
{
	if (filtered->filter.pad[0])
		quota_give_all(&filter_users, filtered->uid);
	quota_give(&filter_users, filtered->uid);
}

static __always_inline int filter_ask(struct bpf_sockopt *ctx)
{
	struct fief_filtered fresh = {};
	struct fief_filter *filter = ctx->optval;
	struct bpf_sock *sk = ctx->sk;
	int err;

	if (!sk || sk->type != SOCK_STREAM || sk->protocol != IPPROTO_TCP || sk->src_port)
		return refuse(-EINVAL);
	if ((void *)(filter + 1) > ctx->optval_end || filter->prefix_length > 128)
		return refuse(-EINVAL);
	if (filter->complement && !filter->prefix_length)
		return refuse(-EINVAL);
	if (bpf_sk_storage_get(&filtered_sockets, sk, 0, 0))
		return refuse(-EBUSY);
	mask_address(fresh.filter.address, filter->address, filter->prefix_length);
	fresh.filter.prefix_length = filter->prefix_length;
	fresh.filter.complement = !!filter->complement;
	fresh.uid = (__u32)bpf_get_current_uid_gid();
	err = filter_take(&fresh);
	if (err)
		return refuse(err);
	if (!bpf_sk_storage_get(&filtered_sockets, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE)) {
		filter_give(&fresh);
		return refuse(-ENOMEM);
	}
	ctx->optlen = -1;
	return ALLOW;
}

/* ---- bind ---- */

static __always_inline bool is_reuseport(struct bpf_sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	return tcp && BPF_CORE_READ_BITFIELD(&tcp->inet_conn.icsk_inet.sk.__sk_common, skc_reuseport);
}

/* Before the kernel decides. The address stays what the server named. */
static __always_inline int filter_bind(struct bpf_sock_addr *ctx, const __u32 *address)
{
	struct fief_filtered *filtered;
	struct bpf_sock *sk = ctx->sk;
	__u16 port = bpf_ntohs(ctx->user_port);

	if (!sk || ctx->protocol != IPPROTO_TCP)
		return 0;
	filtered = bpf_sk_storage_get(&filtered_sockets, sk, 0, 0);
	if (!filtered)
		return 0;
	if (filtered->id || !port || !is_reuseport(sk) || sk->bound_dev_if)
		return -EINVAL; /* what is registered is of this address until the socket ends */
	if (!is_steered(sk))
		return -EADDRNOTAVAIL;
	if (find_listener(policy_slot(), address, port))
		return -EADDRINUSE;
	__builtin_memcpy(filtered->address.address, address, 16);
	filtered->address.port = port;
	filtered->address.slot = FIEF_FILTER_SLOT;
	filtered->address.pad[0] = is_ipv6_only(sk);
	witness_room(&filtered->address);
	return 0;
}

static __always_inline struct fief_filter_set *set_hold(struct fief_listener_key *key, __u32 ipv6_only)
{
	struct fief_filter_set fresh = {.ipv6_only = ipv6_only}, *set;

	set = bpf_map_lookup_elem(&filter_sets, key);
	if (!set) {
		bpf_map_update_elem(&filter_sets, key, &fresh, BPF_NOEXIST);
		set = bpf_map_lookup_elem(&filter_sets, key);
	}
	/* where the last one is just closing trying again helps */
	return set && entry_take(&filter_sets, key, set, &set->sockets) >= 0 ? set : NULL;
}

static __always_inline void set_put(struct fief_listener_key *key, struct fief_filter_set *set)
{
	entry_give(&filter_sets, key, &set->sockets, NULL);
}

static __always_inline void filter_key(struct fief_filter_key *key, struct fief_filtered *filtered)
{
	__builtin_memcpy(key->address, filtered->address.address, 16);
	__builtin_memcpy(key->client, filtered->filter.address, 16);
	key->port = filtered->address.port;
	key->prefix_length = filtered->filter.prefix_length;
}

/* Whether it is the one that was asked for: that bind() may have failed, and this one be of a class listener. */
static __always_inline bool is_asked(const struct fief_listener_key *asked, const __u32 *address, __u32 port)
{
	return asked->port == port && !__builtin_memcmp(asked->address, address, 16);
}

/* The kernel has given the address to the socket. */
static __always_inline int filter_register(struct bpf_sock *ctx, const __u32 *given)
{
	struct fief_filtered *filtered = bpf_sk_storage_get(&filtered_sockets, ctx, 0, 0);
	struct fief_listener_key address;
	struct fief_filter_key key = {};
	struct fief_filter_set *set;
	__u32 id, length;

	if (!filtered || !filtered->address.port || filtered->id || !is_asked(&filtered->address, given, ctx->src_port))
		return ALLOW;
	address = filtered->address;
	address.pad[0] = 0;
	set = set_hold(&address, filtered->address.pad[0]);
	if (!set)
		return refuse(-EADDRINUSE);
	id = filter_number();
	if (!id) {
		set_put(&address, set);
		return refuse(-ESTALE);
	}
	if (filtered->filter.complement) {
		if (__sync_val_compare_and_swap(&set->rest, 0, id)) {
			set_put(&address, set);
			return refuse(-EADDRINUSE);
		}
		set->rest_excepts = filtered->filter;
	} else {
		filter_key(&key, filtered);
		if (bpf_map_update_elem(&filter_prefixes, &key, &id, BPF_NOEXIST)) {
			set_put(&address, set);
			return refuse(-EADDRINUSE);
		}
		length = filtered->filter.prefix_length;
		if (length <= 128)
			__sync_fetch_and_or(&set->lengths[length / 64 % 3], 1ull << (length & 63));
	}
	filtered->id = id;
	return ALLOW;
}

/* ---- listen and close ---- */

static __always_inline void filter_listen(struct bpf_sock_ops *ctx)
{
	struct fief_class_key key = {.listener = FIEF_NO_LISTENER};
	struct bpf_sock *sk = ctx->sk;
	struct fief_filtered *filtered;

	if (!sk)
		return;
	filtered = bpf_sk_storage_get(&filtered_sockets, sk, 0, 0);
	if (!filtered || !filtered->id)
		return;
	key.container = filtered->id;
	if (bpf_sock_hash_update(ctx, &class_listeners, &key, BPF_ANY))
		count_error(FIEF_ERR_TABLE_FULL);
	else
		witness_note(filtered);
}

static __always_inline int filter_release(struct bpf_sock *ctx)
{
	struct fief_filtered *filtered = bpf_sk_storage_get(&filtered_sockets, ctx, 0, 0);
	struct fief_filter_key key = {};
	struct fief_listener_key address;
	struct fief_filter_set *set;

	if (!filtered)
		return ALLOW;
	filter_give(filtered);
	if (!filtered->id)
		return ALLOW;
	witness_forget(filtered);
	address = filtered->address;
	address.pad[0] = 0;
	set = bpf_map_lookup_elem(&filter_sets, &address);
	if (!set)
		return ALLOW;
	if (filtered->filter.complement) {
		__sync_val_compare_and_swap(&set->rest, filtered->id, 0);
	} else {
		filter_key(&key, filtered);
		bpf_map_delete_elem(&filter_prefixes, &key);
	}
	filtered->id = 0;
	set_put(&address, set);
	return ALLOW;
}
