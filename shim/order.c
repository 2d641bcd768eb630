/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "order.h"

/* Queues stand by priority already; those that accept after existing connections give way to the rest. */
static int first(const struct queue *queues, int count, uint64_t ready)
{
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < count; i++)
			if (ready >> i & 1 && queues[i].after == pass)
				return i;
	return -1;
}

int order_next(struct queue *queues, int count, uint64_t ready)
{
	int next = first(queues, count, ready);

	for (int i = 0; i < count; i++)
		if (ready >> i & 1 && queues[i].priority && queues[i].passed >= PASSED_OFTEN)
			next = i;
	for (int i = 0; i < count; i++)
		if (ready >> i & 1)
			queues[i].passed = i == next ? 0 : queues[i].passed + 1;
	return next;
}
