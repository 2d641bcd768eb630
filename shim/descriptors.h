/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The life of descriptors, as far as the shim must know it.
 */
#pragma once

#include "events.h"
#include "fronts.h"

/* Before the number means something else. */
void descriptor_forget(int fd);
/* An epoll descriptor is closed. */
void events_forget(int fd);
/* It has one name more. */
void events_duplicate(int fd, int copy);
void events_share(int fd);
void events_forked(void);
/* A front is closed: its last name, or one that it may have been added by. Under fronts_lock(). */
void events_forget_front(const struct front *front);
void events_forget_name(const struct front *front, int fd);

/* Only processes that share its sets hear of the front. Under fronts_lock(). */
bool events_are_foreign(const struct front *front);
/* A queue comes to a front that is in sets already, or leaves it: EPOLL_CTL_ADD or EPOLL_CTL_DEL. Under fronts_lock(). */
void events_tell_queue(struct front *front, int operation, int queue);
