/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The kernel side of the stress target: which classes a listening socket has, and where their listeners are bound.
 *
 * A class listener of port P is bound to P + STEP * class, so that a child or a new program knows it by its port alone; that of each next
 * container of a class's slot to NEXT more.
 */
#pragma once

#define real shim_real
#include "../real.c"
#undef real
#include "../descriptors.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CLASSES 3
#define FIRST	10000
#define STEP	5000 /* all below the ports that clients get: else one connects to itself where nobody listens */
#define NEXT	100

/* The record of a front stays, since another thread may be in accept(). */
PUBLIC const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}

static uint16_t class_wanted[1 << 16];	      /* by descriptor: how much higher it is bound */
static atomic_int classes_in_force = CLASSES; /* the first ones; a policy that has more can come later */

/*
 * The policy: the containers of its classes, in their order there. `a`, `b` and `c` have the slots of 0, 1 and 2 next, then `d`, `e` and
 * `f`, and so on. A new program finds it in the environment.
 */
#define POLICY	     "FIEF_TEST_POLICY"
#define FIRST_POLICY "012"
#define CONTAINERS   FIRST_POLICY "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* In the environment: the kernel side is of an older Fief. */
#define OLDER "FIEF_TEST_OLDER"

static const char *next_policy; /* comes into force when a class is next asked for */
static uint32_t epoch;
static int refuses;	   /* 0, or why a class listener is refused */
static unsigned asked_for; /* class listeners */

static const char *policy(void)
{
	const char *word = getenv(POLICY);

	return word ? word : FIRST_POLICY;
}

static uint32_t policy_classes(void)
{
	uint32_t count = strlen(policy()), most = atomic_load(&classes_in_force);

	return count < most ? count : most;
}

static void set_policy(const char *word)
{
	setenv(POLICY, word, true);
	epoch++;
}

static uint32_t generation_of(char class)
{
	return (strchr(CONTAINERS, class) - CONTAINERS) / CLASSES;
}

static uint32_t number_of(char class)
{
	return (strchr(CONTAINERS, class) - CONTAINERS) % CLASSES;
}

/* How much higher than the server's own its listener is bound. */
static int step_of(char class)
{
	return STEP * (1 + number_of(class)) + NEXT * generation_of(class);
}

static struct fief_class class_of(uint32_t listener, char class)
{
	uint32_t number = number_of(class);

	return (struct fief_class){
	    .container = {1 + listener * CLASSES + number, 1 + generation_of(class)},
	    .priority = 100 * number + generation_of(class),
	};
}

/* Of a port that is not the server's own. */
static char class_of_port(int port)
{
	return CONTAINERS[(port - FIRST) / STEP - 1 + (port - FIRST) % STEP / NEXT * CLASSES];
}

static int port_of(int fd)
{
	struct sockaddr_in address = {};
	socklen_t size = sizeof(address);

	return getsockname(fd, (struct sockaddr *)&address, &size) || address.sin_family != AF_INET
		   ? 0
		   : ntohs(address.sin_port);
}

static int set_option(int fd, int level, int name, const void *value, socklen_t size)
{
	uint32_t place;
	int error;

	if (level != FIEF_SOL || name != FIEF_CLASS)
		return shim_real()->setsockopt(fd, level, name, value, size);
	place = *(const uint32_t *)value;
	asked_for++;
	if (next_policy)
		set_policy(next_policy);
	next_policy = NULL;
	error = place < policy_classes() ? refuses : EINVAL;
	if (error) {
		errno = error;
		return -1;
	}
	class_wanted[fd] = step_of(policy()[place]);
	return 0;
}

const struct real *real(void)
{
	static struct shim_real with_kernel; /* renamed with the function */

	if (!with_kernel.setsockopt) {
		struct shim_real table = *shim_real();

		table.setsockopt = set_option;
		with_kernel = table;
	}
	return (const struct real *)&with_kernel;
}

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
	struct sockaddr_in moved;

	if (class_wanted[fd]) {
		memcpy(&moved, address, sizeof(moved));
		moved.sin_port = htons(ntohs(moved.sin_port) + class_wanted[fd]);
		class_wanted[fd] = 0;
		address = (const struct sockaddr *)&moved;
	}
	return syscall(SYS_bind, fd, address, size);
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
	struct fief_classes *classes = value;
	int port;

	if (level != FIEF_SOL || name != FIEF_CLASSES)
		return syscall(SYS_getsockopt, fd, level, name, value, size);
	port = port_of(fd);
	if (port < FIRST || port >= FIRST + (CLASSES + 1) * STEP || *size < sizeof(*classes)) {
		errno = ENOPROTOOPT;
		return -1;
	}
	memset(classes, 0, sizeof(*classes));
	classes->listener = (port - FIRST) % STEP % NEXT;
	classes->epoch = getenv(OLDER) ? 0 : epoch;
	if (port >= FIRST + STEP) {
		classes->self = (port - FIRST) / STEP - 1; /* its place in FIRST_POLICY */
		if (!getenv(OLDER))
			classes->class_[0].container = class_of(classes->listener, class_of_port(port)).container;
		return 0;
	}
	classes->self = FIEF_NO_CLASS;
	classes->count = policy_classes();
	for (uint32_t i = 0; i < classes->count; i++)
		classes->class_[i] = class_of(classes->listener, policy()[i]);
	return 0;
}
