/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Guards: what stands before each listener, and what its request rules look at. */
#pragma once

#include "container.h"

#define FIEF_SHAPES	64 /* different combinations of conditions among the request rules of a listener */
#define FIEF_CONDITIONS 4  /* fields of one request rule */
#define FIEF_NAMES	8  /* different header and cookie names among the request rules of a listener */

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

/* All rules with the same kinds and lengths of conditions are found by one look into the rule table. */
struct fief_shape {
	__u32 conditions;
	__u32 first_rule; /* the first rule of this shape: no use to look if an earlier one has matched */
	struct fief_condition condition[FIEF_CONDITIONS];
};

/* Peers whose connections begin with a PROXY head: an IPv6 prefix, IPv4 mapped into it. */
#define FIEF_PROXIES 16
struct fief_proxy {
	__u8 address[16];
	__u32 bits;
	__u32 pad;
};

struct fief_guard {
	__u32 flags;		  /* FIEF_GUARD_* */
	__u32 shapes;		  /* request rules; 0: none */
	struct fief_ref fallback; /* container of the catch-all: what no class is known for is counted here */
	__u64 penalty_ns;	  /* default of the listener's rules; 0: none */
	__u64 isolate_ns;	  /* how long; 0: no isolation */
	__u64 restart_ns;	  /* so long nobody may listen before SYNs are the kernel's to refuse; 0: at once */
	__u32 isolate_above;	  /* unproven SYNs a second from one prefix */
	__u32 isolate_level;
	struct fief_ref isolate_into; /* FIEF_GUARD_INTO: class of who proves itself while its prefix is isolated */
	__u64 unproven_interval_ns;   /* budget of SYNs from unproven sources as a bucket; 0: no limit */
	__u64 unproven_tolerance_ns;
	__u64 proven_interval_ns; /* own bucket of each proven source; 0: no limit */
	__u64 proven_tolerance_ns;
	__u32 unproven_level;
	__u32 admit_level;    /* from which level on admission is in force */
	__u32 unread_refused; /* bits by enum fief_unread: refused; else they pass into the class of the client */
	__u32 proxies;	      /* how many of `proxy` there are */
	__u32 rules;	      /* a hash of what is said of requests: other rules have another */
	__u32 queue;	      /* number of its queue; 0: requests do not wait */
	__u64 bloom;	      /* first word of this listener's filter in `blooms`; see the front room's match.bpf.h */
	__u64 bloom_mask;     /* words of it, less one */
	struct fief_lines patterns;
	struct fief_proxy proxy[FIEF_PROXIES];
	__u64 name[FIEF_NAMES]; /* hashes of header and cookie names in lower case */
	struct fief_shape shape[FIEF_SHAPES];
};
#define FIEF_GUARD_ADMIT       1u     /* hold the handshake until the first bytes */
#define FIEF_GUARD_POLICE      2u     /* some rule, or the listener, limits SYNs */
#define FIEF_GUARD_MONITOR     4u     /* count what would be done, do nothing */
#define FIEF_GUARD_LATER       8u     /* rule later requests of a connection too */
#define FIEF_GUARD_KERNEL      16u    /* the kernel answers SYNs with its own cookies (tcp_syncookies = 2) */
#define FIEF_GUARD_HEADERS     32u    /* some request rule looks at a header */
#define FIEF_GUARD_COOKIES     64u    /* some request rule looks at a cookie */
#define FIEF_GUARD_FORWARD     128u   /* connections pass through to others: SYNs are policed, none is answered */
#define FIEF_GUARD_INTO	       256u   /* an isolated prefix is served last, and not shut out */
#define FIEF_GUARD_EVERYWHERE  512u   /* a new connection that passed no door is counted */
#define FIEF_GUARD_CLOSED      1024u  /* ... and refused */
#define FIEF_GUARD_NAMES       2048u  /* some request rule looks at what a client of TLS asks for */
#define FIEF_GUARD_NO_ISOLATE  4096u  /* isolation does not hold for some prefixes */
#define FIEF_GUARD_NO_PENALTY  8192u  /* ... nor do penalties */
#define FIEF_GUARD_BODIES_READ 16384u /* the server reads every body: none is ruled as a request */
#define FIEF_GUARD_TURNS       32768u /* beside a queue: where requests cannot be read, each turn of a client waits */
#define FIEF_GUARD_NO_OWN_RATE 65536u /* no client rule has a rate for each source */

/* Rare things that the door has seen, at whatever listener: until then most packets need not look for them. */
struct fief_sightings {
	__u64 bad_ns;	/* when a segment was counted last that may be a guess at a cookie */
	__u64 upgrades; /* not 0: a connection's first request may have asked for another protocol */
};

/* A prefix that a control of a listener does not hold for, in a trie of both policy slots. */
struct fief_except_key {
	__u32 bits; /* FIEF_EXCEPT_BITS, and of the prefix, 96 more for IPv4 */
	__u8 slot;
	__u8 from; /* enum fief_except */
	__u16 listener;
	__u8 address[16]; /* IPv4 mapped */
};
enum fief_except { FIEF_EXCEPT_ISOLATE = 1, FIEF_EXCEPT_PENALTY = 2 };
#define FIEF_EXCEPT_BITS 32 /* of what stands before the address */
#define FIEF_EXCEPTS	 131072
