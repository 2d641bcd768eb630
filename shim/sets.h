/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sets: their life.
 */
#pragma once

#include "events.h"

/* All of them; of who holds fronts_lock(). */
extern struct events *sets;

/* The set of an epoll descriptor; NULL: it has none. */
struct events *set_of(int fd);
/* The same, which is made if there is none yet; NULL: there is no memory. */
struct events *set_new(int fd);
