/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A network namespace with a loopback, for the tests with sockets. */
#pragma once

#include <errno.h>
#include <linux/if.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* What a test ends with that has no namespace, so that nobody takes it for one that passed. */
#define LEFT_OUT 77

/* False: there is none to be had, and the reason is told. */
static bool own_namespace(void)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int fd, failed;

	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) {
		fprintf(stderr, "no network namespace of its own (%s): left out\n", strerror(errno));
		return false;
	}
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	failed = ioctl(fd, SIOCSIFFLAGS, &request);
	if (failed)
		fprintf(stderr, "no loopback in a network namespace of its own (%s): left out\n", strerror(errno));
	close(fd);
	return !failed;
}
