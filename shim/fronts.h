/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Fronts: the server's listening sockets, with the class listeners behind them, and what the shim knows of
 * descriptors.
 *
 * A front stays a real listening socket: what no class takes arrives there.
 */
#pragma once

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <linux/types.h>
#include <sys/types.h>
#include "abi.h"

#define MAX_DESCRIPTORS (1 << 20) /* those above are the server's own business */

/* One more queue than classes: the front's own, which is not classified. */
#define MAX_QUEUES   (FIEF_MAX_CLASSES + 1)

#define OWN_QUEUE    0 /* of each front */
#define OWN_PRIORITY 100

/*
 * What tells a class listener of the shim from the own listening socket of a copy of a server for one class: the signal of the open
 * file, which goes with it through exec, and which is never sent without O_ASYNC.
 */
#define QUEUE_SIGNAL SIGURG

/* Several threads look at queues while one brings them up to the policy. */
struct queue {
	atomic_int fd; /* -1: the class has no listener (yet) */
	atomic_uint priority;
	atomic_bool after; /* new connections wait until no existing one has work */
	struct fief_ref container;
	atomic_uint passed; /* turns in which it was ready and another was taken */
	unsigned gone;	    /* looks in a row at a policy without its class; of who holds fronts_lock() */
};

struct front {
	int listener;	  /* index in the policy */
	atomic_int count; /* of queues; those that are there stay where they are */
	atomic_int names; /* descriptors of this process that mean it */
	atomic_bool blocking;
	atomic_int waiter;		 /* event descriptor over the queues, for blocking accept(); -1: none yet */
	_Atomic pid_t waiter_owner;	 /* after fork() it is another's */
	struct timespec receive_timeout; /* SO_RCVTIMEO; 0: none */
	/* queues that an event loop was told of, and that wait for the accept() which follows; a bit each */
	atomic_ullong offered;
	/* Serves the front's own queue when it is blocking: who saw it ready takes the connection before
	 * anybody else looks (turns.c). */
	struct turn *turn;
	_Atomic time_t looked;		 /* when the policy was last asked for, in seconds */
	uint32_t epoch;			 /* of the policy that was found then */
	uint32_t refused;		 /* its classes whose listeners this process may not make, a bit each */
	struct queue queues[MAX_QUEUES]; /* the front's own first */
};

_Static_assert(FIEF_MAX_CLASSES <= 32, "each class has its bit in `refused`");

static inline bool same_container(struct fief_ref a, struct fief_ref b)
{
	return a.id == b.id && a.generation == b.generation;
}

enum kind {
	PLAIN,
	FRONT,
	CONNECTION,
	EVENTS, /* epoll descriptor */
	QUEUE,	/* class listener: the server does not know it, but may close all that it did not open */
	WAITER, /* what blocking accept() waits with */
};

/* A thread that puts events in order looks at connections that another one may be closing. */
struct descriptor {
	_Atomic uint8_t kind;
	atomic_uint priority;  /* connection: of its class */
	atomic_int events;     /* connection: the set that it was last added to; epoll descriptor: who made it */
	atomic_uint mask;      /* connection: what was asked for there */
	atomic_uint pending;   /* connection: events that wait in user space */
	_Atomic uint64_t data; /* connection: what its events bear */
	/* no union: a thread that has read the kind may find that the number means something else by now */
	struct front *_Atomic front;
	struct events *_Atomic set; /* epoll descriptor; NULL: it has none yet */
};

extern struct descriptor descriptors[MAX_DESCRIPTORS];
extern atomic_int front_count; /* 0: every function is the C library's own */

static inline struct descriptor *descriptor_at(int fd)
{
	return fd >= 0 && fd < MAX_DESCRIPTORS ? &descriptors[fd] : NULL;
}

/* All descriptors that mean anything are below. */
int descriptors_used(void);
void descriptor_is(int fd, enum kind kind);

static inline struct front *front_of(int fd)
{
	struct descriptor *d = descriptor_at(fd);

	if (!atomic_load_explicit(&front_count, memory_order_relaxed) || !d || d->kind != FRONT)
		return NULL;
	return d->front;
}

/* A child of vfork() runs in our memory with descriptors of its own: what it closes stays open here. */
bool in_own_process(void);
extern pid_t own_process;
#define FOREIGN_PROCESS (-1) /* of another PID namespace: whether it lives cannot be asked */

struct front *front_new(int fd, int listener);
void front_name(struct front *front, int fd);
/* Its classes go on through its own queue. */
void front_close_queues(struct front *front);
bool front_ask(int fd, struct fief_classes *answer);
bool is_listening(int fd);
/* The class of a container; NULL: there is none. */
const struct fief_class *find_class(const struct fief_classes *classes, struct fief_ref container);
void front_read_timeout(struct front *front, int fd);
/* Gives the front a class listener that is there already. False: it has one of the class, or no room. */
bool front_adopt_queue(struct front *front, int fd, const struct fief_class *class);
/*
 * The front listens, and may have been shut: its class listeners listen too. Makes those that are missing, also if they were refused
 * before, and brings the others up to the policy.
 */
void front_open_queues(struct front *front, int fd, int backlog);
/* The same, now and then. */
void front_refresh(struct front *front, int fd);
/*
 * Held by who changes which queues there are and which sets hear of them, or makes what several threads could make at once. Taken
 * before the lock of a set. A thread that holds it is not cancelled.
 */
void fronts_lock(void);
void fronts_unlock(void);
/* In a child of fork(). */
void fronts_forked(void);

/* A server that accepts by one gets no class listeners (listeners.c). */
bool has_io_uring(void);
/* A socket that is bound for one class of the front's address, or -1. */
int bind_queue(int front, uint32_t class);
/* The same, which listens. */
int open_queue(int front, uint32_t class, int backlog);
