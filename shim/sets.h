/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sets: their life.
 */
#pragma once

#include "events.h"

/* All of them; of who holds fronts_lock(). */
extern struct events *sets;

/* The set of an epoll descriptor, which stays what it is until set_leave(); NULL: it has none. */
struct events *set_enter(int fd);
/* The same, which is made if there is none yet; NULL: there is no memory. */
struct events *set_enter_new(int fd);
void set_leave(struct events *set);
/* Whether this process made it, or was the first to inherit it from one that has ended. Under fronts_lock(). */
bool set_is_own(struct events *set);
