/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Police: the token buckets of rates, and what is known of sources. */
#pragma once

#include "container.h"

/*
 * A bucket of the policy, known by its number (from 1; 0: none). Of two cache lines, so that what a look needs is
 * in the first.
 *
 * Generic cell rate algorithm, one word for the state so that all CPUs share it by compare-and-swap: `arrival_ns` is the
 * theoretical arrival time of the next cell. A cell conforms if arrival_ns - now <= tolerance_ns, and then moves
 * arrival_ns by interval_ns. A bucket of CPU time moves it by what the container has used since `used_ns` was read, scaled
 * by interval_ns / 1000 (interval_ns: of wall clock per microsecond of CPU).
 */
struct fief_bucket {
	__u64 arrival_ns;
	__u64 interval_ns;
	__u64 tolerance_ns;	   /* (burst - 1) * interval_ns, at least 0 */
	__u64 notice_ns;	   /* when the last drop notice went out */
	__u64 used_ns;		   /* CPU time: usage at the last look */
	__u64 looked_ns;	   /* CPU time: when that was */
	struct fief_ref container; /* CPU time: whose */
	__u32 kind;		   /* enum fief_bucket_kind */
	__u32 refused;		   /* since the last notice */
	__u64 identity;		   /* which rule's it is, from policy to policy */
	__u64 pad[7];
};
enum fief_bucket_kind {
	FIEF_BUCKET_SHARED = 0,	    /* one for all that the rule matches */
	FIEF_BUCKET_PER_SOURCE = 1, /* one for each source: an IPv4 address or an IPv6 /64 (map `source_buckets`) */
	FIEF_BUCKET_CPU = 2,	    /* charged CPU time instead of requests */
};

/*
 * A source that returned a cookie once: proven. Only its own deeds count against it, since what it returned shows that it
 * receives at that address. The first half of the table is for IPv4 addresses, the second for IPv6 /64s.
 */
struct fief_source {
	__u8 address[16];	/* IPv4 mapped, or an IPv6 /64 with the rest zero */
	__u64 since_ns;		/* first cookie that it returned */
	__u64 proven_ns;	/* last one; 0: the entry is free */
	__u64 arrival_ns;	/* its own bucket of connections, as in struct fief_bucket */
	__u64 penalty_until_ns; /* its SYNs are dropped until then */
	__u64 syn_arrival_ns;	/* its bucket of SYNs, which others may have forged */
	__u64 pad;
};

/* A source's own bucket under a rule "per source": of its connections, and one of SYNs, which others may have forged. */
#define FIEF_BUCKET_OF_SYNS (1u << 31)
struct fief_source_bucket {
	__u64 source;	  /* IPv4: the address; IPv6: the /64 */
	__u64 arrival_ns; /* as in struct fief_bucket */
	__u32 bucket;	  /* number in the policy, perhaps with FIEF_BUCKET_OF_SYNS; 0: the entry is free */
	__u16 slot;
	__u16 ipv6;
};

/*
 * Places of a table by sets of FIEF_WAYS. An IPv6 /48 has all of its sources in one set, and at most so many of them, a
 * /56 at most so many: whoever is given many prefixes displaces nobody outside of its /48 by more than that.
 */
#define FIEF_WAYS	 16
#define FIEF_SOURCE_SETS 4096 /* of either family */
#define FIEF_WAYS_OF_48	 8
#define FIEF_WAYS_OF_56	 4

/*
 * SYNs of unproven addresses of one prefix (IPv4 /24, IPv6 /64 and /48) at one listener, for isolation. A place in a table
 * of fixed size: who floods from ever new prefixes makes no entries, and who is isolated is displaced by nobody while it goes on.
 */
struct fief_meter {
	__u8 prefix[16];
	__u64 window_ns;	 /* begin of the window that syns counts */
	__u64 isolated_since_ns; /* begin of the isolation that ends at isolated_until_ns */
	__u64 isolated_until_ns;
	__u32 syns;
	__u16 listener;
	__u8 length; /* of the prefix, in bits of its family */
	__u8 held;   /* of an isolated one: how strongly it holds its place while it is silent */
};
#define FIEF_METERS 65536

/* A prefix that the operator has shut out by name, until a time. The longest around an address counts. */
struct fief_ban_key {
	__u32 bits;	  /* of the prefix, 96 more for IPv4 */
	__u8 address[16]; /* IPv4 mapped */
};
struct fief_ban {
	__u64 until_ns;	    /* the latest end of those around it, with its own */
	__u64 own_until_ns; /* as it was said */
	__u64 since_ns;
};
#define FIEF_BANS 65536
