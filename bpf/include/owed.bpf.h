/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Owed: what the door says of a packet to the programs that meet it at its socket.
 *
 *    15                           4     3       2       1      0
 *   +------------------------------+--------+--------+------+------+
 *   |  0xf1e, so it is the door's  | placed | begins | made | owed |
 *   +------------------------------+--------+--------+------+------+
 *
 *   owed    it bears bytes that the door has acknowledged in the server's name. Their client does not send them again, so whoever drops
 *           the packet breaks the connection.
 *   made    it was taken for one of a connection (front/made.bpf.h)
 *   placed  it has a place of its queue's: if it is dropped, that is held for nothing until its client has sent it again
 *   begins  it was ruled as the first bytes of a connection that has no socket yet, or as what is behind them (front/made.bpf.h)
 *
 * Limits: a program or filter that stands behind the door and ends the chain with OK takes the mark.
 */
#pragma once

/* in skb->tc_index; the kernel's own classes that read it are attached to an interface by hand */
#define MARKS	    0xf1e0
#define MARKS_OURS  0xfff0 /* the bits that say so */
#define MARK_OWED   1
#define MARK_MADE   2
#define MARK_BEGINS 4
#define MARK_PLACED 8

/* Whether the packet has one of these marks. */
static __always_inline bool is_marked(const struct __sk_buff *skb, __u32 marks)
{
	__u32 index = skb->tc_index;

	return (index & MARKS_OURS) == MARKS && index & marks;
}

static __always_inline void mark_add(struct __sk_buff *skb, __u32 mark)
{
	__u32 index = skb->tc_index;

	skb->tc_index = ((index & MARKS_OURS) == MARKS ? index : MARKS) | mark;
}

/* Whether nobody may drop it to save work: that is lost by it. */
static __always_inline bool must_pass(const struct __sk_buff *skb)
{
	return is_marked(skb, MARK_OWED | MARK_PLACED);
}

static __always_inline void owed_mark(struct __sk_buff *skb)
{
	mark_add(skb, MARK_OWED);
}
