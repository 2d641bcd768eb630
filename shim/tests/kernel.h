/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The kernel side of the stress target: which classes a listening socket has, and where their listeners are bound.
 *
 * A class listener of port P is bound to P + STEP * class, so that a child or a new program knows it by its port alone.
 */
#pragma once

#define real shim_real
#include "../real.c"
#undef real
#include "../descriptors.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CLASSES 3
#define FIRST	10000
#define STEP	5000 /* all below the ports that clients get: else one connects to itself where nobody listens */

/* The record of a front stays, since another thread may be in accept(). */
PUBLIC const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}

static uint8_t class_wanted[1 << 16];	      /* by descriptor: number + 1 */
static atomic_int classes_in_force = CLASSES; /* the first ones; a policy that has more can come later */

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
	if (level != FIEF_SOL || name != FIEF_CLASS)
		return shim_real()->setsockopt(fd, level, name, value, size);
	class_wanted[fd] = *(const uint32_t *)value + 1;
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
		moved.sin_port = htons(ntohs(moved.sin_port) + STEP * class_wanted[fd]);
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
	classes->listener = (port - FIRST) % STEP;
	classes->self = port < FIRST + STEP ? FIEF_NO_CLASS : (unsigned)((port - FIRST) / STEP - 1);
	classes->count = classes->self == FIEF_NO_CLASS ? atomic_load(&classes_in_force) : 0;
	for (uint32_t i = 0; i < classes->count; i++) {
		classes->class_[i].container.id = 1 + classes->listener * CLASSES + i;
		classes->class_[i].priority = 100 * (unsigned)i;
	}
	return 0;
}
