/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Load: the level of overload of a listener, on which controls can depend (Voigt et al. 2001, section 3).
 *
 *   queues         the accept queue's and the queue of requests', now    any of them at its threshold: the level is
 *   CPU            of the machine at work for a container, smoothed      reached; it is left when none was for `hold_ns`
 *   drops          connections that found the accept queue full, smoothed
 *
 * Problem: the level must be known while a flood arrives, without a daemon, and must not flap. And only honest work may raise
 * it: the traffic that a control is against must not switch it on, nor may the control's own refusals.
 * How: the program that handles a packet takes the measurements, at most once in FIEF_LOAD_LOOK_NS for each listener; one CPU
 * takes the turn. Our refusals are no drops, whatever their reason. A drop is a connection with a valid cookie that found the
 * queue full. The kernel's count at the listening socket adds to these while its accept queue is nearly full. At other times
 * anybody can raise that count, by SYNs that overflow the queue of handshakes or by segments signed with MD5 (tcp_v4_rcv:
 * sk_drops_skbadd). Of the CPU, receive work that found no socket of a managed unit is left out: the packets of a flood end
 * there.
 * Limits: a listener without packets keeps its level until the next packet; the first measurement only takes the counters. While no
 * CPU time is charged, which is so only where no control depends on a level, the level goes by queues and drops alone.
 * Servers outside of managed units count by their threads alone. Where the kernel answers SYNs, each that police lets pass is
 * work for the listener.
 */
#pragma once

#include "context.bpf.h"
#include "counted.bpf.h"
#include "spent.bpf.h"
#include "stands.bpf.h"
#include "maps/guards.bpf.h"
#include "maps/loads.bpf.h"
#include "maps/queues.bpf.h"
#include "maps/thresholds.bpf.h"

#define MILLION	    1000000u
#define SECOND_NS   1000000000ull
#define NEARLY_FULL 75 /* percent of the accept queue, which servers empty in batches */

/* Moves `old` towards `fresh`, by as much as `passed` is of the time that is smoothed over. */
static __always_inline __u32 smoothed(__u32 old, __u32 fresh, __u64 passed)
{
	__s64 step = (__s64)fresh - old;
	bool down = step < 0;
	__u64 size = down ? -step : step;

	if (passed >= FIEF_LOAD_SMOOTH_NS)
		return fresh;
	size = size * passed / FIEF_LOAD_SMOOTH_NS;
	return down ? old - size : old + size;
}

static __always_inline void cpu_look(struct fief_load *load, __u64 passed, __u64 now)
{
	__u64 idle, was = load->idle_ns + load->receiving_ns, receiving;
	__u32 count = cpus_charged(), before = load->cpus, busy = MILLION;

	idle = container_spent(FIEF_IDLE, now);
	receiving = received_for_nobody();
	load->idle_ns = idle;
	load->receiving_ns = receiving;
	load->cpus = count;
	if (!count)
		load->cpu_ppm = 0; /* no CPU time is charged now (core/pause.bpf.h) */
	idle += receiving;
	/* what was idle before the charge began is not known */
	if (!passed || !count || !before || idle < was)
		return;
	idle = (idle - was) * MILLION / (passed * count);
	if (idle < MILLION)
		busy -= idle;
	else
		busy = 0;
	load->cpu_ppm = smoothed(load->cpu_ppm, busy, passed);
}

/* After accept_look; `before`: how full the accept queue was at the look before. */
static __always_inline void drops_look(struct fief_load *load, __u32 listener, struct sock *listening, __u32 before,
				       __u64 passed)
{
	__u64 full = queue_full_sum(listener), drops = full - load->dropped_seen;
	__u32 kernel;

	load->dropped_seen = full;
	if (listening) {
		kernel = listening->sk_drops.counter;
		/* else it is another socket */
		if (kernel >= load->drops_seen && (load->accept_percent >= NEARLY_FULL || before >= NEARLY_FULL))
			drops += kernel - load->drops_seen;
		load->drops_seen = kernel;
	}
	if (!passed)
		return;
	drops = drops * SECOND_NS / passed;
	load->drops = smoothed(load->drops, drops > ~0u ? ~0u : drops, passed);
}

static __always_inline void accept_look(struct fief_load *load, struct sock *listening)
{
	__u32 most = listening->sk_max_ack_backlog;

	load->accept_percent = most ? listening->sk_ack_backlog * 100ull / most : 0;
}

/* Those that wait, or would. */
static __always_inline __u32 queue_waits_of(struct fief_queue *q, __u64 now)
{
	__u64 waiting = 0;
	__u32 class;

	for (class = 0; class < FIEF_QUEUE_CLASSES && can_loop; class ++)
		waiting += class_would_wait(&q->class[class & (FIEF_QUEUE_CLASSES - 1)], now);
	return waiting < q->length ? waiting : q->length;
}

/* How full the queue of requests is. A function of its own to the verifier, which follows its loop once. */
__noinline __u32 queue_percent_of(__u32 listener, __u32 slot, __u64 now)
{
	__u32 at = slot * FIEF_MAX_LISTENERS + listener;
	struct fief_guard *guard = bpf_map_lookup_elem(&guards, &at);
	struct fief_queue *q;

	if (!guard || !guard->queue)
		return 0;
	q = bpf_map_lookup_elem(&queues, &guard->queue);
	return q && q->length ? queue_waits_of(q, now) * 100ull / q->length : 0;
}

/* Behind a queue of requests the accept queue stays empty, and who waits is there. */
static __always_inline void queue_look(struct fief_load *load, __u32 listener, __u32 slot, __u64 now)
{
	__u32 waiting = queue_percent_of(listener, slot, now);

	load->queue_percent = waiting > load->accept_percent ? waiting : load->accept_percent;
}

static __always_inline bool level_measured(const struct fief_load *load, const struct fief_thresholds *from, __u32 at)
{
	return (from->queue_percent[at] && load->queue_percent >= from->queue_percent[at]) ||
	       (from->cpu_percent[at] && load->cpu_ppm / 10000 >= from->cpu_percent[at]) ||
	       (from->drops[at] && load->drops >= from->drops[at]);
}

static __always_inline void level_set(struct fief_load *load, const struct fief_thresholds *from, __u64 now)
{
	__u32 level = FIEF_ALWAYS;

	if (level_measured(load, from, 1))
		load->above_ns[0] = load->above_ns[1] = now;
	else if (level_measured(load, from, 0))
		load->above_ns[0] = now;
	if (load->above_ns[0] && now - load->above_ns[0] <= from->hold_ns)
		level = FIEF_BUSY;
	if (load->above_ns[1] && now - load->above_ns[1] <= from->hold_ns)
		level = FIEF_OVERLOADED;
	load->level = level;
}

static __noinline int load_renew(struct fief_load *load, struct sock *listening, __u32 listener, __u32 slot, __u64 now)
{
	const struct fief_thresholds *from = bpf_map_lookup_elem(&thresholds, &slot);
	__u64 looked = load->looked_ns, passed;
	__u32 before = load->accept_percent;

	/* another CPU may have looked since this one read the clock */
	if (!from || (__s64)(now - looked) < (__s64)FIEF_LOAD_LOOK_NS ||
	    __sync_val_compare_and_swap(&load->looked_ns, looked, now) != looked)
		return 0;
	passed = looked ? now - looked : 0;
	cpu_look(load, passed, now);
	if (listening)
		accept_look(load, listening);
	queue_look(load, listener, slot, now);
	drops_look(load, listener, listening, before, passed);
	level_set(load, from, now);
	return 0;
}

/* Renews the load of the listener if it is due. `listening`: its socket, or NULL if it is not at hand. */
static __always_inline void load_look(struct front_context *front, struct bpf_sock *listening)
{
	__u32 listener = front->listener.index;
	struct fief_load *load = bpf_map_lookup_elem(&loads, &listener);
	struct tcp_sock *tcp = NULL;

	if (!load || (__s64)(front->now - load->looked_ns) < (__s64)FIEF_LOAD_LOOK_NS)
		return;
	if (listening)
		tcp = bpf_skc_to_tcp_sock(listening);
	load_renew(load, tcp ? &tcp->inet_conn.icsk_inet.sk : NULL, listener, front->slot, front->now);
}

static __always_inline __u32 load_level(const struct front_context *front)
{
	return load_level_of(front->listener.index);
}

/* Whether a control that is bound to `level` is in force. */
static __always_inline bool level_reached(struct front_context *front, __u32 level)
{
	return level == FIEF_ALWAYS || load_level(front) >= level;
}

/* Whether connections are held until their first bytes, now. */
static __always_inline bool admit_in_force(struct front_context *front)
{
	return (front->guard->flags & (FIEF_GUARD_ADMIT | FIEF_GUARD_MONITOR)) == FIEF_GUARD_ADMIT &&
	       level_reached(front, front->guard->admit_level);
}

/* The kernel makes the connection of its own cookie, as where it keeps the handshake. */
static __always_inline bool is_below_admission(struct front_context *front)
{
	return front->guard->flags & FIEF_GUARD_KERNEL && !admit_in_force(front);
}

/* A client that has to return a cookie gets the class of those that are served last (isolated.bpf.h); no other can. */
static __always_inline bool served_last(struct front_context *front)
{
	return front->guard->flags & FIEF_GUARD_INTO && admit_in_force(front);
}
