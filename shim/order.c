/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "order.h"

/* Those that accept after existing connections give way to the rest; among equals the one goes first that waited longest. */
static bool better(const struct queue *a, const struct queue *b)
{
	if (a->after != b->after)
		return b->after;
	return a->priority != b->priority ? a->priority > b->priority : a->passed > b->passed;
}

int order_best(const struct queue *queues, int count, uint64_t ready)
{
	int found = -1;

	for (int i = 0; i < count; i++)
		if (ready >> i & 1 && (found < 0 || better(&queues[i], &queues[found])))
			found = i;
	return found;
}

int order_next(struct queue *queues, int count, uint64_t ready)
{
	int next = order_best(queues, count, ready);

	for (int i = 0; i < count; i++)
		if (ready >> i & 1 && queues[i].priority && queues[i].passed >= PASSED_OFTEN)
			next = i;
	for (int i = 0; i < count; i++)
		if (ready >> i & 1)
			queues[i].passed = i == next ? 0 : queues[i].passed + 1;
	return next;
}
