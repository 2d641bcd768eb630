/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Order: the arithmetic of shares, weights and limits, on numbers alone.
 *
 * A child with a share advances by its parent's clock divided by the share; all children without one advance together, as one
 * child that has what the shares leave, and among themselves by weight. The child that is behind goes first (stride scheduling,
 * as in Waldspurger's thesis). A child that was away is at most LAG behind, so that it cannot save time up; one that got time
 * which nobody ordered (receiving, an idle CPU) is at most LEAD ahead, so that it does not pay for that for ever. Each CPU is charged when
 * it comes to it: until then all others may choose the same child once more, which pays for that too.
 */
#pragma once

#define WHOLE	     1000000ull /* of a parent: parts per million, as shares are */
#define LAG_NS	     8000000ull
#define LEAD_NS	     40000000ull
#define LEAD_CPU_NS  8000000ull /* and so much more for each CPU above */
#define LEAD_CPUS    4
#define PERIOD_NS    20000000ull
#define DEBT_MOST    100	/* periods */
#define DEBT_STEP_NS 12000000ll /* of one thread, until it is asked again: at a tick */
#define SLICE_NS     3000000ull
#define OWN_WEIGHT   100 /* of the threads of an interior container, among its children */
#define OWN_PRIORITY 100

/* Virtual time of `ns` for a child that has `part` of the WHOLE. */
static inline __u64 stride(__u64 ns, __u64 part)
{
	return ns * WHOLE / (part ? part : 1);
}

/* The same among those without a share; a weight of 10000 is real time. */
static inline __u64 stride_weight(__u64 ns, __u64 weight)
{
	return ns * 10000 / (weight ? weight : 1);
}

static inline bool is_before(__u64 a, __u64 b)
{
	return (__s64)(a - b) < 0;
}

/* How far a child of one of so many CPUs may be ahead. */
static inline __u64 lead_of(__u64 cpus)
{
	return cpus > LEAD_CPUS ? LEAD_NS + (cpus - LEAD_CPUS) * LEAD_CPU_NS : LEAD_NS;
}

/* `at` no further behind the clock than `lag`, no further ahead than `lead`. */
static inline __u64 within(__u64 at, __u64 clock, __u64 lag, __u64 lead)
{
	if (is_before(at, clock - lag))
		return clock - lag;
	if (is_before(clock + lead, at))
		return clock + lead;
	return at;
}

/* The same for a child with a part of the WHOLE, which is no further from its siblings' clock than a child may be; */
static inline __u64 within_part(__u64 at, __u64 clock, __u64 part, __u64 lead)
{
	return within(at, clock, stride(LAG_NS, part), stride(lead, part));
}

/* and for one with a weight. */
static inline __u64 within_weight(__u64 at, __u64 clock, __u64 weight, __u64 lead)
{
	return within(at, clock, stride_weight(LAG_NS, weight), stride_weight(lead, weight));
}

/* What the children without a share have together of their parent's `whole`. They are not starved by shares of 100 %. */
static inline __u64 rest_of(__u64 whole, __u64 given)
{
	__u64 rest = whole > given ? whole - given : 0;

	return rest > whole / 100 ? rest : whole / 100 + 1;
}

/* What a limit gives in one period of all CPUs. */
static inline __s64 quota_of(__u64 limit_ppm, __u64 cpus)
{
	__s64 quota = PERIOD_NS * cpus * limit_ppm / WHOLE;

	return quota ? quota : 1;
}

/* So many periods, and a budget has some left. */
static inline __u64 periods_until(__s64 budget, __s64 quota)
{
	__u64 periods = budget > 0 ? 0 : (__u64)-budget / (__u64)quota + 1;

	return periods > DEBT_MOST ? DEBT_MOST + 1 : periods;
}

/*
 * The budget at the end of so many periods. Nothing is saved up, but that a container whose budget was used up has that of a period more: it
 * comes to it at a beat, and a beat that is late is no fault of its. A debt is paid off.
 */
static inline __s64 refilled(__s64 budget, __s64 quota, __u64 periods)
{
	__s64 most = budget > 0 ? quota : 2 * quota;
	__s64 most_debt = -quota * DEBT_MOST;

	if (budget < most_debt)
		budget = most_debt;
	if (periods > DEBT_MOST)
		periods = DEBT_MOST + 1;
	budget += quota * (__s64)periods;
	return budget > most ? most : budget;
}
