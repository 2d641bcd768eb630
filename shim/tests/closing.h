/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The ways in which a server closes a descriptor. CHECK is of who includes it: each test says in its own way where it was. */
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define WAYS_TO_CLOSE 4

static void close_name(int fd, int way)
{
	int other;

	switch (way) {
	case 0:
		CHECK(!close_range(fd, fd, 0));
		break;
	case 1:
		CHECK(!fclose(fdopen(fd, "r")));
		break;
	case 2: /* replaced by something else, which is closed then */
		other = open("/dev/null", O_RDONLY);
		CHECK(dup2(other, fd) == fd && !close(other) && !close(fd));
		break;
	default:
		CHECK(!close(fd));
	}
}
