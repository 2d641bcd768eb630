/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Apart from the kernel's types, which the C library's do not go with. */
#include "calls.h"

#include <stddef.h>
#include <ucontext.h>

static struct call {
	void (*run)(int);
	unsigned int point, stop;
	bool stopped; /* at a point, */
	bool spins;   /* or to let the other one go on */
	ucontext_t context;
	char stack[1 << 16];
} calls[2];
static struct call *running;
static ucontext_t outside;

void calls_point(void)
{
	struct call *own = running;

	if (!own || own->point++ != own->stop)
		return;
	own->stopped = true;
	swapcontext(&own->context, &outside);
}

void calls_spin(void)
{
	struct call *own = running;

	if (!own || !calls[own == calls].stopped)
		return;
	own->spins = true;
	swapcontext(&own->context, &outside);
}

int calls_running(void)
{
	return running ? running - calls : -1;
}

bool calls_has_stopped(int number)
{
	return calls[number].stopped;
}

static void run(void)
{
	running->run(running - calls);
}

/* To its end, to the point where it is to stop, or to where it waits for the other one. */
static void resume(struct call *call)
{
	call->stopped = call->spins = false;
	running = call;
	swapcontext(&outside, &call->context);
	running = NULL;
}

bool calls_go_to(int number, unsigned int stop)
{
	struct call *call = &calls[number], *other = &calls[!number];

	call->point = 0;
	call->stop = stop;
	resume(call);
	while (call->spins) {
		if (other->stopped) {
			other->point = other->stop = 0;
			resume(other);
		}
		resume(call);
	}
	return call->stopped;
}

void calls_go_on(int number)
{
	resume(&calls[number]);
}

bool calls_begin(int number, void (*what)(int), unsigned int stop)
{
	struct call *call = &calls[number];

	call->run = what;
	getcontext(&call->context);
	call->context.uc_stack.ss_sp = call->stack;
	call->context.uc_stack.ss_size = sizeof(call->stack);
	call->context.uc_link = &outside;
	makecontext(&call->context, run, 0);
	return calls_go_to(number, stop);
}
