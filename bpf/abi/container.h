/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Containers: ids, attributes, usage, and the record of the table. */
#pragma once

/* Ids below FIEF_FIRST_ID are always there; they are containers of their own so that every nanosecond has a name. */
enum fief_known_id {
	FIEF_ROOT = 0,	 /* threads that nobody manages */
	FIEF_SYSTEM = 1, /* work that belongs to nobody: kernel threads, timers, packets for nobody we know */
	FIEF_IDLE = 2,
	FIEF_STEAL = 3,	       /* the hypervisor ran somebody else */
	FIEF_UNATTRIBUTED = 4, /* sockets without a container; a gap of an upgrade; what ran unseen */
	FIEF_RETIRED = 5,      /* what destroyed containers used and did not pass up to a living parent */
	FIEF_USERS = 6,	       /* "user": parent of user/<uid>, the containers of unprivileged users without a unit */
	FIEF_FIRST_ID = 8,
};

#define FIEF_DEFAULT_CONTAINERS 65536
#define FIEF_MAX_CONTAINERS	1048576
#define FIEF_MAX_DEPTH		16 /* levels below the root */
#define FIEF_NAME_LEN		32 /* one path component with its final NUL */
#define FIEF_NO_ID		0xffffffffu

/* A container is named by slot and generation together; a reference whose generation is not the slot's is stale. */
struct fief_ref {
	__u32 id;
	__u32 generation;
};

enum fief_container_state {
	FIEF_FREE = 0,
	FIEF_ALIVE = 1,	 /* has a holder: a descriptor, a bound thread, a labelled socket or the policy */
	FIEF_ENDED = 2,	 /* no holder left; the slot stays for its children's chain of limits */
	FIEF_ORPHAN = 3, /* only as an answer: alive, and its parent has ended */
};

/* Counters of one container. The time of a thread is split into user and system by the kernel's own tick samples. */
struct fief_usage {
	__u64 thread_ns;  /* in threads bound here, user mode and system calls, without interrupts on top */
	__u64 receive_ns; /* protocol work on packets for sockets of this container */
	__u64 user_ns;	  /* tick samples of thread_ns in user mode */
	__u64 system_ns;  /* tick samples of thread_ns in kernel mode */
	__u64 packets_in;
	__u64 bytes_in;
	__u64 packets_out;
	__u64 bytes_out;
	__u64 disk_read_bytes;
	__u64 disk_write_bytes;
	__u64 minor_faults;
	__u64 major_faults;
	__u64 syns_seen;
	__u64 syns_dropped;
	__u64 spare;
	__u64 accepts; /* connections labelled with this container */
};
#define FIEF_USAGE_COUNTERS 16

/* Attribute numbers for FIEF_SET_ATTRIBUTE; struct fief_attributes holds them all. */
enum fief_attribute {
	FIEF_ATTR_SHARE = 1,	/* guaranteed CPU, parts per million of the machine */
	FIEF_ATTR_LIMIT = 2,	/* most CPU, parts per million of the machine; 0: none */
	FIEF_ATTR_WEIGHT = 3,	/* 1..10000, default 100 */
	FIEF_ATTR_PRIORITY = 4, /* 0: only when nothing else wants the CPU; default 100; at most 65535 */
	FIEF_ATTR_MEMORY_MAX = 5,
	FIEF_ATTR_NET_WEIGHT = 6,
	FIEF_ATTR_NET_MAX = 7, /* bits per second; 0: none */
	FIEF_ATTR_PASS_UP = 8, /* at the end, add the usage to the parent's */
	FIEF_ATTR_DESCENDANTS_MAX = 9,
	FIEF_ATTR_POLICY = 10, /* enum fief_policy */
	FIEF_ATTR_PERIOD = 11, /* of FIEF_POLICY_EDF, in microseconds; 0: 100,000 */
	FIEF_ATTR_BUDGET = 12, /* of it, at most the period; 0: 10,000 */
};

/* Which of a container's own threads goes first (bpf/sched/policies). */
enum fief_policy {
	FIEF_POLICY_FAIR = 0,
	FIEF_POLICY_FIFO = 1,
	FIEF_POLICY_RR = 2,
	FIEF_POLICY_EDF = 3,
	FIEF_POLICY_LOTTERY = 4,
};
#define FIEF_POLICIES 5
/* And a number less than FIEF_OBJECT_SETS (abi/turn.h): of an object, which only operators give. */
#define FIEF_POLICY_OBJECT 16
#define FIEF_PERIOD_LEAST  1000 /* microseconds */
#define FIEF_PERIOD_MOST   1000000

struct fief_attributes {
	__u32 share_ppm;
	__u32 limit_ppm;
	__u32 weight;
	__u32 priority;
	__u64 memory_max;
	__u64 net_max;
	__u32 net_weight;
	__u32 pass_up;
	__u32 descendants_max; /* containers below this one; 0: none but the quota of the user */
	__u32 reserved_ppm;    /* read only: sum of the children's shares */
	__u32 named;	       /* read only: the policy of this slot names it */
	__u32 programs;	       /* of a policy: id of the container for what servers start for this one; 0: none */
	__u32 policy;	       /* enum fief_policy */
	__u32 period_us;
	__u32 budget_us;
	__u32 pad;
};

/*
 * refs, one word so that the last holder and the last use of the slot are each seen exactly once:
 *
 *      63            42 41           20 19            0
 *     +----------------+---------------+---------------+
 *     |    children    | threads bound |  descriptors, |
 *     |                |   from home   |  labels, home,|
 *     |                |               |     policy    |
 *     +----------------+---------------+---------------+
 *                       \______ holders: 0 ends it ____/
 *
 * Threads bound: also what CPUs keep of those that left, while there is a descriptor (core/kept.bpf.h).
 */
#define FIEF_HANDLE	  1ull
#define FIEF_THREAD	  (1ull << 20)
#define FIEF_CHILD	  (1ull << 42)
#define FIEF_HANDLES_MASK (FIEF_THREAD - 1)
#define FIEF_HOLDERS_MASK (FIEF_CHILD - 1)
#define FIEF_HANDLES_MAX  (FIEF_HANDLES_MASK - 4096) /* room for those that pass the check at the same time */

struct fief_container {
	struct fief_ref parent; /* kept after the parent's end: the chain of limits goes through ended slots */
	__u32 generation;
	__u32 state;	 /* enum fief_container_state */
	__u32 height;	 /* most levels that there were below it */
	__u32 owner_uid; /* whose quota it counts against, or FIEF_OWNER_* */
	__u32 flags;	 /* FIEF_CONTAINER_* */
	__u32 descendants;
	__u32 reserved_ppm; /* by children that applications made; a policy's own are in its attributes */
	__u32 cached;	    /* which CPUs (number modulo 32) may cache usage of it */
	__u32 sockets;	    /* labelled sockets open now */
	__u32 files;	    /* labelled files */
	__u64 created_ns;
	__u32 flushes_begun; /* of a CPU's cache into usage; equal when none is under way */
	__u32 flushes_done;
	/* Of a container that a policy named: by policy slot, so that a policy is swapped as a whole; else the first. */
	struct fief_attributes attributes[2];
	__u64 refs;    /* apart from what every bind reads: it is written by every CPU */
	__u64 members; /* threads bound here, FIEF_MEMBER_* each; as of when they last left a CPU */
	struct fief_usage usage;
	/* Use of its part of the CPU since the scheduler, which is on, last looked: of the container itself, and with all below it. */
	__u64 charged_own_ns;
	__u64 charged_ns;
	__s64 unlimited_ns; /* of charged_ns, what does not count against limits (core/served.bpf.h) */
	/* core/excess.bpf.h: when its receive work is within these again. */
	__u64 received_half_ns; /* half of its limit, */
	__u64 received_all_ns;	/* all of it, */
	__u64 received_part_ns; /* its part of its parent's half, */
	__u64 received_own_ns;	/* and of its own half what is for itself */
	__u64 held_ns;		/* when the scheduler last passed it over, since its limit was used up */
	__u64 discarded;	/* packets of it, since receive work exceeded a limit */
	char name[FIEF_NAME_LEN];
};

#define FIEF_MEMBER_THREAD     1ull
#define FIEF_MEMBER_PROCESS    (1ull << 32) /* beside it: the thread leads its group */

#define FIEF_CONTAINER_POLICY  1u  /* named by a policy, which holds it */
#define FIEF_CONTAINER_UNIT    2u  /* home of a managed unit */
#define FIEF_CONTAINER_USER    4u  /* user/<uid> */
#define FIEF_CONTAINER_ROOT    8u  /* the root, of which a policy sets what its children have of it */
#define FIEF_CONTAINER_FOLDER  16u /* made by its owner, a user, as a folder of `fief mount` */
#define FIEF_CONTAINER_PROGRAM 32u /* of its owner's program, which was started for a client (core/program.bpf.h) */

/* They have one set of attributes for each policy slot. */
#define FIEF_CONTAINER_SLOTS (FIEF_CONTAINER_POLICY | FIEF_CONTAINER_ROOT)
