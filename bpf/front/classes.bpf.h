/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Classes: which class's request is next.
 *
 * Problem: an order by limits, priorities and weights, under a lock, where nothing can be looked up.
 * How: the classes of one priority are a level. The first level goes first, and within it the class that was served least for its
 * weight, by CPU time. A level of another priority than 0 that was passed over FIEF_QUEUE_PASSED times is next, so that none starves;
 * its own order decides whose request goes. A class that has used up its limit of the CPU is passed over until it has budget again.
 * What a class uses while nobody waits is not held against it: the level goes on with it (start-time fair queueing).
 * Limits: within a level a class with dear requests waits for as long as the others take to have as much.
 *
 * Each function takes the queue's classes as they come, and has no branches within, which the verifier would follow in all combinations.
 */
#pragma once

#ifdef __bpf__ /* in user space the including file defines the loops */
#include "bytes.bpf.h"
#endif

#define QUEUE_NEVER (1ull << 62)
#define UNROLLED    _Pragma("clang loop unroll(full)")

static __always_inline struct fief_queue_class *queue_class(struct fief_queue *q, __u32 class)
{
	return &q->class[class & (FIEF_QUEUE_CLASSES - 1)];
}

#define COST_EXACT_NS 10000000000ull /* more cannot be multiplied */
#define COST_MOST_NS                                                                                                   \
	60000000000ull /* what a container did while nobody asked for it keeps no request waiting for hours */

/* How long a class has to wait for what it used at once, by a limit in ns of CPU time a second. */
static __always_inline __u64 limit_delay(__u64 cost, __u64 limit_ns)
{
	if (cost > COST_MOST_NS)
		cost = COST_MOST_NS;
	if (cost > COST_EXACT_NS)
		return cost / 1000 * 1000000000 / (limit_ns / 1000 ?: 1);
	return cost * 1000000000 / (limit_ns ?: 1);
}

/* 1: the class has used up its limit; an open queue has none. Without branches, as class_order(). */
static __always_inline __u64 class_is_over(const struct fief_queue *q, const struct fief_queue_class *of, __u64 now)
{
	__u64 over = (now - *(const volatile __u64 *)&of->again_ns) >> 63;

	barrier_var(over);
	return over & ~q->open;
}

/* 1: it is below a class that is promised a latency. Without branches, as class_order(). */
static __always_inline __u32 class_is_below(const struct fief_queue *q, const struct fief_queue_class *of)
{
	__u64 above = (__u64)q->below_level - of->level;

	above >>= 63;
	barrier_var(above);
	return above;
}

/* 1: it is, and has its places there. */
static __always_inline __u64 class_is_full(const struct fief_queue *q, const struct fief_queue_class *of)
{
	__u64 full = *(const volatile __u32 *)&q->below - 1ull - *(const volatile __u32 *)&q->busy_below;

	full >>= 63;
	barrier_var(full);
	return full & class_is_below(q, of) & ~q->open;
}

/* Where nobody of it waits, QUEUE_NEVER; else 0. */
static __always_inline __u64 class_absent(const struct fief_queue *q, __u32 class)
{
	return (__u64)(~q->bits >> (class & (FIEF_QUEUE_CLASSES - 1)) & 1) << 62;
}

/* In which order the classes go: the least is next. Without branches, which the verifier would follow in all combinations. */
static __always_inline __u64 class_order(struct fief_queue *q, __u32 class, __u64 now)
{
	struct fief_queue_class *of = queue_class(q, class);
	__u64 ahead = of->turn - q->class[of->level & (FIEF_QUEUE_CLASSES - 1)].level_turn;
	__u64 often = FIEF_QUEUE_PASSED - 1ull - of->passed, over, behind = ahead >> 63;

	barrier_var(behind);
	ahead &= behind - 1; /* behind the last one that was served, as its limit was used up */
	over = ahead >> 48;
	barrier_var(often);
	often = often >> 63 & of->floor;
	barrier_var(often);
	over = -over >> 63; /* 1: too far ahead for 48 bits */
	barrier_var(over);
	ahead |= -over;
	ahead &= (1ull << 48) - 1;
	/* those whose level was passed over often enough are before all levels, in their order */
	ahead |= (of->level + 1ull) << 48 & (often - 1);
	return ahead | class_absent(q, class) | (class_is_over(q, of, now) | class_is_full(q, of)) << 62;
}

/* The least of what was seen, and whose it is. */
struct class_least {
	__u64 least;
	__u32 class;
};

/* Takes `at` of a class, if it is less. Both are below 1 << 63. Without branches, as class_order(). */
static __always_inline void class_take(struct class_least *seen, __u32 class, __u64 at)
{
	__u64 behind = at - seen->least;

	barrier_var(behind);
	behind = -(behind >> 63);
	barrier_var(behind);
	seen->least ^= (seen->least ^ at) & behind;
	seen->class ^= (seen->class ^ class) & (__u32)behind;
}

/* Fills the class that is next, whatever decides. */
static __always_inline bool any_next(struct fief_queue *q, __u64 now, __u32 *next_class)
{
	struct class_least next = {.least = QUEUE_NEVER};
	__u32 class, end = q->classes;

	for (class = loop_from(0); class < end && can_loop; class ++)
		class_take(&next, class, class_order(q, class, now));
	*next_class = next.class & (FIEF_QUEUE_CLASSES - 1);
	return next.least < QUEUE_NEVER;
}

/* The less of two: a turn in the upper part of a word, its class in the last bits. Without branches, as class_order(). */
static __always_inline __u64 flat_least(const struct fief_queue *q, __u32 class, __u64 from, __u64 absent, __u64 least)
{
	__u64 turn = q->class[class].turn, ahead = turn - from, behind = ahead >> 63, less;

	barrier_var(behind);
	ahead &= behind - 1;
	ahead = ahead << 5 | class | (absent << (62 - class) & QUEUE_NEVER);
	less = (ahead - least) >> 63;
	barrier_var(less);
	return least ^ ((least ^ ahead) & -less);
}

/* Fills the class that is next, of one level without limits and promises. */
static __always_inline bool flat_next(const struct fief_queue *q, __u32 *next_class)
{
	__u64 from = q->class[0].level_turn, absent = (__u32)~q->bits, least = QUEUE_NEVER;
	__u32 first, at;

	/* the compiler knows each class, so that no place has to be computed */
	UNROLLED
	for (first = 0; first < FIEF_QUEUE_CLASSES; first += 8) {
		if (first >= q->classes)
			break;
		UNROLLED
		for (at = 0; at < 8; at++)
			least = flat_least(q, first + at, from, absent, least);
	}
	*next_class = least & (FIEF_QUEUE_CLASSES - 1);
	return least < QUEUE_NEVER;
}

/* Fills the class that is next. False: nobody waits, or all that do have used up their limits. */
static __always_inline bool class_next(struct fief_queue *q, __u64 now, __u32 *next_class)
{
	if (q->flat)
		return flat_next(q, next_class);
	return any_next(q, now, next_class);
}

/* When the first of the classes that wait, which have all used up their limits, may go again. */
static __always_inline __u64 class_first_again(struct fief_queue *q)
{
	struct class_least first = {.least = QUEUE_NEVER};
	__u32 class, end = q->classes;

	for (class = loop_from(0); class < end && can_loop; class ++)
		class_take(&first, class, queue_class(q, class)->again_ns | class_absent(q, class));
	return first.least;
}

/*
 * One of `served` goes: the waiting classes of worse levels were passed over. Those of its own level were not, since they have their
 * turns by what each has had. Without branches, as class_order().
 */
static __always_inline void classes_passed(struct fief_queue *q, __u32 served)
{
	__u32 class, end = q->flat ? 0 : q->classes, others = q->bits & ~(1u << (served & (FIEF_QUEUE_CLASSES - 1)));
	__u64 level = queue_class(q, served)->level;

	for (class = loop_from(0); class < end && can_loop; class ++) {
		struct fief_queue_class *at = queue_class(q, class);
		__u64 of = at->level, worse = (level - of) >> 63, same = ((level ^ of) - 1) >> 63;

		barrier_var(worse);
		barrier_var(same);
		at->passed += others >> (class & (FIEF_QUEUE_CLASSES - 1)) & (__u32)worse;
		at->passed &= (__u32)same - 1;
	}
}

#define DEBT_MOST_NS 10000000000ull

/* Somebody of a class begins to wait: it has saved nothing up, and owes no more than DEBT_MOST_NS of the CPU. */
static __always_inline void class_begins(struct fief_queue *q, struct fief_queue_class *of)
{
	__u64 least = queue_class(q, of->level)->level_turn, ahead = of->turn - least, behind = ahead >> 63, over;
	__u64 most = DEBT_MOST_NS * 100 / (of->weight ?: 1);

	barrier_var(behind);
	ahead &= behind - 1;
	over = (most - ahead) >> 63;
	barrier_var(over);
	of->turn = least + (ahead ^ ((ahead ^ most) & -over));
}

/* The server has nothing to do: nobody owes anything for what was had meanwhile. Without branches, as class_order(). */
static __always_inline void levels_settle(struct fief_queue *q)
{
	__u32 class, end = q->classes;

	for (class = loop_from(0); class < end && can_loop; class ++) {
		const struct fief_queue_class *of = queue_class(q, class);
		struct fief_queue_class *level = queue_class(q, of->level);
		__u64 ahead = of->turn - level->level_turn, behind = ahead >> 63;

		barrier_var(behind);
		level->level_turn += ahead & (behind - 1);
	}
}

/* One of a class is served. One that could not be for a while, since its limit was used up, has saved nothing up either. */
static __always_inline void level_serves(struct fief_queue *q, struct fief_queue_class *of)
{
	struct fief_queue_class *level = queue_class(q, of->level);

	if ((__s64)(level->level_turn - of->turn) > 0)
		of->turn = level->level_turn;
	level->level_turn = of->turn;
}
