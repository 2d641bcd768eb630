/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Places: how many requests the server has, and what that costs their classes.
 *
 * Problem: a place must come back once and no more, whatever becomes of its request, and nobody may keep one for nothing.
 * How: a place is taken under the lock of the queue, and given back when its entry in queue_serves goes, or when it runs out:
 * after `stale`, in which the server has not begun to answer, and soon where the client owes bytes of its request, which a
 * server may wait for. Where it is for the whole answer, what leaves of that prolongs it; where it is for the connection, it
 * moves to queue_lasts with the first byte of the answer (clock.bpf.h). At the end of a request its class is charged what its
 * container has used since the last one; where no CPU time is charged, since the server is not managed, each request counts
 * alike.
 * Limits: the charge of a class with several listeners, or with work that no request begins, is for all of it.
 */
#pragma once

#include "queue.bpf.h"
#include "spent.bpf.h"

#define OWING_NS    16000000
#define TICKS_OWING 2 /* at least */

/* Under the lock: gives back the places that have run out. */
static __always_inline void places_run_out(struct fief_queue *q, __u64 now)
{
	__u64 tick = now >> q->tick_shift;
	__u32 i;

	if ((__s64)(tick - q->tick) <= 0)
		return; /* another CPU read its clock later, and was here first */
	if (tick - q->tick > FIEF_QUEUE_TICKS)
		q->tick = tick - FIEF_QUEUE_TICKS; /* each has its turn once */
	for (i = loop_from(0); i < FIEF_QUEUE_TICKS && can_loop; i++) {
		if (q->tick >= tick)
			break;
		q->tick++;
		q->busy -= q->ends[q->tick & (FIEF_QUEUE_TICKS - 1)];
		q->ends[q->tick & (FIEF_QUEUE_TICKS - 1)] = 0;
		q->busy_below -= q->ends_below[q->tick & (FIEF_QUEUE_TICKS - 1)];
		q->ends_below[q->tick & (FIEF_QUEUE_TICKS - 1)] = 0;
	}
}

/*
 * Under the lock: takes a place for the class that runs out at `ends`, and returns when it will. Its caller may have stood still after it
 * read its clock: a tick that is over already would not come again for long.
 */
static __always_inline __u64 place_take(struct fief_queue *q, const struct fief_queue_class *of, __u64 ends)
{
	__u64 least = (q->tick + TICKS_OWING) << (q->tick_shift & 63), over;
	__u32 below = class_is_below(q, of);

	over = (__s64)((ends >> (q->tick_shift & 63)) - q->tick - 1) >> 63; /* all ones: it is over */
	barrier_var(over);
	ends ^= (ends ^ least) & over;
	q->busy++;
	q->busy_below += below;
	q->ends[ends >> q->tick_shift & (FIEF_QUEUE_TICKS - 1)]++;
	q->ends_below[ends >> q->tick_shift & (FIEF_QUEUE_TICKS - 1)] += below;
	if (q->measured.most < q->busy)
		q->measured.most = q->busy;
	return ends;
}

/* When a place that is taken now runs out: at the begin of a tick. */
static __always_inline __u64 place_ends(const struct fief_queue *q, __u64 now, bool owing)
{
	__u32 shift = q->tick_shift & 63;
	__u64 ticks = q->stale_ticks, soon = OWING_NS >> shift;

	if (soon < TICKS_OWING)
		soon = TICKS_OWING;
	if (owing && soon < ticks)
		ticks = soon;
	return ((now >> shift) + ticks) << shift;
}

static __always_inline bool has_run_out(const struct fief_served *served)
{
	return served->ends <= bpf_ktime_get_ns();
}

/* Under the lock: gives back a place that would run out at `ends`, unless it has. */
static __always_inline void place_end(struct fief_queue *q, __u32 below, __u64 ends)
{
	ends >>= q->tick_shift;
	if (ends > q->tick && q->ends[ends & (FIEF_QUEUE_TICKS - 1)]) {
		q->busy--;
		below &= !!q->ends_below[ends & (FIEF_QUEUE_TICKS - 1)];
		q->busy_below -= below;
		q->ends[ends & (FIEF_QUEUE_TICKS - 1)]--;
		q->ends_below[ends & (FIEF_QUEUE_TICKS - 1)] -= below;
	}
}

/* Gives back a place of a class, unless it has run out. */
static __noinline int place_give(struct fief_queue *q, __u32 class, __u64 ends)
{
	__u32 below = class_is_below(q, queue_class(q, class));

	bpf_spin_lock(&q->lock);
	place_end(q, below, ends);
	bpf_spin_unlock(&q->lock);
	return 0;
}

/*
 * A place of a class, which would run out at `before`, runs out at `ends` or later. One that has run out is taken again, also where none
 * is free; `before` is 0 for one that nobody remembers.
 */
static __noinline __u64 place_prolong(struct fief_queue *q, __u32 class, __u64 before, __u64 ends)
{
	struct fief_queue_class *of = queue_class(q, class);
	__u64 now = bpf_ktime_get_ns();

	bpf_spin_lock(&q->lock);
	places_run_out(q, now);
	place_end(q, class_is_below(q, of), before);
	ends = place_take(q, of, ends);
	bpf_spin_unlock(&q->lock);
	return ends;
}

/* The place of a request that the server has runs out at `ends` or later. It is moved once in a tick. */
static __always_inline void served_prolong(struct fief_queue *q, struct fief_served *served, __u64 ends)
{
	__u64 before = *(volatile __u64 *)&served->ends;

	if (ends == before || __sync_val_compare_and_swap(&served->ends, before, ends) != before)
		return;
	before = place_prolong(q, served->class, before, ends);
	if (before != ends)
		__sync_val_compare_and_swap(&served->ends, ends, before);
}

/* A place of a class, which would run out at `before`, lasts as long as its connection. */
static __noinline int place_keep(struct fief_queue *q, __u32 class, __u64 before)
{
	__u32 below = class_is_below(q, queue_class(q, class));

	bpf_spin_lock(&q->lock);
	place_end(q, below, before);
	q->busy++;
	q->busy_below += below;
	q->lasting++;
	bpf_spin_unlock(&q->lock);
	return 0;
}

/* Its connection has ended. */
static __noinline int place_leave(struct fief_queue *q, __u32 class)
{
	__u32 below = class_is_below(q, queue_class(q, class));

	bpf_spin_lock(&q->lock);
	if (q->lasting) {
		q->busy--;
		q->busy_below -= below;
		q->lasting--;
	}
	bpf_spin_unlock(&q->lock);
	return 0;
}

/* What a request cost for which no CPU time is charged, since its server is not managed. */
#define REQUEST_NS 1000000ull

/* What a class may have saved up of its limit. */
#define SAVED_NS 100000000ull

/* It has used CPU time since `before`: so much later it has not used more than its limit. */
static __always_inline void limit_charge(struct fief_queue_class *of, __u64 cost, __u64 before, __u64 now)
{
	__u64 again = *(volatile __u64 *)&of->again_ns, least = (before ?: now) - SAVED_NS;

	if (again < least)
		__sync_val_compare_and_swap(&of->again_ns, again, least);
	__sync_fetch_and_add(&of->again_ns, limit_delay(cost, of->limit_ns));
}

#define SPENT_AGAIN_NS 1000000000ull /* less by more: it is another container's */

/*
 * The class's CPU time since it was last looked at, which is held against its limit. What another CPU has charged, whose clock was read
 * later, is not charged again.
 */
static __noinline __u64 class_spends(struct fief_queue_class *of, __u64 now)
{
	__u64 spent = container_spent(of->container.id, now), before = *(volatile __u64 *)&of->spent_ns, cost = 0;
	__u64 looked = *(volatile __u64 *)&of->charged_ns, behind;

	if ((__s64)(before - spent) >= (__s64)SPENT_AGAIN_NS)
		spent = container_spent(of->container.id, now); /* a flush in between was not seen, or it is so */
	behind = before - spent;
	if ((__s64)behind >= 0 && behind < SPENT_AGAIN_NS)
		spent = before;
	else if (__sync_val_compare_and_swap(&of->spent_ns, before, spent) != before)
		return 0;
	if (before && spent > before)
		cost = spent - before;
	if ((__s64)(now - looked) > 0)
		__sync_val_compare_and_swap(&of->charged_ns, looked, now);
	if (of->limit_ns)
		limit_charge(of, cost, looked, now);
	return cost;
}

static __always_inline void class_turn(struct fief_queue_class *of, __u64 cost)
{
	__sync_fetch_and_add(&of->turn, cost * 100 / (of->weight ?: 1));
}

#define UNSEEN_MOST 16 /* ends in a row */

/*
 * What one of its requests is charged that has ended. Of a class that is charged, what costs too little to be seen is seen with the
 * next one; if nothing is seen for long, its server is managed no longer.
 */
static __always_inline __u64 end_cost(struct fief_queue_class *of, __u64 cost)
{
	if (cost) {
		of->unseen = 0;
		return cost;
	}
	if (of->spent_ns && of->unseen < UNSEEN_MOST) {
		of->unseen++;
		return 0;
	}
	return REQUEST_NS;
}

#define MANAGED_LOOK_NS 1000000000

/* One of its requests has ended: now and then it is looked at whether threads have worked for it. */
static __always_inline void managed_look(struct fief_queue_class *of, __u64 now)
{
	__u64 threads;

	if ((__s64)(now - *(volatile __u64 *)&of->threads_looked_ns) <= MANAGED_LOOK_NS)
		return;
	threads = container_time(of->container.id, now, 0);
	of->managed = threads != of->threads_ns;
	of->threads_ns = threads;
	of->threads_looked_ns = now;
}

/* One of its requests has ended. */
static __noinline int class_charge(struct fief_queue *q, __u32 class, __u64 now)
{
	struct fief_queue_class *of = queue_class(q, class);

	managed_look(of, now);
	class_turn(of, end_cost(of, class_spends(of, now)));
	return 0;
}

#define SETTLES_NS 8000000

/* Another one of it goes to the server: what it has used is known even if none of its requests was seen to end. */
static __noinline int class_settle(struct fief_queue *q, __u32 class, __u64 now)
{
	struct fief_queue_class *of = queue_class(q, class);

	if ((__s64)(now - *(volatile __u64 *)&of->charged_ns) > SETTLES_NS)
		class_turn(of, class_spends(of, now));
	return 0;
}

/* The server gets a request of the class whose place runs out at `ends`. */
static __always_inline void handed_note(struct fief_queue_class *of, __u64 ends)
{
	of->handed_ns = 0;
	of->handed_until_ns = ends;
	if (of->handed < 0)
		of->handed = 0;
	__sync_fetch_and_add(&of->handed, 1);
	of->handed_ns = bpf_ktime_get_ns();
	queue_news_tell();
}

/*
 * The server has begun to answer the request that came at `since_ns`, or has it no longer; those that are left keep the turn. The table
 * may have pushed some out of itself unseen (LRU): such a turn ends with the last one's place, or when somebody works for the class.
 */
static __always_inline void handed_forget(struct fief_queue_class *of, __u64 since_ns)
{
	if (since_ns && __sync_fetch_and_add(&of->handed, -1) <= 1)
		of->handed_ns = 0;
}

/* The server has it no longer, of which the queue is `q`; NULL: that has gone. */
static __always_inline void served_end_of(struct fief_queue *q, const struct fief_flow_key *key,
					  const struct fief_served *served, __u64 now)
{
	__u64 ends = served->ends, since = served->since_ns;
	__u32 class = served->class;

	if (bpf_map_delete_elem(&queue_serves, key) || !q)
		return;
	handed_forget(queue_class(q, class), since);
	place_give(q, class, ends);
	class_charge(q, class, now);
}

static __always_inline void served_end(const struct fief_flow_key *key, const struct fief_served *served)
{
	served_end_of(queue_get(served->queue), key, served, bpf_ktime_get_ns());
}

/*
 * The server has begun to answer: its connection keeps the place. False: there is no room to know that, or another request of it
 * waits, which would wait for this one.
 */
static __noinline bool served_keep(const struct fief_flow_key *key, const struct fief_served *served)
{
	struct fief_served lasting = {.queue = served->queue, .class = served->class};
	struct fief_queue *q = queue_get(served->queue);
	__u64 before = served->ends, since = served->since_ns;

	if (!q || bpf_map_lookup_elem(&queue_holds, key) ||
	    bpf_map_update_elem(&queue_lasts, key, &lasting, BPF_NOEXIST))
		return false;
	if (bpf_map_delete_elem(&queue_serves, key)) {
		bpf_map_delete_elem(&queue_lasts, key); /* another CPU has seen its end */
		return true;
	}
	handed_forget(queue_class(q, lasting.class), since);
	place_keep(q, lasting.class, before);
	class_charge(q, lasting.class, bpf_ktime_get_ns());
	return true;
}

/* A connection ends. Number of the queue whose place it kept, or 0. */
static __noinline __u32 lasting_end(const struct fief_flow_key *key)
{
	struct fief_served *lasting = bpf_map_lookup_elem(&queue_lasts, key);
	struct fief_queue *q;
	__u32 number, class;

	if (!lasting)
		return 0;
	number = lasting->queue;
	class = lasting->class;
	if (bpf_map_delete_elem(&queue_lasts, key))
		return 0; /* another CPU was here first */
	q = queue_get(number);
	if (!q)
		return 0;
	place_leave(q, class);
	class_charge(q, class, bpf_ktime_get_ns());
	return number;
}

/* Whether the packet's connection keeps a place, or will once its request is answered that has one: the next request needs none. */
static __noinline bool flow_lasts(const struct packet *p)
{
	struct fief_served *served;
	struct fief_flow_key key;

	flow_key(p, &key);
	if (bpf_map_lookup_elem(&queue_lasts, &key))
		return true;
	served = bpf_map_lookup_elem(&queue_serves, &key);
	return served && !has_run_out(served);
}

/*
 * The packet's request, which has its place, is with the server; another one of its connection may have one already. That one is looked
 * for only where it keeps this one out: nearly none does.
 */
static __noinline int served_begin(struct fief_queue *q, const struct packet *p, const struct queue_turn *place,
				   __u32 answer)
{
	struct fief_served served = {
	    .queue = place->queue,
	    .class = place->class,
	    .answer = answer,
	    .upto = packet_end(p),
	    .ends = place->ends,
	    .since_ns = place->since_ns,
	};
	struct fief_served *before;
	struct fief_flow_key key;
	long kept_out;

	flow_key(p, &key);
	kept_out = bpf_map_update_elem(&queue_serves, &key, &served, BPF_NOEXIST);
	before = kept_out ? bpf_map_lookup_elem(&queue_serves, &key) : NULL;
	if (before && has_run_out(before)) {
		served_end(&key, before);
		kept_out = bpf_map_update_elem(&queue_serves, &key, &served, BPF_NOEXIST);
	}
	if (!kept_out) {
		handed_note(queue_class(q, place->class), place->ends);
		return 0;
	}
	place_give(q, place->class, place->ends);
	if (!bpf_map_lookup_elem(&queue_serves, &key))
		__sync_fetch_and_add(&q->uncounted, 1);
	return 0;
}

/* The request of the packet's flow that the server has; NULL: there is none. A function of its own, since the stack is short. */
static __noinline struct fief_served *served_of(const struct packet *p)
{
	struct fief_flow_key key;

	flow_key(p, &key);
	return bpf_map_lookup_elem(&queue_serves, &key);
}

/*
 * The packet makes a request of the container whole: from now on its place lasts as long as that of any request, and its latency is
 * counted. A request that has lost its place gets another one. `owing`: its client takes no answer.
 */
__noinline int place_again(const struct packet *p __arg_nonnull, __u32 queue, __u32 container, __u32 answer, bool owing)
{
	struct queue_turn turn = {.queue = queue, .since_ns = bpf_ktime_get_ns()};
	struct fief_queue *q = queue_get(queue);
	struct fief_served *served;

	if (!q)
		return 0;
	turn.ends = place_ends(q, turn.since_ns, owing);
	served = served_of(p);
	if (served && !has_run_out(served)) {
		if (served->since_ns)
			served->since_ns = turn.since_ns;
		if (served->queue == queue)
			served_prolong(q, served, turn.ends);
		return 0;
	}
	if (q->until == FIEF_UNTIL_CLOSE)
		return 0; /* its connection may keep one */
	turn.class = queue_class_of(q, ref_word(ref_of(container)));
	turn.ends = place_prolong(q, turn.class, 0, turn.ends);
	served_begin(q, p, &turn, answer);
	return 0;
}

/* The server did not get the packet's request. */
static __noinline int served_undo(const struct packet *p)
{
	struct fief_served *served;
	struct fief_flow_key key;

	flow_key(p, &key);
	served = bpf_map_lookup_elem(&queue_serves, &key);
	if (served)
		served_end(&key, served);
	return 0;
}

/*
 * The packet's request, which goes to the socket `tcp`, was noted as the server's. The socket may have ended on another CPU meanwhile, and
 * nobody would tell that once more: TCP takes a socket out of its table before it tells (tcp_set_state), so who notes first and looks then
 * sees it.
 */
static __noinline int served_check(const struct packet *p, struct tcp_sock *tcp)
{
	if (!tcp->inet_conn.icsk_inet.sk.__sk_common.skc_node.pprev)
		served_undo(p);
	return 0;
}

/* Whether a carrier would find something to do. */
static __always_inline bool queue_wants(struct fief_queue *q, __u64 now)
{
	__u32 bits = *(volatile __u32 *)&q->bits;

	if (bits && now >> q->tick_shift > *(volatile __u64 *)&q->tick)
		return true; /* places may have run out */
	if (*(volatile __u32 *)&q->carried.linked && q->clock &&
	    (__s64)(now - *(volatile __u64 *)&q->tick_ns) > TICK_LOST_NS)
		return true; /* the clock was lost that would look whether TCP has them */
	if (*(volatile __u32 *)&q->refused || (queue_has_next(q, now) && queue_room(q)))
		return true;
	return bits && now > *(volatile __u64 *)&q->late_ns;
}

/* Sends a carrier: a copy of the packet at hand, which goes on as it is. */
static __noinline int queue_kick(struct __sk_buff *skb, struct fief_queue *q, __u32 number)
{
	__u32 mark = skb->mark, index = skb->tc_index, own = queue_mark();

	if (!own)
		return 0;
	skb->mark = own;
	skb->tc_index = number; /* the priority does not outlive the copy */
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = mark;
	skb->tc_index = index;
	__sync_fetch_and_add(&q->kicks, 1);
	return 0;
}
