/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Filtered listeners: by socket, by address, by prefix of the client, and how many a user has. */
#pragma once

#define FILTER_SETS 16384 /* addresses; of the other tables users can fill no more than as much */

/* What a listening socket filters for; not cloned to what it accepts. */
struct fief_filtered {
	struct fief_filter filter;	  /* masked */
	struct fief_listener_key address; /* once bound */
	__u32 id;			  /* 0: not registered yet */
	__u32 uid;
};

/* The filters of one address. */
struct fief_filter_set {
	__u64 lengths[3]; /* bit n of the 129: prefixes of n bits were used; n counts in IPv6 bits */
	__u32 sockets;	  /* QUOTA_GONE: about to be removed */
	__u32 ipv6_only;
	__u32 rest;			 /* id of the one with a complement filter; 0: none */
	struct fief_filter rest_excepts; /* whom it does not serve */
};

struct fief_filter_key {
	__u8 address[16]; /* of the listener */
	__u8 client[16];  /* masked */
	__u16 port;
	__u8 prefix_length;
	__u8 pad[5];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct fief_filtered);
} filtered_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FILTER_SETS);
	__type(key, struct fief_listener_key);
	__type(value, struct fief_filter_set);
} filter_sets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct fief_filter_key);
	__type(value, __u32);
} filter_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, FILTER_SETS);
	__type(key, __u32);
	__type(value, __u32);
} filter_users SEC(".maps");
