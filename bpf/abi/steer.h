/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Steer: listeners, the classes of their clients, and the listening sockets of those. */
#pragma once

#include "container.h"

#define FIEF_MAX_LISTENERS 1024
#define FIEF_MAX_CLASSES   32 /* client rules that name different containers, per listener */
#define FIEF_NO_CLASS	   0xffffu
#define FIEF_FILTER_SLOT   2 /* listeners and clients that came with FIEF_FILTER; policies have 0 and 1 */

/* A network namespace. Its number is another one's soon after it is gone, its cookie never. */
struct fief_netns {
	__u64 cookie; /* 0: none */
	__u64 inode;
};

/* Policies are built in the slot that is not in force; addresses are IPv6, IPv4 mapped (::ffff:a.b.c.d). */
struct fief_listener_key {
	__u8 address[16]; /* all zero: every local address of both families; ::ffff:0.0.0.0: every IPv4 address */
	__u16 port;	  /* host order */
	__u8 slot;
	__u8 pad[5];
};

struct fief_class {
	struct fief_ref container;
	__u32 priority; /* copy of the container's, for the order of accept */
	__u32 accept;	/* enum fief_accept_order */
};
enum fief_accept_order { FIEF_ACCEPT_BEFORE = 0, FIEF_ACCEPT_AFTER = 1 };

/* How the classes of a listener reach the server. */
enum fief_serve {
	FIEF_SERVE_SHARED = 0, /* one listening socket; classes are for accounting only */
	FIEF_SERVE_SHIM = 1,   /* the listen shim makes one listening socket per class */
	FIEF_SERVE_COPIES = 2, /* one copy of the server per class, told apart by its home */
};

struct fief_listener {
	__u32 index; /* the same address keeps its index from policy to policy: registered sockets are keyed by it */
	__u32 classes;
	__u32 serve; /* enum fief_serve */
	__u32 pad;
	struct fief_class class_[FIEF_MAX_CLASSES];
};

/* At slot * FIEF_MAX_LISTENERS + index: which prefix lengths the client rules of a listener use. */
#define FIEF_PREFIX_LENGTHS 131 /* 129 of them, and room to a multiple of 4 */

struct fief_prefix_lengths {
	__u8 count;
	__u8 length[FIEF_PREFIX_LENGTHS]; /* in use but for 0, the longest first; they count in IPv6 bits */
	__u32 filtered;	   /* 1: a Bloom filter of the prefixes and the regions are in `blooms`; classify.bpf.h */
	__u32 bloom;	   /* its first word */
	__u32 bloom_mask;  /* its words, less one; a power of two */
	__u32 regions;	   /* word of region 0 in `blooms`: which lengths there are around a source */
	__u32 region_mask; /* regions, less one; a power of two */
	__u32 bit_shift;   /* lengths 0 .. (1 << bit_shift) - 1 are those of bit 0, and so on */
	__u32 any;	   /* line of the client record of `::/0`; 0: there is none */
	__u64 everywhere;  /* lengths that are tried whatever the region says */
	__u64 secret;	   /* of the hash of a prefix */
	struct fief_lines prefixes;
};

/*
 * A region is the first bits of an address, those of IPv6 folded to 16. Its word has the lengths of the prefixes that lie
 * in it or around it; those around very many regions are everywhere.
 */
#define FIEF_REGION_IPV4 16
#define FIEF_REGION_IPV6 32

/* What a client rule says: a record of the rule table. */
struct fief_client {
	struct fief_ref container;
	__u16 rule;
	__u16 class_;	  /* index into fief_listener.class_ */
	__u32 bucket;	  /* of its SYNs; 0: no rate */
	__u8 level;	  /* enum fief_level: from which one on the rate is in force */
	__u8 monitor;	  /* the rate is only counted */
	__u16 port_first; /* the rate is for these ports of the clients; last 0: for all */
	__u16 port_last;
	__u8 pad[2];
};

/*
 * Key of the map of class listeners. Several sockets can serve one class (a group of SO_REUSEPORT, an old server
 * beside the new one during a restart, a socket per family): each takes the lowest free turn. A class listener does not hold its
 * container, so the slot can become another one's: what has room of the generation (26 bits) tells them apart.
 *
 *     turn  15              2 1    0     container  31             20 19       0
 *          +-----------------+------+              +-----------------+----------+
 *          | generation >>12 | turn |              |   generation    |   slot   |
 *          +-----------------+------+              +-----------------+----------+
 */
struct fief_class_key {
	__u16 listener; /* FIEF_NO_LISTENER: of a filter, whose id stands for the container, and the turn is 0 */
	__u16 turn;
	__u32 container;
};
#define FIEF_CLASS_TURNS     4
#define FIEF_CLASS_TURN_BITS 2
#define FIEF_CLASS_SLOT_BITS 20
_Static_assert(FIEF_MAX_CONTAINERS <= 1 << FIEF_CLASS_SLOT_BITS, "every slot is a part of a key");
_Static_assert(FIEF_CLASS_TURNS == 1 << FIEF_CLASS_TURN_BITS, "every turn is a part of a key");

struct fief_classes {
	__u32 listener; /* FIEF_NO_LISTENER: the address is not one of the policy, or its classes share one listener */
	__u32 count;
	__u32 self;  /* of which class this socket was made the listener; FIEF_NO_CLASS: none, it is the server's own */
	__u32 epoch; /* of the policy (fief_control): another number, other classes */
	/* of a class listener, whose `count` is 0: its own container is in the first */
	struct fief_class class_[FIEF_MAX_CLASSES];
};

/* Filter of one listening socket: IPv4 mapped; complement: everything but the prefix. */
struct fief_filter {
	__u8 address[16];
	__u8 prefix_length;
	__u8 complement;
	__u8 pad[6];
};
