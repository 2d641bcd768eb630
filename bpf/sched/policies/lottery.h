/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Lottery: whenever the CPU is given away a ticket is drawn, and a thread has as many as its nice value says (Waldspurger and
 * Weihl, OSDI 1994).
 *
 * How: of exponential times the least is each one's with a probability in proportion to its rate. They have no memory, so that
 * each thread draws once for each wait, from where the line is, and not all of them for each slice.
 */
#pragma once

#include "../line.h"

#define LOTTERY_MEAN 1000000ull /* of a thread of weight 100 */

/* -log2((n + 1) / 2^32) in 1/65536: the whole part by the leading zeros, the rest by a parabola (to 0.009). */
static inline __u64 lottery_log(__u32 n)
{
	__u64 m = (__u64)n + 1, part;
	__u32 bits = 0, step;

	for (step = 32; step; step >>= 1) {
		if (m >> (bits + step))
			bits += step;
	}
	part = bits >= 16 ? (m >> (bits - 16)) & 0xffff : (m << (16 - bits)) & 0xffff;
	part += (part * (65536 - part) >> 16) * 22713 >> 16;
	return ((__u64)32 << 16) - (((__u64)bits << 16) + part);
}

static inline void lottery_begin(const struct sched_line *l, struct line_thread *t, __u64 now)
{
}

static inline void lottery_place(const struct sched_line *l, struct line_thread *t, __u64 now)
{
	/* ln 2 in 1/65536 */
	__u64 drawn = lottery_log(t->random) * 45426 >> 16;

	t->at = l->clock + by_weight(t, drawn * LOTTERY_MEAN >> 16);
}

static inline void lottery_ran(const struct sched_line *l, struct line_thread *t, __u64 ns)
{
}

static inline void lottery_yields(const struct sched_line *l, struct line_thread *t)
{
}
