/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls: two that are under way at once, on one CPU or on one each, each of which stops at a point of it. */
#pragma once

#include <stdbool.h>

/* The call that runs, if one does, may stop here. */
void calls_point(void);
/* The call that runs, if one does, waits for what the other one is to do: that one goes on to its next point. */
void calls_spin(void);
/* The number of the call that runs; -1: none does. */
int calls_running(void);
/* Begins call 0 or 1, which stops at a point, counted from 0; whether it has stopped and not ended. */
bool calls_begin(int number, void (*run)(int), unsigned int stop);
/* One that has stopped goes on, to a point from there; whether it has stopped again and not ended. */
bool calls_go_to(int number, unsigned int stop);
/* One that has stopped goes on to its end. */
void calls_go_on(int number);
/* Whether it has stopped, and not ended since. */
bool calls_has_stopped(int number);
