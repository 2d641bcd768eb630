/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Charge: one state machine per CPU. */
#pragma once

#include "bind.h"

#define FIEF_MAX_CPUS	 512

#define FIEF_CACHE_SLOTS 64
#define FIEF_KEPT	 8
#define FIEF_RECENT	 4
#define FIEF_SERVED	 8 /* containers that a thread is scheduled for together */
/* Of `received`, which has two listeners (core/clients.h): the thread has sent to clients of both, or to one of the other */
#define FIEF_ANSWERED	    (1u << 31)
#define FIEF_ANSWERED_OTHER (1u << 30)
#define FIEF_CLIENT_BITS    11 /* FIEF_MAX_LISTENERS */
#define FIEF_CLIENT	    ((1u << FIEF_CLIENT_BITS) - 1)

/* one entry of the write-back cache of usage: a container's */
struct fief_cache_slot {
	struct fief_ref container;
	struct fief_ref heir; /* where the counters go if the container has ended meanwhile */
	__u64 thread_ns;
	__u64 receive_ns;
	__u64 packets_in;
	__u64 bytes_in;
	__u64 packets_out;
	__u64 bytes_out;
};

/* The record of a thread that left this CPU, as it is stored (core/record.bpf.h). */
struct fief_recent {
	__u64 thread;	/* where the kernel keeps the thread; 0: an empty entry */
	__u64 started;	/* when it was made */
	__u64 requests; /* fief_control's when the record was read */
	__u32 switches; /* the thread's context switches when it left */
	__u32 pad;
	struct fief_task task;
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

/* What every event reads and writes comes first: 64 bytes, which are one cache line where the record begins at one. */
struct fief_cpu {
	__u32 sequence; /* odd while a charge is under way */
	__u8 online;
	__u8 by_client;		  /* charges are counted by client (core/cost.bpf.h) */
	__u8 scheduled;		  /* charges gather in the containers, for the scheduler */
	__u8 watched;		  /* charges are looked at (core/watch.bpf.h) */
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
	__u64 switched_in_exec; /* sum_exec_runtime of the running thread then; all ones: not known */
	__u64 softirq_ns;	/* softirqs on top of this stint, and interrupts where sum_exec_runtime lacks both */
	__u64 softirq_entry_ns;
	struct fief_ref interrupted; /* current_ under the softirq */
	__u32 interrupted_kind;
	__u32 interrupted_receive;
	__s64 carry_ns;	    /* of threads without a record */
	__u64 steal_seen;   /* the run queue's steal clock at the last look */
	__u64 excluded;	    /* what it had left out of its threads' accounts by then, of which this is taken */
	__u64 stint_stolen; /* taken from this stint already */
	__s64 clock_offset; /* CLOCK_MONOTONIC less the run queue's clock: the smallest seen lately */
	struct fief_ref irq_current;
	__u32 irq_kind;
	__u32 irq_receive;
	__s32 kthread; /* the last kernel thread here, by number, and what kind of work it does */
	__u32 kthread_kind;
	__u32 switches;	      /* its context switches when its stint began */
	__u32 clock_compared; /* the run queue's clock when it was last compared, in units of switch.bpf.h */
	__u32 changing;	      /* threads in the midst of changing their record here, where interrupts cannot be off */
	__u32 recalled;	      /* 1: task began as what `recent` has of the thread, which is what is stored */
	__u64 requests_read;  /* fief_control's requests when the storage of the running thread was asked for one */
	__u64 thread;	      /* where the kernel keeps the running thread, whose number exec can change */
	__u64 run_clock;      /* where the kernel accounts what threads ran on this CPU; 0: no switch was missed here */
	__u64 ran_before;     /* what it showed when this stint began */
	__u64 run_queue;      /* where the kernel says who runs here; 0: not known yet */
	__u64 clock_from;     /* CLOCK_MONOTONIC when the window of clock_next began */
	__s64 clock_next;     /* the smallest distance of both clocks in it, which the next window begins with */
	__u64 system_kind_ns[FIEF_SYSTEM_KINDS];
	/* thread references that were not let go of: id, generation << 32; 0: none (core/kept.bpf.h) */
	__u64 kept[FIEF_KEPT];
	/* While the scheduler is on (core/served.bpf.h). */
	__u64 discards;		  /* 1: the packet that is received is dropped (core/excess.bpf.h) */
	struct fief_ref kept_for; /* whose request the front door keeps, while `receive` says so */
	struct fief_ref
	    allocation; /* whose the running thread's work is to the scheduler; FIEF_NO_ID: whose it is charged to */
	struct fief_ref next_allocation; /* of the thread that was chosen to run next */
	__u64 next_thread;		 /* that thread, if it has one */
	__u32 served_count;		 /* of these */
	__u32 served_reset;		 /* 1: what the thread served before counts no more */
	__u32 received;	  /* index + 1 of two listeners whose clients it has served (core/clients.h); 0: none */
	__u32 limit_cpus; /* CPUs that the machine has, by which limits are counted */
	struct fief_ref served[FIEF_SERVED]; /* whom the running thread worked for since the scheduler last looked */
	struct fief_recent recent[FIEF_RECENT];
	struct fief_cache_slot cache[FIEF_CACHE_SLOTS];
};
enum fief_receive {
	FIEF_RX_NONE = 0,
	FIEF_RX_OPEN = 1, /* a bit: the time goes to the pool */
	FIEF_RX_PACKET = 2,
	FIEF_RX_DOOR = 3, /* to the pool; the packet that came last waits at the front door, for `kept_for` */
};
