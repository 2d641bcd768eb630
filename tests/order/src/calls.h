/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls: two that are under way at once on one CPU, each of which stops at a point of it. */
#pragma once

#include <stdbool.h>

/* The call that runs, if one does, may stop here. */
void calls_point(void);
/* Begins call 0 or 1, which stops at a point, counted from 0; whether it has stopped and not ended. */
bool calls_begin(int number, void (*run)(int), unsigned int stop);
/* One that has stopped goes on to its end. */
void calls_go_on(int number);
