/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Receive contexts: softirq on top of any thread, ksoftirqd, threaded NAPI; the interrupted thread is never charged.
 *
 * Problem: protocol work is done for the packet's socket, which is known only late. GRO hands up lists, so that several packets
 * start before the first of them reaches its socket.
 * How: time before a packet's socket is known gathers in a pool. When cgroup_skb/ingress tells the socket's container, the
 * packet takes its part of the pool, and the time up to the next mark is its container's. So does one that the front door keeps for a
 * request that waits, up to the next packet. A packet without a container is charged with the pool to the system container, kind net_rx.
 * Limits: in a list, the work on a packet for an unmanaged socket is charged to the packet before it (those sockets run no hook
 * of ours); marks of the list are the packets of managed sockets only.
 */
#pragma once

#include "costly.bpf.h"
#include "labels.bpf.h"
#include "switch.bpf.h"

static __always_inline int softirq_enter(unsigned int vector)
{
	struct fief_cpu *cs;
	unsigned long flags;
	__u64 now;
	bool first;

	/* its switch may have been missed, and its ring says whose the time since then is */
	ring_look(this_thread(), 0);
	irq_save(&flags);
	cs = this_cpu();
	now = bpf_ktime_get_ns();
	first = cs && cpu_first_event(cs, now);
	if (cs && cs->online) {
		if (!first) {
			steal_settle(cs, now);
			charge_until(cs, now);
		}
		pool_close(cs);
		if (cs->by_client)
			cost_settle(cs, false);
		/* during an upgrade, old and new are attached together; the first knows whom the softirq interrupted */
		if (!cs->softirq_vector) {
			cs->interrupted = cs->current_;
			cs->interrupted_kind = cs->kind;
			cs->interrupted_receive = cs->receive;
		}
		cs->softirq_entry_ns = now;
		cs->softirq_vector = vector + 1;
		set_system(cs, vector < FIEF_SYSTEM_HARDIRQ ? vector : FIEF_SYSTEM_HI);
		cs->receive = vector == FIEF_SYSTEM_NET_RX ? FIEF_RX_OPEN : FIEF_RX_NONE;
	}
	irq_restore(&flags);
	return 0;
}

static __always_inline int softirq_leave(void)
{
	struct fief_cpu *cs;
	unsigned long flags;
	__u64 now;

	irq_save(&flags);
	cs = this_cpu();
	if (cs && cs->softirq_vector) {
		now = bpf_ktime_get_ns();
		charge_until(cs, now);
		pool_close(cs);
		cs->softirq_vector = 0;
		cs->softirq_ns += now - cs->softirq_entry_ns;
		cs->current_ = cs->interrupted;
		cs->kind = cs->interrupted_kind;
		cs->receive = cs->interrupted_receive;
		if (cs->refresh && !cs->changing) {
			/* somebody bound the running thread, or gave it a home */
			struct task_struct *p = bpf_get_current_task_btf();
			struct fief_task *v = bpf_task_storage_get(&tasks, p, 0, 0);

			cs->refresh = v && v->made != RECORD_MADE; /* another CPU is just making it */
			if (v && v->made == RECORD_MADE && !cs->has_task) {
				record_load(cs, v);
				cs->current_ = v->binding;
			}
			if (v && v->made == RECORD_MADE && v->request) {
				pending_settle(cs, cs->task.home);
				request_take(cs, v, p);
				cs->current_ = cs->task.binding;
			}
		}
	}
	irq_restore(&flags);
	return 0;
}

static __always_inline int irq_enter_charge(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct fief_cpu *cs = this_cpu();
	__u64 now = bpf_ktime_get_ns();

	if (!cs || cs->in_irq || cpu_first_event(cs, now))
		return 0;
	/* what is charged now is past correcting, and a reader takes it for the noted thread's */
	if (cs->running != p->pid && !cs->softirq_vector)
		switch_missed(cs, p, now);
	ring_look(cs, now);
	charge_until(cs, now);
	cs->in_irq = 1;
	cs->irq_current = cs->current_;
	cs->irq_kind = cs->kind;
	cs->irq_receive = cs->receive;
	set_system(cs, FIEF_SYSTEM_HARDIRQ);
	cs->receive = FIEF_RX_NONE;
	return 0;
}

static __always_inline int irq_leave_charge(void)
{
	struct fief_cpu *cs = this_cpu();
	__u64 now;

	if (!cs || !cs->in_irq)
		return 0;
	now = bpf_ktime_get_ns();
	/* the kernel leaves it out of its account of the thread; within a softirq it is a part of that one's time */
	if (exec_clock_excludes_softirq && !cs->softirq_vector && (__s64)(now - cs->last_ns) > 0)
		cs->softirq_ns += now - cs->last_ns;
	charge_until(cs, now);
	cs->in_irq = 0;
	cs->current_ = cs->irq_current;
	cs->kind = cs->irq_kind;
	cs->receive = cs->irq_receive;
	return 0;
}

/*
 * A packet starts its way up. The clock is read only where somebody's time ends: after a packet that found its
 * container, or one that went by without. A packet of a list still carries the list's link behind it.
 */
static __always_inline int packet_start(struct sk_buff *skb)
{
	struct fief_cpu *cs = this_cpu();
	unsigned long flags;

	if (!cs || cs->receive == FIEF_RX_NONE)
		return 0;
	if (cs->receive == FIEF_RX_OPEN && (!cs->pool_packets || skb->prev)) {
		cs->pool_packets++;
		return 0;
	}
	irq_save(&flags);
	charge_until(cs, bpf_ktime_get_ns());
	door_settle(cs);
	if (cs->receive != FIEF_RX_OPEN || !skb->prev) {
		pool_close(cs);
		set_system(cs, FIEF_SYSTEM_NET_RX);
		cs->receive = FIEF_RX_OPEN;
	}
	cs->pool_packets++;
	irq_restore(&flags);
	return 0;
}

/* A driver's poll has ended: packets that found no container until now are nobody's. */
static __always_inline int poll_end(void)
{
	struct fief_cpu *cs = this_cpu();
	unsigned long flags;
	__u64 now;

	if (!cs || !is_pooled(cs) || !cs->pool_packets)
		return 0;
	irq_save(&flags);
	now = bpf_ktime_get_ns();
	carry_take(cs, now);
	charge_until(cs, now);
	pool_close(cs);
	irq_restore(&flags);
	return 0;
}

/*
 * Whether the open time is `to`'s whatever the clock says: the pool is for this packet alone, or the packet before was of the
 * same container. In the thread of a lane each packet is a charge all the same: what is carried on is taken from its packets
 * (carry_take), and with its time left open a tenth of it was not charged to its class (lab lrp, charge_error).
 */
static __always_inline bool open_time_is(struct fief_cpu *cs, struct fief_ref to)
{
	if (cs->has_task && !cs->softirq_vector)
		return false;
	return cs->receive == FIEF_RX_OPEN ? cs->pool_packets == 1 : same_ref(cs->current_, to);
}

/* Whether the scheduler has the CPUs. */
static __always_inline bool charges_scheduled(void)
{
	struct fief_cpu *cs = this_cpu();

	return cs && cs->scheduled;
}

/* The packet has found its socket. */
static __always_inline void packet_charge(struct fief_ref to, struct bpf_sock *sk, __u64 client, __u32 packets,
					  __u32 bytes, __u32 discards)
{
	struct fief_cache_slot *slot;
	struct fief_cpu *cs;
	unsigned long flags;
	__u64 part = 0;

	irq_save(&flags);
	cs = this_cpu();
	if (cs) {
		if (cs->receive != FIEF_RX_NONE &&
		    (!open_time_is(cs, to) || cs->watched || cs->by_client || cs->discards != discards)) {
			__u64 now = bpf_ktime_get_ns();

			carry_take(cs, now);
			charge_until(cs, now);
			door_settle(cs);
		}
		if (cs->watched)
			packet_watch(cs, sk);
		if (cs->by_client)
			cost_packet(cs, client);
		cs->discards = discards;
		slot = slot_of(cs, to);
		charge_begin(cs);
		if (cs->receive != FIEF_RX_NONE) {
			if (cs->pool_packets) {
				part = pool_take(cs);
				slot->receive_ns += part;
			}
			cs->current_ = to;
			cs->receive = FIEF_RX_PACKET;
		}
		slot->packets_in += packets;
		slot->bytes_in += bytes;
		charge_end(cs);
		if (part)
			charged(cs, to, part);
	}
	irq_restore(&flags);
}

static __always_inline void packet_sent(struct fief_ref by, __u32 packets, __u32 bytes)
{
	struct fief_cache_slot *slot;
	struct fief_cpu *cs;
	unsigned long flags;

	irq_save(&flags);
	cs = this_cpu();
	if (cs) {
		slot = slot_of(cs, by);
		charge_begin(cs);
		slot->packets_out += packets;
		slot->bytes_out += bytes;
		charge_end(cs);
	}
	irq_restore(&flags);
}
