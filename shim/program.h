/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Programs that the server executes.
 */
#pragma once

#include <stdbool.h>

/* Whether a program will load what LD_PRELOAD names; true where that cannot be told. */
bool program_preloads(const char *path);
/* The same of one that is looked for as execvp() does. */
bool program_preloads_from_path(const char *name);
bool program_preloads_from_file(int fd);
