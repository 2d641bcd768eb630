/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The life of descriptors, as far as the shim must know it.
 */
#pragma once

#include "events.h"
#include "fronts.h"

/* The set that a front was added to, so that its class listeners leave it when the front is closed. False: no room. */
bool front_remember(struct front *front, int events);
void events_forget(int fd);
void events_share(int fd);
void events_forked(void);
/* The front leaves the set; `closed`: since its descriptor is. */
void events_forget_front(struct events *set, int fd, bool closed);

/* A queue comes to a front that is in sets already, or leaves it: EPOLL_CTL_ADD or EPOLL_CTL_DEL. */
void events_tell_queue(struct front *front, int operation, int queue);
