/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Ran out: whether a segment comes with a cookie that was good once.
 *
 * Problem: clients open connections in advance, and send their first bytes when their cookie has long run out. To be told so
 * helps them: they make another connection.
 * How: our own cookies are checked with the keys of past epochs. The kernel's bear a time that nobody proves: whoever says so
 * gets what the kernel gives to every segment without a connection.
 */
#pragma once

#include "cookie.bpf.h"

/* From when on the kernel takes no cookie (two of its periods), and how long its client is told so. */
#define KERNEL_COOKIE_MS (2 * 60 * 1000)
#define KERNEL_LATE_MS	 (30 * 60 * 1000)

/*
 * Whether a cookie has run out, by the time that its timestamp bears. Nothing proves that it was ever made: whoever says
 * so gets what the kernel gives to every segment without a connection.
 */
static __always_inline bool kernel_cookie_ran_out(const struct handshake *with, __u64 now)
{
	__u32 age = (__u32)(now / 1000000) - with->echo;

	return with->timestamps && age > KERNEL_COOKIE_MS && age < KERNEL_LATE_MS;
}

/*
 * Whether the segment would be the first of a connection whose cookie was ours, but of one of the epochs before those that
 * live: its client has waited for up to half an hour, as those do that open connections in advance.
 */
__noinline int cookie_ran_out(const struct packet *p __arg_nonnull, __u64 now)
{
	__u32 sequence = p->ack - 1, low = sequence & COOKIE_LOW, epoch = cookie_epoch(now, low), i;
	struct cookie_hash hash = {};

	for (i = loop_from(0); i < COOKIE_PAST && can_loop; i++) {
		epoch -= 2;
		if (cookie_hash(p, p->seq - 1, low, epoch, &hash))
			break;
		if (!((hash.sequence ^ sequence) & ~COOKIE_LOW))
			return true;
	}
	return false;
}

/* Whether the segment comes with a cookie that was good once. */
static __always_inline bool ran_out(struct front_context *front, const struct handshake *with)
{
	if (front->guard->flags & FIEF_GUARD_KERNEL)
		return kernel_cookie_ran_out(with, front->now);
	return cookie_ran_out(&front->packet, front->now);
}
