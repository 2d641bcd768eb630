/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Watch: by which sources a container is charged, while somebody asks. */
#pragma once

#include "container.h"

/* Sources of the present turn and of the one before it. */
#define FIEF_WATCH_SOURCES 4096

/* How time came to the container; says what the number of a source is. */
enum fief_why {
	FIEF_WHY_REST,	    /* sources that there was no room for */
	FIEF_WHY_HOME,	    /* thread: it is at home there */
	FIEF_WHY_CALL,	    /* thread: bound by a call, or by fief bind */
	FIEF_WHY_FOLLOW,    /* thread: it took the container of the socket or file it works on */
	FIEF_WHY_PROGRAM,   /* thread: of a program that was started for a client */
	FIEF_WHY_WRITEBACK, /* kernel thread: it wrote a labelled file back */
	FIEF_WHY_PACKET,    /* local port: packets were received */
	FIEF_WHY_LANE,	    /* local port: the same, in the thread of a lane */
	FIEF_WHY_KERNEL,    /* enum fief_system_kind: softirqs and interrupts, which are the system's */
	FIEF_WHY_KTHREAD,   /* kernel thread, which is the system's */
	FIEF_WHY_UNMANAGED, /* thread that nobody manages, which is the root's */
	FIEF_WHYS
};

/* what is watched */
struct fief_watch {
	struct fief_ref container;
	__u64 until_ns; /* CLOCK_MONOTONIC; a reader that lives moves it on */
	__u32 turn;	/* 0 or 1: which sums are added to now */
	__u32 below;	/* what is below the container counts too */
};

struct fief_charge_source {
	__u32 turn;
	__u32 why;
	__u32 number;
};

struct fief_charge_sum {
	__u64 ns;
	__u64 charges;
	__s32 process; /* of a thread */
	__u32 pad;
	char name[16]; /* of a thread */
};

/* of one CPU */
struct fief_watch_room {
	__u32 port; /* local port of the packet that is received */
	__u32 pad;
	struct fief_charge_sum fresh;
};
