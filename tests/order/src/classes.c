// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The order of a queue's classes (bpf/front/classes.bpf.h), over one queue of this process. */
#include <stdbool.h>
#include <string.h>

#include "types.h"

#include "abi.h"

#define barrier_var(var) __asm__ volatile("" : "+r"(var))
#define can_loop	 true
#define loop_from(at)	 (at)

#include "front/classes.bpf.h"
#include "front/pace.bpf.h"
#include "front/stands.bpf.h"

static struct fief_queue queue;

void classes_reset(void)
{
	memset(&queue, 0, sizeof(queue));
	queue.below_level = FIEF_QUEUE_CLASSES; /* no class is promised a latency */
}

/* The number is that of the first class of its level. */
void classes_add(__u32 level, __u32 weight, bool floor)
{
	struct fief_queue_class *of = queue_class(&queue, queue.classes++);

	of->level = level;
	of->weight = weight;
	of->floor = floor;
}

void classes_wait(__u32 class, bool waits)
{
	if (waits)
		class_begins(&queue, queue_class(&queue, class));
	queue.bits = (queue.bits & ~(1u << class)) | (__u32)waits << class;
	if (!waits)
		queue_class(&queue, class)->passed = 0;
}

void classes_flat(void)
{
	queue.flat = 1;
}

void classes_turn(__u32 class, __u64 turn, __u64 level_turn)
{
	queue_class(&queue, class)->turn = turn;
	queue_class(&queue, class)->level_turn = level_turn;
}

/* The class that is next, or -1: as found by turns alone, or whatever decides. */
__s32 classes_next(bool flat)
{
	__u32 class;

	return (flat ? flat_next(&queue, &class) : any_next(&queue, 0, &class)) ? (__s32) class : -1;
}

/* One of it is served at once, since nobody waits, or nobody is served either. */
void classes_enter(__u32 class, bool idle)
{
	if (idle)
		levels_settle(&queue);
	level_serves(&queue, queue_class(&queue, class));
}

/* The class whose request goes to the server, or -1. */
__s32 classes_serve(__u64 now)
{
	__u32 class;

	if (!class_next(&queue, now, &class))
		return -1;
	classes_passed(&queue, class);
	level_serves(&queue, queue_class(&queue, class));
	return class;
}

void classes_charge(__u32 class, __u64 ns)
{
	struct fief_queue_class *of = queue_class(&queue, class);

	of->turn += ns * 100 / of->weight;
}

void classes_hold(__u32 class, __u64 until_ns)
{
	queue_class(&queue, class)->again_ns = until_ns;
}

/* The classes of this level are promised a latency, and those below have so many places, of which so many are taken. */
void classes_promise(__u32 level, __u32 below, __u32 taken)
{
	queue.below_level = level;
	queue.below = below;
	queue.busy_below = taken;
}

void classes_open(void)
{
	queue.open = 1;
}

__u64 classes_delay(__u64 cost, __u64 limit_ns)
{
	return limit_delay(cost, limit_ns);
}

bool refusals_follow(__u64 now)
{
	return pace_allows(&queue, now);
}

void line_waits(__u64 wait_ns, __u64 short_ns)
{
	queue_class(&queue, 0)->wait_ns = wait_ns;
	queue_class(&queue, 0)->short_ns = short_ns;
}

/* One comes, at `now`, and is the last of so many, of which the first came at `first_ns`. How long one may wait from now on. */
__u64 line_comes(__u64 now, __u32 waiting, __u64 first_ns)
{
	struct fief_queue_class *of = queue_class(&queue, 0);

	of->list.linked = waiting - 1;
	of->waiting = waiting;
	of->late_ns = first_ns + class_wait(of);
	class_watch(of, now);
	of->list.linked = waiting;
	return class_wait(of);
}

/* The same where one has gone. */
__u64 line_goes(__u32 waiting)
{
	struct fief_queue_class *of = queue_class(&queue, 0);

	of->list.linked = of->waiting = waiting;
	if (!waiting)
		class_is_empty(of);
	return class_wait(of);
}

bool line_has_enough(__u64 now)
{
	return class_has_enough(queue_class(&queue, 0), now);
}

__u64 line_would_wait(__u64 now)
{
	return class_would_wait(queue_class(&queue, 0), now);
}

void line_serves(void)
{
	queue_class(&queue, 0)->released++;
}

void line_refuses(bool late)
{
	if (late)
		queue_class(&queue, 0)->refused_wait++;
	else
		queue_class(&queue, 0)->refused_full++;
}
