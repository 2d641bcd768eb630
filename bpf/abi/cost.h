/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Cost: which clients CPU time was spent on, while somebody asks. */
#pragma once

/*
 * A client in one word, in the host's order: 0xffff and its IPv4 address, or the first 64 bits of its IPv6 address, for ::/64, which
 * loopback is in, FIEF_COST_LOOPBACK. (Other addresses of ::/8 are nobody's.) A network is a client whose last bits are 0: 8 of an
 * IPv4 address, 16 of an IPv6 one. 0: none is known.
 */
#define FIEF_COST_LOOPBACK 1ull

#define FIEF_COST_WAYS	   8
#define FIEF_COST_SETS	   1024	   /* of clients, and as many of networks behind them */
#define FIEF_COST_ROOM_NS  1000000 /* of one client, that a CPU gathers before it is told */

/* one client, or one network */
struct fief_cost {
	__u64 client;	  /* 0: nobody has the place */
	__u64 ns;	  /* charged while it worked for this client, since it has the place */
	__u64 receive_ns; /* of it, for packets */
	__u64 since_ns;	  /* CLOCK_MONOTONIC */
	__u64 rank_ns;	  /* what it has had lately at most; decides who leaves (core/costliest.h) */
	__u32 rank_at;	  /* in steps of rank_ns halving */
	__u32 pad;
};

/* Places that a hash chooses among. A reader finds `done`, which it reads first, as large as `begun`, which it reads last. */
struct fief_cost_set {
	__u64 done;
	__u32 lock;
	__u32 pad;
	__u64 forgotten_ns; /* of those who had a place once */
	struct fief_cost ways[FIEF_COST_WAYS];
	__u64 begun;
};

/* whether anybody asks */
struct fief_cost_control {
	__u64 until_ns; /* CLOCK_MONOTONIC; a reader that lives moves it on; 0: nobody */
	__u64 since_ns; /* counted since */
};

/* of one client, until its set is told */
struct fief_cost_gather {
	__u64 client;
	__u64 ns;
	__u64 from_ns; /* CLOCK_MONOTONIC */
};

/* of one CPU: what it gathers, and the search for a place */
struct fief_cost_room {
	struct fief_cost_gather thread; /* by the running thread */
	struct fief_cost_gather packet; /* for packets */
	__u64 received;			/* client of the packet that is received */
	__u64 unplaced_ns[2]; /* of clients, of networks: the set was another's all the time, or a switch was missed */
	__u64 client;	      /* of whom a place is searched for */
	__u64 now;
	__u64 most_ns[2]; /* of those in the set who had most: they stay */
	__u64 least_ns;
	__u32 most[2];
	__u32 least;
	__u32 way;
	__u32 found;
	__u32 telling; /* a set is told: what interrupts that tells none */
};
