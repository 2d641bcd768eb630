/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Apart from the kernel's types, which the C library's do not go with. */
#include "calls.h"

#include <stddef.h>
#include <ucontext.h>

static struct call {
	void (*run)(int);
	unsigned int point, stop;
	bool stopped;
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

static void run(void)
{
	running->run(running - calls);
}

void calls_go_on(int number)
{
	running = &calls[number];
	swapcontext(&outside, &running->context);
	running = NULL;
}

bool calls_begin(int number, void (*what)(int), unsigned int stop)
{
	struct call *call = &calls[number];

	call->run = what;
	call->point = 0;
	call->stop = stop;
	call->stopped = false;
	getcontext(&call->context);
	call->context.uc_stack.ss_sp = call->stack;
	call->context.uc_stack.ss_size = sizeof(call->stack);
	call->context.uc_link = &outside;
	makecontext(&call->context, run, 0);
	calls_go_on(number);
	return call->stopped;
}
