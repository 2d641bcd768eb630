/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Turns: the locks of fronts, in memory that forked workers share.
 */
#pragma once

#include <stdatomic.h>

/* In a cache line of its own. */
struct turn {
	_Alignas(64) atomic_uint state;
};

/* For a new front; NULL: there is no memory. */
struct turn *turn_take(void);
/* Its front was closed. */
void turn_give(struct turn *turn);
void turn_lock(struct turn *turn);
void turn_unlock(struct turn *turn);
/* In a process that has forked, and in its child. */
void turns_forked(void);
