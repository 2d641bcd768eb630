/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Owed: a packet with bytes that the door has acknowledged in the server's name. Their client does not send them again, so whoever drops the
 * packet breaks the connection.
 * Limits: a filter of the older kind (clsact, ingress) that stands behind the door takes the mark.
 */
#pragma once

#define OWED_INDEX 0xf1ef /* the kernel's own classes that read it are attached to an interface by hand */

static __always_inline void owed_mark(struct __sk_buff *skb)
{
	skb->tc_index = OWED_INDEX;
}

static __always_inline bool is_owed(const struct __sk_buff *skb)
{
	return skb->tc_index == OWED_INDEX;
}
