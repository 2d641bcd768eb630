/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Owed: what the door says of a packet to the program that meets it at its socket.
 *
 *   owed   it bears bytes that the door has acknowledged in the server's name. Their client does not send them again, so whoever drops the
 *          packet breaks the connection.
 *   made   it was taken for one of a connection (front/made.bpf.h)
 *
 * Limits: a program or filter that stands behind the door and ends the chain with OK takes the mark.
 */
#pragma once

/* in skb->tc_index; the kernel's own classes that read it are attached to an interface by hand */
#define OWED_INDEX 0xf1ef
#define MADE_INDEX 0xf1ec
#define BOTH_INDEX 0xf1ee

static __always_inline bool is_owed(const struct __sk_buff *skb)
{
	return skb->tc_index == OWED_INDEX || skb->tc_index == BOTH_INDEX;
}

static __always_inline bool is_made(const struct __sk_buff *skb)
{
	return skb->tc_index == MADE_INDEX || skb->tc_index == BOTH_INDEX;
}

static __always_inline void owed_mark(struct __sk_buff *skb)
{
	skb->tc_index = is_made(skb) ? BOTH_INDEX : OWED_INDEX;
}
