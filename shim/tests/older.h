/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Older: a C library and a kernel that lack what the shim calls.
 *
 * The server is server.h; names.c runs these.
 */
#pragma once

#include "instances.h"

#include <time.h>

static int lacking; /* what the call says that is not there */

static int pwait2_lacks(int fd, struct epoll_event *events, int room, const struct timespec *timeout,
			const sigset_t *mask)
{
	(void)fd, (void)events, (void)room, (void)timeout, (void)mask;
	errno = lacking;
	return -1;
}

static void waits_as_long_as_it_is_asked_to(int set)
{
	const struct timespec time = {.tv_nsec = 1500000}, none = {.tv_nsec = -1};
	struct timespec start, end;
	struct epoll_event event;
	long long waited;

	clock_gettime(CLOCK_MONOTONIC, &start);
	CHECK(!epoll_pwait2(set, &event, 1, &time, NULL));
	clock_gettime(CLOCK_MONOTONIC, &end);
	waited = (end.tv_sec - start.tv_sec) * 1000000000LL + end.tv_nsec - start.tv_nsec;
	CHECK(waited >= time.tv_nsec);
	CHECK(epoll_pwait2(set, &event, 1, &none, NULL) == -1 && errno == EINVAL);
}

/* In a child: what it has lost the others keep. */
static void serves_without(int set, int error, bool by_library)
{
	pid_t child = fork();

	if (!child) {
		alarm(60);
		lacking = error;
		library_pwait2 = by_library ? pwait2_lacks : NULL;
		waits_as_long_as_it_is_asked_to(set);
		serves(set, listening);
		_exit(0);
	}
	ended_well(child);
}

static void where_the_newest_call_is_missing_a_server_waits_all_the_same(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC);

	what = __func__;
	listening = listen_at(FIRST);
	watch(set, EPOLL_CTL_ADD, listening);
	serves_without(set, ENOSYS, true);
	serves_without(set, EPERM, true);
	serves_without(set, 0, false);
	close(set);
	close(listening);
}

static bool is_open(int fd)
{
	return shim_real()->fcntl(fd, F_GETFD) >= 0;
}

static void where_close_range_is_missing_descriptors_are_closed_all_the_same(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	what = __func__;
	CHECK(!close_range_itself(fd, fd, 0) && !is_open(fd));
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (int way = 0; way < 2; way++) {
		pid_t child = fork();

		if (!child) {
			if (way)
				((struct shim_real *)real())->closefrom = closefrom_itself;
			closefrom(fd);
			_exit(is_open(fd));
		}
		ended_well(child);
	}
	close(fd);
}
