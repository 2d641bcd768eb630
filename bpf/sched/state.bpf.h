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

#define QUEUES		4096 /* containers that can have waiting threads of their own at the same time */
#define DSQ(number)	((__u64)(number) + 1) /* the kernel's number of a queue */
#define QUEUE_LATE	QUEUES		      /* of those that waited too long, whoever's they are */
#define QUEUE_KERNEL	(QUEUES + 1)	      /* of kernel threads that had their slice */
#define QUEUE_HELD	(QUEUES + 2)	      /* of those that are held below their line (climbs.bpf.h) */
#define QUEUE_ROOT	0		      /* of the threads that nobody manages */
#define LOCK_TRIES_MAX	(1 << 19)
#define CLOCK_MONOTONIC 1
#define SERVED_WORK_NS	100000000ull /* of CPU time for others, and a thread works no more for what it served before */

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
	__u32 queue;	  /* of its own threads: a number + 1; 0: none waits */
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
	__u64 period_ns;	/* when its last one began */
	__u32 passed;		/* the search that found nothing in it */
	__u32 own_passed;	/* that found nothing among its own threads */
	__u64 worked_ns;	/* when a thread was last seen to work for it */
	__u32 serving;		/* threads in its queue for which a better container may come to wait (lent.bpf.h) */
	__u32 numbers;		/* of queues that count for it, as a party (numbers.bpf.h) */
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

struct sched_machine {
	__u32 lock;
	__u32 searches;	   /* counts them */
	__u32 search;	   /* the one that has the lock; 0: it looks no further than at the first choice */
	__u32 vain;	   /* that one has chosen a container without a thread for its CPU */
	__u32 searcher;	   /* the CPU that looks further: its number + 1; 0: none does (dispatch.bpf.h) */
	__u32 top;	   /* queues above were never taken */
	__u32 free;	   /* entries of sched_free that hold a number */
	__u32 held;	   /* a container with waiting threads was passed over */
	__u32 beats;	   /* of the timer */
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
	__u64 looked_ns;   /* when lines were last looked at */
	__u64 searched_ns; /* when the CPU that looks further last did */
	__u64 news;	   /* of the queues, as they were then */
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sched_machine);
} sched_machines SEC(".maps");

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

struct sched_place {
	__u32 rank;    /* of the thread that runs there (thread.bpf.h) */
	__u32 brief;   /* it may run for a moment only */
	__u32 row;     /* threads in a row that were let in for having waited */
	__u32 of;      /* whose thread it is: id + 1 */
	__u32 own;     /* the container that runs there by its own part: id + 1 */
	__u32 turn;    /* whose turn it has that works for another one: id + 1 */
	__u32 lent;    /* that turn is lent */
	__u32 away;    /* the CPU is offline */
	__u64 thread;  /* which one it is, by its address, until it waits; 0: none */
	__u64 at;      /* its place in that container's line */
	__u32 search;  /* that goes on with the next choice; 0: another one begins */
	__u32 rests;   /* so often it has */
	__u32 section; /* moments in a row that a thread had to be outside of critical sections in (floor.bpf.h) */
	__u32 owed;    /* a thread is counted as one that waits, and does not: id + 1; 0: none (dispatch.bpf.h) */
	__u32 vain;    /* a choice of the search had no thread for this CPU */
	__u32 went_on; /* the search began with a former choice, of this choice's own; */
	__u32 refused; /* and so often it did not have the turn to look further: here the verifier does not follow it */
	__u32 pad;
	__u64 kernel_ns; /* when a kernel thread last had its slice here */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FIEF_MAX_CPUS);
	__type(key, __u32);
	__type(value, struct sched_place);
} sched_places SEC(".maps");

/* A container that a thread served lately (combined.bpf.h). */
struct sched_served {
	struct fief_ref container;
	__u64 at_ns;  /* when it was last seen to work for it */
	__u64 ran_ns; /* its whole time on CPUs then */
};

struct sched_waiting {
	__u32 container;  /* in whose queue it is counted: id + 1; 0: in none */
	__u32 of;	  /* in whose line it has its place: id + 1 */
	__u64 since_ns;	  /* it waits, across what the kernel changes of it; 0: it has run */
	__u64 ran_ns;	  /* of its whole time on CPUs, what its place knows */
	__u32 epoch;	  /* of the line's policy, as of its place */
	__u32 generation; /* of the container in whose line that is */
	struct line_thread thread;
	__u32 served_count; /* of these; more than 1: the thread is scheduled for all of them */
	__u32 foreign;	    /* 1: it waits on the allocation of another one than it works for, 2: and is counted */
	struct fief_ref allocation; /* whose it has, or waits on */
	__u32 bound;		    /* id of the container that it works for */
	__u32 lent;		    /* 1: it has the allocation since a request of that container waits for it */
	__u32 serving;		    /* where it is counted as one that serves while it waits: id + 1; 0: nowhere */
	__u32 listener;		    /* index + 1 of the one that it last received from a client of; 0: of none */
	__u32 listener_epoch;	    /* the policy's of that; */
	__u32 queue;		    /* and its queue; 0: it has none */
	__u32 ranked;		    /* its rank (thread.bpf.h), as of when it began to wait, + 1; 0: not known */
	__u32 pad;
	__u64 received_ran_ns; /* its whole time on CPUs when it received */
	struct sched_served served[FIEF_SERVED];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sched_waiting);
} sched_threads SEC(".maps");

static __always_inline struct sched_machine *machine_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sched_machines, &zero);
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

static __always_inline struct sched_place *place_at(__u32 cpu)
{
	return bpf_map_lookup_elem(&sched_places, &cpu);
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
 * ends, since a hypervisor may have stopped the holder: then the caller goes round the tree.
 */
__noinline int machine_wait(void)
{
	struct sched_machine *m = machine_get();
	int taken = 0, i;

	if (!m)
		return 0;
	bpf_for (i, 0, LOCK_TRIES_MAX) {
		if (*(volatile __u32 *)&m->lock)
			continue;
		if (!__sync_val_compare_and_swap(&m->lock, 0, 1)) {
			taken = 1;
			break;
		}
	}
	if (!taken)
		state_count(lock_failed);
	return taken;
}

static __always_inline int machine_lock(void)
{
	struct sched_machine *m = machine_get();

	return (m && !__sync_val_compare_and_swap(&m->lock, 0, 1)) || machine_wait();
}

static __always_inline void machine_unlock(struct sched_machine *m)
{
	__sync_lock_test_and_set(&m->lock, 0);
}
