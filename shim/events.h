/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Event sets: what the shim keeps for an epoll instance that a front or a classified connection was added to.
 */
#pragma once

#include <pthread.h>
#include <sys/epoll.h>

#include "fronts.h"

#define HINTS	       8192 /* a power of two */
#define FRONT_CHUNK    32   /* fronts of a set that get memory at once */
#define FRONT_CHUNKS   512
#define FRONTS_PER_SET (FRONT_CHUNK * FRONT_CHUNKS) /* a power of two */
#define FETCH	       256			    /* most events asked of the kernel at once */
#define FETCH_AGAIN    64			    /* while many come that it will tell again anyway */
#define MAX_LEVELS     (2 * MAX_QUEUES)

/* Finds the connection behind an event. Only a hint: what it says is checked against the descriptor. */
struct hint {
	uint64_t data;
	int fd;
};

/* A front that was added to the set; under two names there are two. */
struct registered {
	struct front *front;
	int fd;	     /* that it was added by */
	bool closed; /* which means something else now, but the kernel goes on under another name */
	uint32_t mask;
	uint64_t data;			 /* what the server wants to see */
	bool disarmed;			 /* one-shot, and told: nothing of it is until it is asked for again */
	atomic_uint pending[MAX_QUEUES]; /* as that of a connection */
};

/* An event that the kernel will not tell again, kept while better ones are served. Void unless pending still
 * says so. */
struct held {
	uint64_t data;
	int fd;		 /* connection, or -1: queue of a front */
	short at, queue; /* position in registered, queue there */
};

/* The events of one priority. */
struct level {
	uint32_t priority;
	bool after;	 /* new connections that wait for the existing ones */
	uint32_t passed; /* turns in which it had events and got none out */
	/* a ring of those that are held */
	struct held *held;
	uint32_t first, count, room;
};

struct events {
	/* these stay when the set has ended; its memory is the next one's (sets.c) */
	pthread_mutex_t lock;
	struct events *next;
	atomic_int users; /* threads that wait for it or change it */
	int id;		  /* no other set of this process ever has it */
	int names;	  /* descriptors of this process that mean it; of who holds fronts_lock(), as `next` */
	int fd;		  /* one of them */
	pid_t owner;	  /* the process that made it; a child shares what the kernel keeps of it. As `names` */
	pthread_t waiter;
	bool waited;
	/* several threads wait, or somebody polls the descriptor itself: nothing may be held back */
	atomic_bool shared;
	bool foreign;		  /* in the last turn the kernel told of queues that this process does not know */
	bool many_again;	  /* the last turn left out many that the kernel will tell again */
	_Atomic time_t refreshed; /* when a waiting thread last looked at the policy, in seconds */
	int registered_count;
	struct registered *registered[FRONT_CHUNKS]; /* in chunks, which stay where they are */
	uint32_t held_count;			     /* in all levels */
	int level_count;
	struct level levels[MAX_LEVELS];
	uint8_t ranking[MAX_LEVELS]; /* levels, best first */
	struct hint hints[HINTS];
};

/* A front of the set; `at` is below registered_count. */
static inline struct registered *registered_at(struct events *set, int at)
{
	return &set->registered[at / FRONT_CHUNK][at % FRONT_CHUNK];
}

/* What the server sees instead of the shim's own word for a queue of a front. */
uint64_t events_mark(int at, int queue);

/* Remembers which connection bears this word. */
void events_hint(struct events *set, uint64_t data, int fd);

/*
 * Puts in order what the kernel told and what is held, and fills `out`; `count` is at most `room`. At least
 * one, if anything is left that is not void.
 */
int events_order(struct events *set, const struct epoll_event *fresh, int count, struct epoll_event *out, int room);

/* Puts nothing in order: only the server's own words are in `events` then. NULL: no set is known. How many are left. */
int events_unmark(struct events *set, struct epoll_event *events, int count);
