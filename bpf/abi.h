/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Every record and constant that the kernel side and user space share: fixed width, no includes.
 * The includer brings __u8 .. __u64 and __s64. Rust gets it through bindgen (crate fief-bpf and, for the part
 * that applications need, crate fief). A record that both sides touch is described here and nowhere else.
 */
#ifndef FIEF_ABI_H
#define FIEF_ABI_H

#define FIEF_ABI_VERSION 2

/* ---- containers -------------------------------------------------------------------------------------------
 */

/* Ids below FIEF_FIRST_ID are always there; they are containers of their own so that every nanosecond has a
 * name. */
enum fief_known_id {
	FIEF_ROOT = 0,	 /* threads that nobody manages */
	FIEF_SYSTEM = 1, /* work that belongs to nobody: kernel threads, timers, packets for nobody we know */
	FIEF_IDLE = 2,
	FIEF_STEAL = 3,	       /* the hypervisor ran somebody else */
	FIEF_UNATTRIBUTED = 4, /* work on sockets that carry no container; time in a gap of an upgrade */
	FIEF_RETIRED = 5,      /* what destroyed containers used and did not pass up to a living parent */
	FIEF_USERS = 6,	       /* "user": parent of user/<uid>, the containers of unprivileged users without a unit */
	FIEF_FIRST_ID = 8,
};

#define FIEF_DEFAULT_CONTAINERS 65536
#define FIEF_MAX_CONTAINERS	1048576
#define FIEF_MAX_DEPTH		16 /* levels below the root */
#define FIEF_MAX_CPUS		512
#define FIEF_NAME_LEN		32 /* one path component with its final NUL */
#define FIEF_NO_ID		0xffffffffu

/* A container is named by slot and generation together; a reference whose generation is not the slot's is
 * stale. */
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

/* Counters of one container. The time of a thread is split into user and system by the kernel's own tick
 * samples. */
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
	__u64 binds;
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
};

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
 */
#define FIEF_HANDLE	  1ull
#define FIEF_THREAD	  (1ull << 20)
#define FIEF_CHILD	  (1ull << 42)
#define FIEF_HANDLES_MASK (FIEF_THREAD - 1)
#define FIEF_HOLDERS_MASK (FIEF_CHILD - 1)
#define FIEF_HANDLES_MAX                                                                                               \
	(FIEF_HANDLES_MASK - 4096) /* room for those that pass the check at the same time                    \
				    */

struct fief_container {
	struct fief_ref parent; /* kept after the parent's end: the chain of limits goes through ended slots */
	__u32 generation;
	__u32 state;	 /* enum fief_container_state */
	__u32 height;	 /* most levels that there were below it */
	__u32 owner_uid; /* whose quota it counts against */
	__u32 flags;	 /* FIEF_CONTAINER_* */
	__u32 descendants;
	__u32 reserved_ppm; /* by children that applications made; a policy's own are in its attributes */
	__u32 cached;	    /* which CPUs (number modulo 32) may cache usage of it */
	__u32 sockets;	    /* labelled sockets open now */
	__u32 pad;
	__u64 created_ns;
	__u32 flushes_begun; /* of a CPU's cache into usage; equal when none is under way */
	__u32 flushes_done;
	/* Of a container that a policy named: by policy slot, so that a policy is swapped as a whole; else
	 * the first. */
	struct fief_attributes attributes[2];
	__u64 refs;    /* apart from what every bind reads: it is written by every CPU */
	__u64 members; /* threads bound here, FIEF_MEMBER_* each; as of when they last left a CPU */
	struct fief_usage usage;
	char name[FIEF_NAME_LEN];
};

#define FIEF_MEMBER_THREAD    1ull
#define FIEF_MEMBER_PROCESS   (1ull << 32) /* beside it: the thread leads its group */

#define FIEF_CONTAINER_POLICY 1u /* named by a policy, which holds it */
#define FIEF_CONTAINER_UNIT   2u /* home of a managed unit */
#define FIEF_CONTAINER_USER   4u /* user/<uid> */

/* What a descriptor's socket stores; never cloned, so that an accepted socket is never mistaken for a
 * container. */
struct fief_descriptor {
	struct fief_ref container;
	__u32 rights;
	__u32 pad;
};

/* ---- descriptors: socket options at our own level
 * ---------------------------------------------------------- */

#define FIEF_SOL 0x46696566

enum fief_option {
	/* setsockopt */
	FIEF_CREATE = 1, /* unbound AF_INET datagram socket: a child of the caller's container; fief_create or empty */
	FIEF_BIND = 2,	 /* bind the calling thread (no value), or struct fief_bind */
	FIEF_UNBIND = 3, /* the calling thread returns home; any container descriptor */
	FIEF_STAGE = 4,	 /* remember this container for the thread's next FIEF_DUP */
	FIEF_DUP = 5,	 /* fresh socket: becomes a second descriptor of the staged container, same rights */
	FIEF_OPEN_BINDING = 6,	/* fresh socket: becomes a descriptor of the thread's container, rights use and read */
	FIEF_ADOPT = 7,		/* this container becomes a child of the caller's container */
	FIEF_SET_ATTRIBUTE = 8, /* struct fief_set_attribute */
	FIEF_DROP_RIGHTS = 9,	/* __u32: rights that stay */
	FIEF_ASSIGN = 10,	/* on any socket: label it with the caller's container */
	FIEF_SET_NAME = 11,	/* up to FIEF_NAME_LEN - 1 bytes, no '/' */
	FIEF_CLASS = 12,	/* on an unbound TCP socket: listener of the n-th class, __u32 (the listen shim) */
	FIEF_FILTER = 13,	/* on an unbound TCP socket: struct fief_filter, labelled with the caller's container */
	FIEF_UNASSIGN = 14,	/* on any socket: remove its label */
	FIEF_ENTER = 15,	/* bind the calling thread and remember what it was bound to, FIEF_NEST deep */
	FIEF_LEAVE = 16,	/* back to what FIEF_ENTER remembered; any container descriptor */
	FIEF_RENEW =
	    17, /* container descriptor: lets go of its container and becomes one of a new child, as FIEF_CREATE */
	/* getsockopt */
	FIEF_USAGE = 32,      /* struct fief_usage, with the open stint of running threads */
	FIEF_ATTRIBUTES = 33, /* struct fief_attributes */
	FIEF_INFO = 34,	      /* struct fief_info */
	FIEF_BINDING = 35,    /* struct fief_ref of the calling thread; any socket of a managed unit */
	FIEF_CLASSES = 36,    /* on a listening or bound TCP socket: struct fief_classes */
	FIEF_LABEL = 37,      /* on any socket: struct fief_ref of its label */
	FIEF_DROPS = 38,      /* on a listening TCP socket: struct fief_drops */
};

/* Rights of a descriptor and of a binding made through it. */
#define FIEF_RIGHT_USE	      1u /* bind to it, assign to it */
#define FIEF_RIGHT_READ	      2u /* usage, attributes */
#define FIEF_RIGHT_CHILDREN   4u /* make and adopt children */
#define FIEF_RIGHT_ADMINISTER 8u /* attributes, name, adoption of itself */
#define FIEF_RIGHTS_ALL	      15u

struct fief_create {
	__u32 flags;  /* FIEF_CREATE_* */
	__u32 weight; /* 0: default */
};
#define FIEF_CREATE_PASS_UP 1u

struct fief_bind {
	__s32 thread; /* as the caller's pid namespace counts */
	__u32 pad;
};

struct fief_set_attribute {
	__u32 attribute;
	__u32 pad;
	__u64 value;
};

struct fief_info {
	struct fief_ref self;
	struct fief_ref parent; /* id FIEF_NO_ID: no parent */
	__u32 state;
	__u32 rights;
	__u32 depth;
	__u32 holders;
	__u32 children;
	__u32 threads;
	__u32 processes;
	__u32 sockets;
	char name[FIEF_NAME_LEN];
};

/* ---- labels: what a socket belongs to
 * ---------------------------------------------------------------------- */

#define FIEF_NO_LISTENER 0xffffu

struct fief_label {
	struct fief_ref container;
	__u16 listener; /* index in the policy, FIEF_NO_LISTENER: none */
	__u16 rule;	/* which client rule matched */
	__u32 flags;	/* FIEF_LABEL_* */
	__u64 owner;	/* the socket whose label counts and holds; a clone's differs */
	__u32 drops;	/* listeners: sk_drops at the last look */
	__u32 next;	/* connections: sequence number at which the next request begins (FIEF_LABEL_TRACKED) */
};
#define FIEF_LABEL_CLASS_LISTENER 1u  /* hidden listener of one class: clones need no classification */
#define FIEF_LABEL_LISTENER	  2u  /* listener of a policy's address: classify by the remote address */
#define FIEF_LABEL_FRESH	  64u /* accepted by TCP; nobody has received from it yet */
#define FIEF_LABEL_COUNTED	  4u  /* counted in the container's sockets */
#define FIEF_LABEL_HOLDS	  8u  /* holds a reference (explicit ASSIGN) */
#define FIEF_LABEL_BINDING                                                                                             \
	16u			/* asked to be a class listener; bind() decides where, listen() registers it   \
			       */
#define FIEF_LABEL_FILTER  32u	/* filtered listener */
#define FIEF_LABEL_TRACKED 128u /* where its next request begins is known */

/* ---- steer: listeners and client classes
 * -------------------------------------------------------------------- */

#define FIEF_MAX_LISTENERS 1024
#define FIEF_MAX_CLASSES   32 /* client rules that name different containers, per listener */
#define FIEF_NO_CLASS	   0xffffu
#define FIEF_FILTER_SLOT   2 /* listeners and clients that came with FIEF_FILTER; policies have 0 and 1 */

/* Policies are built in the slot that is not in force; addresses are IPv6, IPv4 mapped (::ffff:a.b.c.d). */
struct fief_listener_key {
	__u8 address[16]; /* all zero: every local address of both families; ::ffff:0.0.0.0: every IPv4
			     address */
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
	__u32 index; /* the same address keeps its index from policy to policy: registered sockets are keyed
			by it */
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
	__u32 filtered;			  /* 1: there is a Bloom filter of the prefixes in `blooms`; classify.bpf.h */
	__u32 bloom;			  /* its first word */
	__u32 bloom_mask;		  /* its words, less one; a power of two */
	__u32 first;			  /* line of the slot's client table at which those of the prefixes begin */
	__u32 lines;			  /* lines that a prefix can belong to; those that did not fit come behind */
	__u32 any;			  /* line of the client record of `::/0`; 0: there is none */
};

/*
 * A line of a client table, which a policy slot has one of: up to three prefixes, or one client record. A prefix belongs
 * to one line, by its hash; where that is full it stands in the next that is not. Line 0 is empty.
 */
#define FIEF_LINE_PREFIXES 3

struct fief_prefix_line {
	__u64 address[FIEF_LINE_PREFIXES][2]; /* masked, in network order */
	__u32 client[FIEF_LINE_PREFIXES];     /* line of the client record */
	__u8 length[FIEF_LINE_PREFIXES];      /* 1..128; 0: free */
	__u8 more;			      /* 1: a prefix that passed here in search of room stands further on */
};

/* What a client rule says, at the beginning of a line. */
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
 * Key of the map of class listeners. Several sockets can serve one class (a group of SO_REUSEPORT, an old
 * server beside the new one during a restart, a socket per family): each takes the lowest free turn.
 */
struct fief_class_key {
	__u16 listener;
	__u16 turn; /* below FIEF_CLASS_TURNS */
	__u32 container;
};
#define FIEF_CLASS_TURNS 4

struct fief_classes {
	__u32 listener; /* FIEF_NO_LISTENER: the address is not one of the policy, or its classes share one
			   listener */
	__u32 count;
	__u32 self; /* which class this socket is the listener of; FIEF_NO_CLASS: none, it is the server's own
		     */
	__u32 pad;
	struct fief_class class_[FIEF_MAX_CLASSES];
};

/* Filter of one listening socket (R9): IPv4 mapped; complement: everything but the prefix. */
struct fief_filter {
	__u8 address[16];
	__u8 prefix_length;
	__u8 complement;
	__u8 pad[6];
};

/* ---- police and admit: what happens to a connection before a server sees it
 * ---------------------------------------------------------------------- */

/* Why a verdict fell: one closed list, counted by container, listener and rule (struct fief_verdict_key). */
enum fief_reason {
	FIEF_REASON_NONE,
	/* police: a SYN at a guarded listener */
	FIEF_SYN_TAKEN,	   /* answered, or left to the kernel to answer */
	FIEF_SYN_RATE,	   /* above the rate of its filter */
	FIEF_SYN_UNPROVEN, /* above what is answered to addresses that never returned a cookie */
	FIEF_SYN_ISOLATED, /* its source, or the prefix around it, sends too many */
	FIEF_SYN_PENALTY,  /* its source was refused a request a short time ago */
	FIEF_SYN_QUEUE,	   /* the listen queue of its class is full */
	/* admit: the handshake */
	FIEF_ACK_BAD,	/* no socket and no valid cookie */
	FIEF_ACK_LIMIT, /* too many of those: not even looked at */
	FIEF_SHAPE,	/* options, extension headers, fragments, tags or lengths that the gate cannot read */
	/* admit: a request */
	FIEF_REQUEST_RULE,	/* a rule let it pass, perhaps into another container */
	FIEF_REQUEST_CLIENT,	/* no rule matched: the class of its client */
	FIEF_REQUEST_REFUSED,	/* a rule refuses it */
	FIEF_REQUEST_RATE,	/* above the rule's requests per second */
	FIEF_REQUEST_CPU,	/* above the rule's CPU time per second */
	FIEF_REQUEST_MALFORMED, /* neither HTTP nor TLS: the class of its client */
	FIEF_REQUEST_TOO_LONG,	/* no end of the header within FIEF_HEADER_MAX: the class of its client */
	FIEF_REQUEST_NO_ROOM,	/* too many unfinished headers at once: dropped, the client sends again */
	FIEF_REQUEST_UNTRACKED, /* a later request whose begin is unknown (chunked body before it): not ruled */
	/* receive in a thread of the class */
	FIEF_LANE_FULL, /* the queue of the thread is full: discarded before any protocol work */
	FIEF_REASONS
};

/* From which level of overload on a control is in force (Voigt et al. 2001, section 3). */
enum fief_level { FIEF_ALWAYS = 0, FIEF_BUSY = 1, FIEF_OVERLOADED = 2 };

/* What becomes of a refused request. */
enum fief_refusal { FIEF_REFUSE_DROP = 0, FIEF_REFUSE_RESET = 1, FIEF_REFUSE_503 = 2 };

/* ---- police: token buckets ---- */

/* A bucket of the policy: its number (from 1; 0: none) and the policy's slot. */
struct fief_bucket_key {
	__u32 bucket;
	__u32 slot;
};

/*
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
};
enum fief_bucket_kind {
	FIEF_BUCKET_SHARED = 0,	    /* one for all that the rule matches */
	FIEF_BUCKET_PER_SOURCE = 1, /* one for each source: an IPv4 address or an IPv6 /64 (map `sources`) */
	FIEF_BUCKET_CPU = 2,	    /* charged CPU time instead of requests */
};

/* ---- police: sources ---- */

/*
 * An address (IPv4 mapped) or an IPv6 /64 (the rest zero) that returned a cookie once: proven. LRU, so bounded. Only its
 * own deeds count against it, since what it returned shows that it receives at that address.
 */
struct fief_source {
	__u64 proven_ns;	/* last cookie that it returned */
	__u64 arrival_ns;	/* its own bucket of SYNs, as in struct fief_bucket */
	__u64 penalty_until_ns; /* its SYNs are dropped until then */
};

/*
 * SYNs of unproven addresses of one prefix (IPv4 /24, IPv6 /64) at one listener, for isolation. A place in a table of
 * fixed size: who floods from ever new prefixes makes no entries, and who is isolated is displaced by nobody.
 */
struct fief_meter {
	__u8 prefix[16];
	__u64 window_ns; /* begin of the window that syns counts */
	__u64 isolated_until_ns;
	__u32 syns;
	__u32 listener;
};
#define FIEF_METERS 65536

/* ---- police and admit: what guards a listener ---- */

#define FIEF_SHAPES	64 /* different combinations of conditions among the request rules of a listener */
#define FIEF_CONDITIONS 4  /* fields of one request rule */
#define FIEF_NAMES	8  /* different header and cookie names among the request rules of a listener */
#define FIEF_HEADER_MAX 16384

enum fief_field {
	FIEF_FIELD_METHOD = 1,
	FIEF_FIELD_PATH,	/* decoded, dot segments and double slashes resolved, without the query */
	FIEF_FIELD_HOST,	/* lower case, without the port; HTTP's Host, or the authority of an absolute target */
	FIEF_FIELD_SERVER_NAME, /* TLS, lower case */
	FIEF_FIELD_ALPN,	/* TLS: any of the protocols offered (exact only) */
	FIEF_FIELD_HEADER,	/* value of the header `name`, without blanks around it */
	FIEF_FIELD_COOKIE,	/* value of the cookie `name` */
};
enum fief_match { FIEF_MATCH_EXACT = 1, FIEF_MATCH_PREFIX, FIEF_MATCH_SUFFIX, FIEF_MATCH_PRESENT };

/*
 * One condition of a shape. Two conditions on one field (a prefix and a suffix, "/img/" and ".png") are two of them; the
 * field is then at least as long as both together (`least`).
 */
struct fief_condition {
	__u8 field;
	__u8 match;
	__u8 name; /* header, cookie: which of fief_guard.name */
	__u8 pad;
	__u16 length; /* bytes of prefix or suffix */
	__u16 least;  /* least bytes of the field */
};

/* All rules with the same kinds and lengths of conditions are found by one look into the map `patterns`. */
struct fief_shape {
	__u32 conditions;
	__u32 first_rule; /* the first rule of this shape: no use to look if an earlier one has matched */
	struct fief_condition condition[FIEF_CONDITIONS];
};

struct fief_guard {
	__u32 flags;		  /* FIEF_GUARD_* */
	__u32 shapes;		  /* request rules; 0: none */
	struct fief_ref fallback; /* container of the catch-all: what no class is known for is counted here */
	__u64 penalty_ns;	  /* default of the listener's rules; 0: none */
	__u64 isolate_ns;	  /* how long; 0: no isolation */
	__u32 isolate_above;	  /* unproven SYNs a second from one prefix */
	__u32 isolate_level;
	__u64 unproven_interval_ns; /* budget of SYNs from unproven sources as a bucket; 0: no limit */
	__u64 unproven_tolerance_ns;
	__u64 proven_interval_ns; /* own bucket of each proven source; 0: no limit */
	__u64 proven_tolerance_ns;
	__u32 unproven_level;
	__u32 admit_level;	/* from which level on admission is in force */
	__u64 bloom;		/* first word of this listener's filter in `blooms`; see the front room's match.bpf.h */
	__u64 bloom_mask;	/* words of it, less one */
	__u64 name[FIEF_NAMES]; /* hashes of header and cookie names in lower case */
	struct fief_shape shape[FIEF_SHAPES];
};
#define FIEF_GUARD_ADMIT   1u	/* hold the handshake until the first bytes */
#define FIEF_GUARD_POLICE  2u	/* some rule, or the listener, limits SYNs */
#define FIEF_GUARD_MONITOR 4u	/* count what would be done, do nothing */
#define FIEF_GUARD_LATER   8u	/* rule later requests of a connection too */
#define FIEF_GUARD_KERNEL  16u	/* the kernel answers SYNs with its own cookies (tcp_syncookies = 2) */
#define FIEF_GUARD_HEADERS 32u	/* some request rule looks at a header */
#define FIEF_GUARD_COOKIES 64u	/* some request rule looks at a cookie */
#define FIEF_GUARD_FORWARD 128u /* connections pass through to others: SYNs are policed, none is answered */

/* Thresholds of the levels of overload, one for the policy; state of them, one for each listener. */
struct fief_thresholds {
	__u32 queue_percent[2]; /* of the accept queue, for busy and overloaded; 0: not looked at */
	__u32 cpu_percent[2];	/* of the machine not idle */
	__u32 drops[2];		/* SYNs dropped by the kernel or by us, a second */
	__u64 hold_ns;		/* a level is left after so long below it */
};

struct fief_load {
	__u64 looked_ns;
	__u64 above_ns[2];	       /* when the level was last reached */
	__u64 idle_ns;		       /* of all CPUs, at the last look */
	__u64 unproven_arrival_ns;     /* the budget of SYNs from unproven sources, as in struct fief_bucket */
	__u64 dropped_seen;	       /* our refusals at the last look */
	__u64 notice_ns[FIEF_REASONS]; /* when the last notice for each reason went out */
	__u32 level;		       /* enum fief_level */
	__u32 queue_percent;
	__u32 cpu_ppm;	  /* of the machine not idle, smoothed over FIEF_LOAD_SMOOTH_NS */
	__u32 drops;	  /* a second, smoothed likewise */
	__u32 drops_seen; /* counter of the listening socket at the last look */
	__u32 cpus;	  /* that were counted at the last look */
};
#define FIEF_LOAD_LOOK_NS   10000000ull	 /* at most one look in so long */
#define FIEF_LOAD_SMOOTH_NS 250000000ull /* a look at one moment says little about CPU time or a rate */

/* SYNs and requests that we refused, by listener and CPU: what the level of overload and the notices count. */
struct fief_refusals {
	__u64 refused;		    /* all of them, ever */
	__u64 untold[FIEF_REASONS]; /* since this CPU's last notice */
};

/* ---- admit: request rules ---- */

struct fief_pattern_key {
	__u64 hash; /* keyed, of the fields of the shape (match.bpf.h; fief-policy's pattern.rs is its twin) */
	__u16 listener;
	__u8 shape;
	__u8 slot;
	__u32 check; /* other bits of the same hash */
};

/* The first rule of the listener with this pattern, and what it says. */
struct fief_request {
	__u32 rule;
	__u32 bucket;		   /* 0: no rate */
	struct fief_ref container; /* id FIEF_NO_ID: the class of the client */
	__u64 penalty_ns;
	__u16 retry_after_s;
	__u8 refuse;  /* 1: refuse what matches; 0: only what is above the rate */
	__u8 refusal; /* enum fief_refusal */
	__u8 level;   /* enum fief_level */
	__u8 monitor;
	__u8 pad[2];
};

/* Keys of the gate, from the kernel's random source, set once for an installation. */
struct fief_secret {
	__u64 cookie[2];  /* the cookies' own key is derived from it for each epoch */
	__u64 pattern[2]; /* of the hashes of request patterns and of names */
};

/* Key of a source's own bucket under a rule "per source". */
struct fief_source_bucket_key {
	__u8 address[16]; /* IPv4 mapped, or an IPv6 /64 */
	__u32 bucket;
	__u32 slot;
};

/* A connection whose request was ruled before its socket was there; its label takes the container from here. */
struct fief_flow_key {
	__u8 remote[16];
	__u8 local[16];
	__u16 remote_port; /* host order */
	__u16 local_port;
	__u32 pad;
};
struct fief_admitted {
	struct fief_ref container;
	__u32 rule;
	__u32 next; /* sequence number at which its next request begins; valid if tracked */
	__u16 tracked;
	__u16 spent;   /* its socket was made: who sends the same first bytes again sends a copy */
	__u32 begin;   /* sequence number of its first byte: what was left by an earlier connection has another */
	__u64 time_ns; /* of the verdict: what follows is let through for a short time, until the socket is there */
};

/* The begin of a connection's first request, as far as it has come. */
struct fief_pending {
	__u32 first;  /* the client's initial sequence number */
	__u32 cookie; /* ours */
	__u32 length;
	__u32 doubted; /* number of a segment that may be the first one, or not */
	__u8 bytes[FIEF_HEADER_MAX];
};

/* ---- receive: a lane for each class (LRP) ---- */

#define FIEF_LANE_PACKETS 240 /* that may wait in a lane; the ring behind it has 256 places */

/*
 * A pair of virtual interfaces and the kernel thread that polls the second one: what is sent to the first is received
 * in that thread. Counted in segments; what waits is entered - left.
 */
struct fief_lane {
	struct fief_ref container;
	__u32 sends; /* index of the interface that packets are sent to */
	__u32 pad;
	__u64 entered;
	__u64 discarded;
	__u64 apart[4]; /* the other end writes what follows, on another CPU */
	__u64 left;
	__u64 apart_too[7];
};

/* Ports whose packets may have a lane, by policy slot. */
#define FIEF_PORT_WORDS 1024
struct fief_lane_ports {
	__u64 word[FIEF_PORT_WORDS];
};

/* ---- verdicts ---- */

struct fief_verdict_key {
	struct fief_ref container;
	__u32 rule; /* client rule (SYN_*), request rule (REQUEST_*) or FIEF_NO_ID */
	__u16 listener;
	__u8 reason;	/* enum fief_reason */
	__u8 monitored; /* counted only: nothing was done */
};

/* A drop or a refusal, told at most once in FIEF_NOTICE_NS for each bucket, listener and reason. */
#define FIEF_NOTICE_NS 10000000ull
struct fief_notice {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u8 source[16];
	__u8 destination[16];
	__u16 source_port;
	__u16 destination_port;
	struct fief_verdict_key verdict;
	__u32 count; /* how many it stands for */
	__u32 pad;
};

/* What never reached a listening socket; the last notice of it changes at most once in FIEF_NOTICE_NS. */
struct fief_drops {
	__u64 dropped; /* by the kernel, because a queue of the socket was full */
	__u64 refused; /* by the policy, before any listener of the address */
	__u64 time_ns; /* of the notice, CLOCK_MONOTONIC; 0: none yet */
	__u8 source[16];
	__u32 count;  /* how many the notice stands for */
	__u32 reason; /* enum fief_reason */
};

/* ---- bind: the binding of a task
 * ---------------------------------------------------------------------------- */

#define FIEF_NEST 3

struct fief_nest {
	struct fief_ref container;
	__u32 rights;
	__u32 flags;
};

struct fief_task {
	__u64 request; /* left by another thread, taken at the next boundary; bind.bpf.h draws it */
	struct fief_ref binding;
	struct fief_ref home;
	__u32 rights; /* of the descriptor the binding was made with */
	__u32 flags;  /* FIEF_TASK_* */
	struct fief_ref staged;
	__u32 staged_rights;
	__u32 made;		 /* 0: no, 1: it is being made, 2: yes */
	struct fief_ref counted; /* whose member it is counted as */
	__u32 nested;
	__u32 leads;		  /* 1: it is counted as its thread group's leader too */
	struct fief_ref followed; /* last label that was found below home */
	__s64 carry_ns;		  /* steal that did not fit into the stint that showed it */
	__u64 pending_ns;	  /* time after a sleep that waits for the first socket event */
	/* the kernel's counters at the last look */
	__u64 user_ns;
	__u64 system_ns;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 minor_faults;
	__u64 major_faults;
	struct fief_nest nest[FIEF_NEST]; /* what FIEF_ENTER left; each holds its thread reference on, but for home */
};
#define FIEF_TASK_FOLLOW   1u /* takes the container of the socket it works on */
#define FIEF_TASK_EXPLICIT 2u /* bound by a call: sockets are not followed until it unbinds */
#define FIEF_TASK_SLEPT	   4u /* went to sleep by itself since the last socket event */
#define FIEF_TASK_MANAGED  8u
#define FIEF_TASK_FOREIGN  16u /* bound outside of home's subtree, by a descriptor that was passed */

/* ---- charge: one state machine per CPU
 * ---------------------------------------------------------------------- */

#define FIEF_CACHE_SLOTS 64

/* write-back cache of usage, one line per container */
struct fief_cache_slot {
	struct fief_ref container;
	__u32 heir; /* where the counters go if the container has ended meanwhile */
	__u32 pad;
	__u64 thread_ns;
	__u64 receive_ns;
	__u64 packets_in;
	__u64 bytes_in;
	__u64 packets_out;
	__u64 bytes_out;
};

/* why the time of the system container was spent; shown by name */
enum fief_system_kind {
	FIEF_SYSTEM_HI, /* the first ten are the kernel's softirq vectors, in its order */
	FIEF_SYSTEM_TIMER,
	FIEF_SYSTEM_NET_TX,
	FIEF_SYSTEM_NET_RX,
	FIEF_SYSTEM_BLOCK,
	FIEF_SYSTEM_IRQ_POLL,
	FIEF_SYSTEM_TASKLET,
	FIEF_SYSTEM_SCHED,
	FIEF_SYSTEM_HRTIMER,
	FIEF_SYSTEM_RCU,
	FIEF_SYSTEM_HARDIRQ,
	FIEF_SYSTEM_KWORKER,
	FIEF_SYSTEM_KSOFTIRQD,
	FIEF_SYSTEM_NAPI,
	FIEF_SYSTEM_KTHREAD,
	FIEF_SYSTEM_KINDS = 16,
};

/* What every event reads and writes first, in one cache line; each line of the cache is one too. */
struct fief_cpu {
	__u32 sequence; /* odd while a charge is under way */
	__u32 online;
	__u64 last_ns;		  /* everything before is charged */
	struct fief_ref current_; /* whom the time since then belongs to */
	__u32 receive;		  /* enum fief_receive */
	__u32 kind;		  /* enum fief_system_kind while current_ is the system container */
	__u64 pool_ns;		  /* receive time that waits for the packets it was spent on */
	__u32 pool_packets;
	__u32 softirq_vector;
	__u32 has_task; /* task is the working copy of the running thread's record */
	__u32 refresh;	/* another CPU left a request for the running thread */
	__s32 running;	/* the thread that all of this is about, by number */
	__u32 in_irq;
	struct fief_task task;
	__u64 switched_in_ns;
	__u64 switched_in_exec; /* sum_exec_runtime of the running thread then */
	__u64 softirq_ns;	/* softirq time on top of this stint */
	__u64 softirq_entry_ns;
	struct fief_ref interrupted; /* current_ under the softirq */
	__u32 interrupted_kind;
	__u32 interrupted_receive;
	__s64 carry_ns;	    /* of threads without a record */
	__u64 steal_seen;   /* the run queue's steal clock at the last look */
	__u64 stint_stolen; /* taken from this stint already */
	__u64 clock_offset; /* CLOCK_MONOTONIC less the run queue's clock */
	struct fief_ref irq_current;
	__u32 irq_kind;
	__u32 irq_receive;
	__s32 kthread; /* the last kernel thread here, by number, and what kind of work it does */
	__u32 kthread_kind;
	__u32 switches; /* its context switches when its stint began */
	__u32 pad[7];
	__u64 system_kind_ns[FIEF_SYSTEM_KINDS];
	struct fief_cache_slot cache[FIEF_CACHE_SLOTS];
};
enum fief_receive { FIEF_RX_NONE = 0, FIEF_RX_OPEN = 1, FIEF_RX_PACKET = 2 };

/* ---- control
 * ------------------------------------------------------------------------------------------------- */

struct fief_control {
	__u32 abi_version;
	__u32 slot;	  /* policy tables in force: 0 or 1 */
	__u32 epoch;	  /* counts applied policies */
	__u32 containers; /* in use */
	__u32 machine_wide;
	__u32 user_quota; /* containers per unprivileged user */
	__u32 tree_lock;
	__u32 build;	 /* whose programs are in force: a hash of them */
	__u64 errors[8]; /* enum fief_error */
};
enum fief_error {
	FIEF_ERR_NO_STORAGE,
	FIEF_ERR_STALE,
	FIEF_ERR_TABLE_FULL,
	FIEF_ERR_LOCK,
	FIEF_ERR_SWITCH,
	FIEF_ERRORS
};

/* containers of one user against the quota */
struct fief_user {
	__u32 containers;
	__u32 quota;		/* 0: fief_control.user_quota */
	struct fief_ref parent; /* user/<uid> */
};

/* a managed cgroup */
struct fief_unit {
	struct fief_ref home;
	__u32 task_flags; /* FIEF_TASK_* of its threads */
	__u32 pad;
};

/* What one socket or thread holds of a container; the sweep's iterators write these. */
struct fief_mark {
	struct fief_ref container;
	__u32 handles;
	__u32 threads;
};

/* arguments of the programs that only the privileged control plane runs (BPF_PROG_RUN); answers stand in them
 * too */
struct fief_admin {
	struct fief_ref container; /* in: operand (create: parent); out: the new one */
	struct fief_ref parent;	   /* release: who takes it over if somebody still holds it; FIEF_NO_ID: nobody */
	__s32 pid;
	__u32 flags;
	__u32 slot; /* attributes, flip: policy slot */
	__u32 pad;
	__u64 value;
	char name[FIEF_NAME_LEN];
	struct fief_usage usage;
	struct fief_attributes attributes;
};

#endif
