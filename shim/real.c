/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "real.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>

static struct real table;
static atomic_bool resolved;

static void resolve(void)
{
	/* POSIX lets a pointer to an object hold one to a function; ISO C has no word for it. */
	const struct {
		const char *name;
		void *at;
	} symbols[] = {
	    {"listen", &table.listen},
	    {"shutdown", &table.shutdown},
	    {"connect", &table.connect},
	    {"recvmsg", &table.recvmsg},
	    {"accept4", &table.accept4},
	    {"setsockopt", &table.setsockopt},
	    {"close", &table.close},
	    {"close_range", &table.close_range},
	    {"fclose", &table.fclose},
	    {"dup", &table.dup},
	    {"dup2", &table.dup2},
	    {"dup3", &table.dup3},
	    {"fcntl", &table.fcntl},
	    {"ioctl", &table.ioctl},
	    {"epoll_create", &table.epoll_create},
	    {"epoll_create1", &table.epoll_create1},
	    {"epoll_ctl", &table.epoll_ctl},
	    {"epoll_pwait", &table.epoll_pwait},
	    {"epoll_pwait2", &table.epoll_pwait2},
	    {"poll", &table.poll},
	    {"ppoll", &table.ppoll},
	    {"select", &table.select},
	    {"pselect", &table.pselect},
	    {"posix_spawn_file_actions_addclose", &table.addclose},
	    {"execve", &table.execve},
	    {"execvpe", &table.execvpe},
	    {"fexecve", &table.fexecve},
	};

	for (unsigned i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
		*(void **)symbols[i].at = dlsym(RTLD_NEXT, symbols[i].name);
	atomic_store_explicit(&resolved, true, memory_order_release);
}

const struct real *real(void)
{
	if (!atomic_load_explicit(&resolved, memory_order_acquire))
		resolve();
	return &table;
}
