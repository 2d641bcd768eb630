/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Order: which of the ready queues is next. Pure.
 *
 * The highest priority goes first, and equals take turns. One that is passed over OFTEN times in a row gets a turn, so
 * that nothing starves, except at priority 0, which has asked for just that.
 */
#pragma once

#include "fronts.h"

#define PASSED_OFTEN 31

/* The queue to serve, of those whose bit is set in `ready`; -1: none. Counts the others as passed over. */
int order_next(struct queue *queues, int count, uint64_t ready);

/* The one with the highest priority of those whose bit is set; -1: none. */
int order_best(const struct queue *queues, int count, uint64_t ready);
