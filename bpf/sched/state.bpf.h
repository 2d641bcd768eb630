/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * State: the scheduler's own records. They live as long as the scheduler is on; each time begins with fresh ones.
 *
 * The containers' tree, its attributes and what was charged are the core's. A node stands beside each container, by the same
 * number, and is of no use once the container's generation is another.
 */
#pragma once

#include "loop.bpf.h"
#include "line.h"

#define QUEUES		 4096 /* containers that can have waiting threads of their own at the same time */
#define DSQ(number)	 ((__u64)(number) + 1) /* the kernel's number of a queue */
#define QUEUE_LATE	 QUEUES		       /* of those that waited too long, whoever's they are */
#define QUEUE_KERNEL	 (QUEUES + 1)	       /* of kernel threads that had their slice */
#define QUEUE_HELD	 (QUEUES + 2)	       /* of those that are held below their line (climbs.bpf.h) */
#define QUEUE_FRONT	 (QUEUES + 3) /* of the thread that waits alone, and of its container's line (front.bpf.h) */
#define QUEUE_ROOT	 0	      /* of the threads that nobody manages */
#define LOCK_TRIES_MAX	 (1 << 19)
#define LOCK_LOOKS	 64	    /* tries from one look at the clock to the next */
#define LOCK_NS		 4000000ull /* so long the lock is waited for at most */
#define CLOCK_MONOTONIC	 1
#define CHOOSERS	 64	      /* CPUs that have a bit */
#define ANSWERED_WORK_NS 12000000ull  /* after an answer and a sleep: a few slices, until it receives again */
#define SERVED_WORK_NS	 100000000ull /* of CPU time for others, and a thread works no more for what it served before */

/*
 * Where the children of one priority are: what better ones use moves nobody's place among them. In virtual time, of a kind each, at the
 * priority's place (clocks.bpf.h).
 */
#define CLOCKS	     8
#define CLOCK_SHARES 0 /* of those with a share, and all without as one */
#define CLOCK_REST   1 /* of those without, among themselves */
#define CLOCK_GROUP  2 /* no clock: where all without a share are, as one */
#define CLOCK_KINDS  3

struct sched_node {
	__u32 generation;
	__u32 queued;	  /* of its own threads */
	__u32 linked;	  /* it is in its parent's list of children with waiting threads */
	__u32 parent;	  /* in whose */
	__u32 next, prev; /* there: a ring */
	__u32 first;	  /* of its own list; 0: none, since the root is nobody's child */
	__u64 at;	  /* virtual time among its siblings */
	__u64 own_at;	  /* of its own threads, as one of its children */
	__u64 clocks[CLOCK_KINDS * CLOCKS];
	__u32 clocks_of[CLOCK_KINDS * CLOCKS]; /* priorities + 1; 0: of nobody */
	__s64 budget;
	__u64 period_ns;    /* when its last one began */
	__u32 passed;	    /* the search that found nothing in it */
	__u32 own_passed;   /* that found nothing among its own threads */
	__u32 search;	    /* that looks at its children, some at a time (pick.bpf.h): */
	__u32 ahead;	    /* with this one it goes on; */
	__u32 round;	    /* if there is none to choose up to this one, there is none */
	__u32 serving;	    /* threads in its queue for which a better container may come to wait (lent.bpf.h) */
	__u64 worked_ns;    /* when a thread was last seen to work for it */
	__u64 misfits;	    /* CPUs on which none of its own threads may run, a bit each (fits.bpf.h) */
	__u32 arrivals;	    /* of own threads */
	__u32 walked_of;    /* the generation as whose the way up was last looked at (plain.bpf.h), */
	__u64 walked;	    /* the beat, + 1, in which that was, */
	__u64 walked_plain; /* the last one in which threads could wait alone by it, */
	__u32 walked_rank;  /* and the rank that was found there */
	/* These are the number's, whichever container has it (node_get()): */
	__u32 queue;		/* of its own threads: a number + 1; 0: none waits */
	__u32 numbers;		/* of queues that count for it, as a party (numbers.bpf.h) */
	__u32 late;		/* of those that are queued: they wait to be let in for a moment (floor.bpf.h) */
	struct sched_line line; /* of its own threads (policy.bpf.h) */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_DEFAULT_CONTAINERS);
	__type(key, __u32);
	__type(value, struct sched_node);
} sched_nodes SEC(".maps");

struct sched_queue {
	__u32 container;
	__u32 taken;
	__u32 counts; /* for this party: id + 1; 0: for none (numbers.bpf.h) */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, struct sched_queue);
} sched_queues SEC(".maps");

/* A CPU, and the thread that runs there. */
struct sched_place {
	__u32 rank;	/* of the thread that runs there (thread.bpf.h) */
	__u32 brief;	/* it may run for a moment only */
	__u32 row;	/* threads in a row that were let in for having waited */
	__u32 away;	/* the CPU is offline */
	__u32 of;	/* whose thread it is: id + 1 */
	__u32 own;	/* the container that runs there by its own part: id + 1 */
	__u32 turn;	/* whose turn it has that works for another one: id + 1 */
	__u32 lent;	/* that turn is lent */
	__u64 thread;	/* which one it is, by its address, until it waits; 0: none */
	__u64 at;	/* its place in that container's line */
	__u32 rests;	/* choices in a row with which a search went on; */
	__u32 misses;	/* that may have missed a thread */
	__u32 search;	/* that goes on with the next choice; 0: another one begins */
	__u32 section;	/* moments in a row that a thread had to be outside of critical sections in (floor.bpf.h) */
	__u32 owed;	/* a thread is counted as one that waits, and does not: id + 1; 0: none (debts_pay()) */
	__u32 vain;	/* a choice of the search had no thread for this CPU */
	__u32 left;	/* it has left children out that it did not look at */
	__u32 thorough; /* it leaves none out (pick.bpf.h) */
	__u32 went_on;	/* the search began with a former choice, of this choice's own; */
	__u32 refused; /* and so often it did not have the turn to look further: here the verifier does not follow it */
	__u32 picked;  /* threads that it took from the front; */
	__u32 told;    /* of these the beat has counted so many */
	__u32 idle;    /* it found nothing to run, and nothing has run there since (idle.bpf.h) */
	__u32 missed;  /* the queue that was chosen and is empty, its number + 1; ~0: of several; 0: none; */
	__u32 missed_arrivals; /* its line's arrivals then */
	__u32 watched; /* the same, of choices that were given up: the beat looks whether a thread has come there; */
	__u32 watched_arrivals; /* its line's arrivals then */
	__u32 stays;	/* the container on whose allocation the thread there would go on: id + 1; 0: it does not */
	__u32 queued;	/* of the line that was chosen, if that was asked for (fits.bpf.h); */
	__u32 arrivals; /* its arrivals then */
	__u64 counts;	/* the machine's when the choice began */
	__u64 chose_ns; /* when it did */
	__u64 begins;	/* the thread that was told to begin here: the verifier lets nobody count with a pointer */
	__u64 plain;	/* the thread that runs there, if nothing is to be asked of it (plain.bpf.h) */
	struct fief_ref bound; /* what that thread works for */
	__u64 kernel_ns;       /* when a kernel thread last had its slice here */
	__u64 late_ns;	       /* when the next one that waited too long is let in here (floor.bpf.h) */
};

struct sched_machine {
	__u64 front; /* who waits: nobody, one thread alone, or lines (front.bpf.h) */
	/* Of the thread that waits alone, as it begins to run: */
	__u64 front_at; /* its place, */
	struct fief_ref front_allocation;
	__u32 front_rank;
	__u32 front_of;	    /* the container whose line has QUEUE_FRONT: id + 1 */
	__u64 counted;	    /* the sign of a thread that waited alone, and is counted in that line, or is about to be */
	__u64 beats;	    /* of the timer */
	__u64 now_ns;	    /* at the last of them */
	__u64 counts;	    /* times that a thread came to wait in a line */
	__u64 chooser;	    /* the CPU that chooses now, a bit; 0: it has none (fits.bpf.h) */
	__u64 late_step_ns; /* on each CPU, from one that waited too long to the next (floor.bpf.h) */
	__s32 prompt;	    /* so many of these need not wait for that */
	__u32 owing;	    /* a CPU owes (debts_pay()) */
	__u32 idle;	    /* CPUs that found nothing to run (idle.bpf.h) */
	__u32 lock;
	__u32 searches;	   /* counts them */
	__u32 search;	   /* the one that has the lock; 0: it looks no further than at the first choice */
	__u32 vain;	   /* that one has chosen a container without a thread for its CPU, */
	__u32 left;	   /* has left children out that it did not look at, */
	__u32 thorough;	   /* or leaves none out */
	__u32 searcher;	   /* the CPU that looks further: its number + 1; 0: none does (dispatch.bpf.h) */
	__u32 top;	   /* queues above were never taken */
	__u32 free;	   /* entries of sched_free that hold a number */
	__u32 held;	   /* a container with waiting threads was passed over */
	__u32 foreign;	   /* threads that wait on the allocation of another container than they work for */
	__u32 serving;	   /* threads that wait while they serve a listener with a queue */
	__u32 look;	   /* the line that is looked at next (leaves.bpf.h); */
	__u32 lines;	   /* and so many are left */
	__u32 seen;	   /* threads that this look was at */
	__u32 late;	   /* a thread may wait among those that are let in for a moment (floor.bpf.h) */
	__u32 lined;	   /* containers with waiting threads of their own */
	__u32 alone;	   /* the one of them that is in no list: id + 1; 0: all are (alone.bpf.h) */
	__u32 cpus;	   /* that the machine has now */
	__u32 moved;	   /* a container that a search found in the list of a former parent: id + 1 */
	__u32 kernel;	   /* a kernel thread may wait among those that had their slice (kthread.bpf.h) */
	__u32 must_look;   /* a beat has come since lines were last looked at */
	__u32 let_in;	   /* held threads that this beat lets in (leaves.bpf.h) */
	__u64 beat_ns;	   /* when the last beat was due */
	__u64 looked_ns;   /* when lines were last looked at */
	__u64 searched_ns; /* when the CPU that looks further last did */
	__u64 news;	   /* of the queues, as they were then */
	struct sched_place places[FIEF_MAX_CPUS];
};

/* No map's: each switch asks for it four times, and a look-up takes more than most of what is asked for. */
struct sched_machine machine __hidden;

/* Its beat: a timer has to be a map's. */
struct sched_beat {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sched_beat);
} sched_beats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sched_free SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_sched);
} sched_states SEC(".maps");

/* When the thread's time ends that was let in for a moment (floor.bpf.h). */
struct sched_moment {
	struct bpf_timer timer;
	__u64 thread;
	__u64 more; /* that the same thread may have yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct sched_moment);
} sched_moments SEC(".maps");

/* A container that a thread served lately (combined.bpf.h). */
struct sched_served {
	struct fief_ref container;
	__u64 at_ns;  /* when it was last seen to work for it */
	__u64 ran_ns; /* its whole time on CPUs then */
};

struct sched_waiting {
	__u32 container; /* in whose queue it is counted: id + 1; 0: in none */
	__u32 of;	 /* in whose line it has its place: id + 1 */
	__u64 since_ns;	 /* it waits, across what the kernel changes of it; 0: it has run, as one has that wakes up */
	__u64 self;	 /* whose this is (front_self()) */
	__u64 sign;	 /* by which it was at the front; 0: it has been counted out (front.bpf.h) */
	__u64 unsettled_ns; /* that it has had since it was in a line, where the tree settles what it has */
	__u64 asked;	  /* requests that there had been when it was asked, + 1; 0: it is to be asked (plain.bpf.h) */
	__u64 ran_ns;	  /* of its whole time on CPUs, what its place knows */
	__u32 epoch;	  /* of the line's policy, as of its place */
	__u32 generation; /* of the container in whose line that is */
	struct line_thread thread;
	__u32 served_count;	    /* of these; more than 1: the thread is scheduled for all of them */
	__u32 foreign;		    /* 1: it waits on the allocation of another one than it works for */
	struct fief_ref allocation; /* whose it has, or waits on */
	__u32 bound;		    /* id of the container that it works for */
	__u32 lent;		    /* 1: it has the allocation since a request of that container waits for it */
	__u32 serving;		    /* where it is counted as one that serves while it waits: id + 1; 0: nowhere */
	__u32 listener;		    /* index + 1 of the one whose clients it serves; 0: of none */
	__u32 answered;		    /* likewise, a client of which it has sent to since it received; 0: of none */
	__u32 listener_epoch;	    /* the policy's of that; */
	__u32 queue;		    /* and its queue; 0: it has none */
	__u32 ranked;		    /* its rank (thread.bpf.h), as of when it began to wait, + 1; 0: not known */
	__u32 fair;		    /* 1: its place is of the policy `fair` */
	__u32 late;		    /* in whose line it is counted as late: id + 1; 0: in none */
	__u32 strays;		    /* 1: it is counted as foreign */
	__u64 received_ran_ns;	    /* its whole time on CPUs when it received, or had answered and slept */
	struct sched_served served[FIEF_SERVED];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sched_waiting);
} sched_threads SEC(".maps");

/* Never NULL, and so is no place in it: nobody checks. */
static __always_inline struct sched_machine *machine_get(void)
{
	return &machine;
}

static __always_inline struct fief_sched *state_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sched_states, &zero);
}

static __always_inline struct sched_node *node_at(__u32 id)
{
	return bpf_map_lookup_elem(&sched_nodes, &id);
}

static __always_inline struct sched_queue *queue_at(__u32 number)
{
	return bpf_map_lookup_elem(&sched_queues, &number);
}

static __always_inline struct sched_place *place_in(struct sched_machine *m, __u32 cpu)
{
	return &m->places[cpu & (FIEF_MAX_CPUS - 1)];
}

static __always_inline struct sched_place *place_at(__u32 cpu)
{
	return place_in(machine_get(), cpu);
}

static __always_inline struct sched_waiting *waiting_of(struct task_struct *p)
{
	return bpf_task_storage_get(&sched_threads, p, 0, 0);
}

#define state_count(field)                                                                                             \
	({                                                                                                             \
		struct fief_sched *state_ = state_get();                                                               \
		if (state_)                                                                                            \
			__sync_fetch_and_add(&state_->field, 1);                                                       \
	})

/*
 * One lock for the whole tree. All that take it run with interrupts off, and call nothing that could come back here. The loop
 * ends, since a hypervisor may have stopped the holder: then the caller goes round the tree. It ends by the clock, however slow a try is:
 * the thread that runs pays for it, also of the time for which a turn is lent to it (lent.bpf.h), and where CPUs are emulated in turn the holder
 * goes on only once interrupts are on again.
 */
__noinline int machine_wait(void)
{
	struct sched_machine *m = machine_get();
	__u64 began = bpf_ktime_get_ns();
	int taken = 0, i;

	bpf_for (i, 0, LOCK_TRIES_MAX) {
		if (*(volatile __u32 *)&m->lock) {
			if (!(i % LOCK_LOOKS) && bpf_ktime_get_ns() - began > LOCK_NS)
				break;
			continue;
		}
		if (!__sync_val_compare_and_swap(&m->lock, 0, 1)) {
			taken = 1;
			break;
		}
	}
	if (!taken)
		state_count(lock_failed);
	return taken;
}

/* The lock, if nobody has it. */
static __always_inline int machine_try(void)
{
	struct sched_machine *m = machine_get();

	return !__sync_val_compare_and_swap(&m->lock, 0, 1);
}

static __always_inline int machine_lock(void)
{
	return machine_try() || machine_wait();
}

static __always_inline void machine_unlock(struct sched_machine *m)
{
	__sync_lock_test_and_set(&m->lock, 0);
}
