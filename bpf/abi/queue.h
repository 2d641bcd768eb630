/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Queue: requests that wait in front of a server, by class, and how many of them the server has. */
#pragma once

#include "container.h"
#include "steer.h"

#define FIEF_QUEUE_CLASSES 32
#define FIEF_QUEUE_SLOTS   16384 /* requests that wait, in all queues together; slot 0 is none */
#define FIEF_QUEUE_PIECE   1024	 /* bytes of a request that are kept together */
#define FIEF_QUEUE_PIECES  15	 /* of one request: with its headers a packet of the kernel's can bear no more */
#define FIEF_QUEUE_MOST	   (FIEF_QUEUE_PIECE * FIEF_QUEUE_PIECES)
#define FIEF_QUEUE_TICKS   256	/* steps of a queue's own length: a place is held for fewer at most */
#define FIEF_EIGHTHS	   8	/* of a second, which objectives are counted by */
#define FIEF_QUEUE_PLACES  4096 /* the most */
#define FIEF_QUEUE_SOURCES 32	/* lists of a class whose clients take turns */
#define FIEF_QUEUE_STANDS  8
#define FIEF_QUEUE_PASSED                                                                                              \
	31 /* a class that was passed over by better ones so often is next, unless its priority is 0 */

/*
 * Waits are counted by how long they were, in four steps for each doubling: of w units of 2^FIEF_WAIT_SHIFT ns the first
 * four steps are for 0 to 3, and step 4 * l + m for those from (4 + m) << (l - 1) on.
 */
#define FIEF_WAIT_STEPS 80
#define FIEF_WAIT_SHIFT 14

/* What a place is for. */
enum fief_until {
	FIEF_UNTIL_FIRST_BYTE, /* of the answer */
	FIEF_UNTIL_RESPONSE,   /* all of it has left, as far as that shows */
	FIEF_UNTIL_CLOSE,      /* the connection ends, once the server has begun to answer on it */
};

/* What user space tells of a queue (front/ended.bpf.h). */
enum fief_queue_told {
	FIEF_TOLD_OPEN,	  /* nobody waits any more, and those who do go on */
	FIEF_TOLD_WAIT,	  /* somebody may again */
	FIEF_TOLD_REFUSE, /* those who still wait are refused */
	FIEF_TOLD_FORGET, /* those who are still there are forgotten */
};

/* Those of one class in the order in which they came. */
struct fief_queue_list {
	__u16 first;
	__u16 last;
	__u32 linked;
};

struct fief_queue_class {
	struct fief_ref container;
	struct fief_queue_list list;
	__u64 spent_ns;	  /* CPU time of the container when it was last looked at */
	__u64 wait_ns;	  /* so long one of it waits at most */
	__u64 short_ns;	  /* the same while its line stands; 0: as ever */
	__u64 looked_ns;  /* when it was last looked at whether it does */
	__u64 late_ns;	  /* when its first has waited for longer */
	__u64 limit_ns;	  /* CPU time a second that it may use; 0: no limit */
	__u64 charged_ns; /* when it was last held against that */
	__u64 again_ns;	  /* when it has used no more than that, as far as it was charged */
	__u64 turn; /* CPU time that it was charged over its weight: of one level, the class with the least is next */
	__u64 level_turn; /* of the level whose number this class has: the least that was served last */
	__u32 length;	  /* so many of it wait at most */
	__u32 reserve;	  /* that no other class can take */
	__u32 waiting;	  /* also what is about to be linked */
	__u32 passed;	  /* turns of better classes while it waited, since one of its level had one */
	__u32 weight;
	__u8 level;	  /* 0 is served first */
	__u8 floor;	  /* 1: it never starves */
	__u8 source_turn; /* of `source`: the list that had its turn last */
	__u8 ahead;    /* requests charged while they waited, beyond those that the server got (front/charged.bpf.h) */
	__u32 sources; /* those with somebody in them */
	__u32 refused; /* so many had been, when it was last looked at whether its line stands; */
	__u32 rested;  /* so many waited when the line last was at rest, */
	__u32 longest; /* and at most since */
	__u32 stands;  /* looks at which it had grown since, and some more: with FIEF_QUEUE_STANDS it stands */
	__u32 enough;  /* so many the server takes up within the short wait, by the last looks */
	__u32 begun;   /* the last digits of `released` at the last look */
	__u32 would;   /* so many would wait by the whole wait, by the last look */
	__u32 managed; /* 1: threads work for it, as was seen when one of its requests ended */
	__u32 looks;   /* since it last grew, or since it stands */
	__u32 tries;   /* so often it was left to itself */
	__u32 unseen;  /* its requests in a row that ended and cost nothing */
	struct fief_queue_list source[FIEF_QUEUE_SOURCES]; /* while clients take turns */
	/* what the policy promises of its latency: */
	__u64 latency_ns; /* 0: nothing */
	__u32 late_ppm;	  /* of a million answers so many may begin later */
	__u32 eighths_held;
	__u32 eighths_missed;
	__s32 handed; /* requests that the server got and has not begun to answer */
	__u32 answered[FIEF_EIGHTHS];
	__u32 late[FIEF_EIGHTHS];
	/* counted ever: */
	__u64 entered;		      /* requests that did not wait */
	__u64 held;		      /* requests that waited */
	__u64 released;		      /* of these, those that the server got */
	__u64 refused_full;	      /* displaced, or found no room */
	__u64 refused_wait;	      /* waited too long, or would have */
	__u64 gone;		      /* whose clients went away meanwhile */
	__u64 waited_ns;	      /* of those that were released, together */
	__u32 waits[FIEF_WAIT_STEPS]; /* of those, how many waited how long */
	/* Of the last request that the server got and has not begun to answer: */
	__u64 handed_ns;       /* when; 0: there is none */
	__u64 handed_until_ns; /* its place runs out */
	/* whether threads work for it: */
	__u64 threads_ns;	 /* CPU time of those at the last look */
	__u64 threads_looked_ns; /* when that was */
};

/* The measurements by which the kernel side finds out `places` (front/narrow.bpf.h). */
struct fief_queue_measured {
	__u64 from_ns;	  /* since when */
	__u64 answered;	  /* requests */
	__u64 sojourn_ns; /* of these, together, from their arrival until the first byte of the answer */
	__u32 most;	  /* places that were taken at once */
	__u32 slack;	  /* 1: one came for which a place was free */
	/* with `settled` places: */
	__u64 rate; /* answered in FIEF_RATE_NS */
	__u64 mean; /* sojourn, ns */
	__u64 best; /* the largest rate of late */
	__u32 limited;
	__u32 settled;
	/* of the trial of another number: */
	__u32 trial; /* 1: more, 2: fewer; 0: none is under way */
	__u32 drain; /* answers to go before it begins to count: what the server had before */
	__u32 held;  /* measurements since the last one */
	__u32 holds; /* so many are to pass before the next */
	__u32 fine;  /* how small its step is */
	__u32 less;  /* 1: the next one is of fewer */
};

#define FIEF_RATE_NS (1ull << 34) /* 17 s */

struct fief_queue {
#ifdef __bpf__
	struct bpf_spin_lock lock;
#else
	__u32 lock;
#endif
	__u32 places;	/* requests that the server has at once */
	__u32 finds;	/* 1: that number is found out */
	__u32 length;	/* requests that wait */
	__u32 common;	/* of these, those that no class has for itself */
	__u32 shared;	/* those that wait beyond what their classes have for themselves */
	__u32 until;	/* enum fief_until */
	__u32 listener; /* index */
	__u32 classes;
	__u32 open; /* 1: nobody waits any more; 3: nor comes back into its line (front/ended.bpf.h) */
	__u32 monitor;
	__u32 fair;    /* 1: the clients of a class take turns */
	__u32 busy;    /* places taken, as far as they have not run out */
	__u32 lasting; /* of these, those of connections, which do not run out */
	__u32 bits;    /* classes with somebody in their list */
	__u32 waiting;
	__u32 clocks;  /* of these, those whose last byte is not acknowledged: their clients send it again */
	__u32 refused; /* linked in `refusals` */
	__u32 flat;    /* 1: its classes are one level, without limits and promises */
	__u32 clock;   /* the interface that gives it time (front/ticks.bpf.h); 0: there is none */
	/* that interface is there, and those where requests came in that wait */
	struct fief_netns netns;
	__u64 until_ns; /* so long the limits of all that wait are used up, unless somebody comes */
	__u64 tick_ns;	/* when the packet that tells it the time was sent; 0: there is none on its way */
	__u64 memory;
	__u64 kept;			 /* bytes of it that are taken */
	__u64 late_ns;			 /* nobody has waited for too long before */
	struct fief_queue_list refusals; /* to be told that they are refused */
	struct fief_queue_list carried;	 /* that TCP may not have yet (front/carried.bpf.h) */
	__u64 kicks;
	__u64 idle_kicks;	      /* that found nothing to do */
	__u64 uncounted;	      /* requests that the server got although there was no room to count them */
	__u64 carried_again;	      /* packets of requests that were lost between the door and TCP */
	__u64 too_long;		      /* requests of which only the first bytes waited */
	__u64 would_wait;	      /* in monitor mode */
	__u64 tick;		      /* places that ran out up to this one were given back */
	__u16 ends[FIEF_QUEUE_TICKS]; /* places by the tick at which they run out */
	__u32 tick_shift;	      /* a tick is 2^this ns */
	__u32 stale_ticks;	      /* how long a place is held */
	__u32 promises;		      /* 1: some class has a latency_ns */
	__u32 below_level;	      /* classes of higher numbers are below all those */
	__u32 below;		      /* places for these */
	__u32 busy_below;	      /* those that they have */
	__u32 below_rests;	      /* eighths in which that is not changed */
	__u32 paced;		      /* refusals that may follow another at once, */
	__u64 paced_at;		      /* by this time (front/pace.bpf.h) */
	__u64 stuck_ns;		      /* so long refusals go first: the next one could not reach the server */
	__u64 eighth;
	__u16 ends_below[FIEF_QUEUE_TICKS];
	struct fief_queue_measured measured;
	struct fief_queue_class class[FIEF_QUEUE_CLASSES];
};

/* A request that the server has, under its flow; or a connection that keeps its place, of which the first two are known. */
struct fief_served {
	__u32 queue;
	__u32 class;
	__u32 answer;	/* sequence number at which the answer begins */
	__u32 upto;	/* where the request ends, as far as it had come */
	__u64 ends;	/* when its place runs out */
	__u64 since_ns; /* when it came; 0: its answer has begun, and goes on */
};
