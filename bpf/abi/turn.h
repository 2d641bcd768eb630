/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Turn: what an order that is built outside of Fief is told of a thread, and what it says (bpf/sched/object.bpf.h). */
#pragma once

#define FIEF_TURN_VERSION 1		     /* of struct fief_turn, for objects that were built before */
#define FIEF_OBJECTS	  4		     /* of one policy */
#define FIEF_OBJECT_SETS  (2 * FIEF_OBJECTS) /* of the policy in force and the next one */

enum fief_turn_verb {
	FIEF_TURN_INIT,	  /* a container has this order from now on */
	FIEF_TURN_UPDATE, /* its period or budget is another one */
	FIEF_TURN_DELETE, /* it has another order, or its number is another one's */
	FIEF_TURN_BEGIN,  /* a thread is new in its line */
	FIEF_TURN_PLACE,  /* it waits from now on: say `at` */
	FIEF_TURN_RAN,	  /* it had `ran_ns` of the CPU */
	FIEF_TURN_YIELDS, /* it lets the others go first */
};

/* Each CPU has one. The thread with the least `at` of its line goes first. */
struct fief_turn {
	__u32 verb;	  /* enum fief_turn_verb */
	__u32 answered;	  /* the object sets it to 1 */
	__u32 container;  /* whose line it is */
	__u32 generation; /* which of that number */
	__u64 now_ns;
	__u64 clock;	 /* the furthest `at` that has run; it begins with the time */
	__u64 period_ns; /* of the container's attributes; 0: none */
	__u64 budget_ns;
	__s32 pid;    /* of the thread; 0: the turn is the line's */
	__u32 weight; /* by its nice value, 100 for 0 */
	__u32 slept;  /* it has just woken up */
	__u32 random;
	__u64 ran_ns;
	__u64 at;   /* its place, kept from turn to turn; may be written */
	__s64 left; /* a number of its own, kept from turn to turn; may be written */
};

/* What became of an object, by its number. */
struct fief_object {
	__u64 turns;
	__u64 unanswered; /* nothing answered: the line went on by nice values */
	__u64 faults;	  /* answers that no line can have, or that took too long */
	__u32 bad;	  /* of late */
	__u32 removed;	  /* it is not asked any more */
	__u32 instance;	  /* counts those that had the number: lines begin anew with each */
	__u32 pad;
};
