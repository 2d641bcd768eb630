/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Check: what a test that names its steps says of a condition that does not hold. */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The step that the test is at. */
static const char *what = "";

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s: not so: %s (%s)\n", __FILE__, __LINE__, what, #condition,          \
				strerror(errno));                                                                      \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)
