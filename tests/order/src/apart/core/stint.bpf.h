/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * In the place of the core's header: what the scheduler takes from the core. Threads have no rings and serve no listener, and what they run for
 * is charged by the test (cpus.h).
 */
#pragma once

static struct fief_control control;
static __u64 news;
static int guards; /* stands for the map */

static struct fief_control *control_get(void)
{
	return &control;
}

static __u64 requests_told(void)
{
	return control.requests;
}

static __u64 *queue_news_get(void)
{
	return &news;
}

static struct fief_cpu *this_cpu(void)
{
	return cpu_at(bpf_get_smp_processor_id());
}

static bool same_ref(struct fief_ref a, struct fief_ref b)
{
	return a.id == b.id && a.generation == b.generation;
}

static void ring_look(struct fief_cpu *cs, __u64 now)
{
	(void)cs, (void)now;
}

static void charge_until(struct fief_cpu *cs, __u64 now)
{
	(void)cs, (void)now;
}

static void pending_settle(struct fief_cpu *cs, struct fief_ref to)
{
	(void)cs, (void)to;
}
