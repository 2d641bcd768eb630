/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "real.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

static int pwait_exactly(int fd, struct epoll_event *events, int room, const struct timespec *timeout,
			 const sigset_t *mask);

static struct real table = {.epoll_pwait2 = pwait_exactly};
static int (*library_pwait2)(int, struct epoll_event *, int, const struct timespec *, const sigset_t *);
static atomic_bool resolved;

/* ---- what an older C library or kernel has not ---- */

/* Who waits for a part of one waits no shorter. */
static int milliseconds(const struct timespec *time)
{
	if (!time)
		return -1;
	if (time->tv_sec >= INT_MAX / 1000)
		return INT_MAX;
	return time->tv_sec * 1000 + (time->tv_nsec + 999999) / 1000000;
}

static bool is_time(const struct timespec *time)
{
	return time->tv_sec >= 0 && time->tv_nsec >= 0 && time->tv_nsec < 1000000000;
}

/* glibc 2.35 and Linux 5.11 have it, and filters of system calls that do not know it say EPERM. */
static int pwait_exactly(int fd, struct epoll_event *events, int room, const struct timespec *timeout,
			 const sigset_t *mask)
{
	int told = library_pwait2 ? library_pwait2(fd, events, room, timeout, mask)
				  : syscall(SYS_epoll_pwait2, fd, events, room, timeout, mask, _NSIG / 8);

	if (told >= 0 || (errno != ENOSYS && errno != EPERM))
		return told;
	if (timeout && !is_time(timeout)) {
		errno = EINVAL;
		return -1;
	}
	return table.epoll_pwait(fd, events, room, milliseconds(timeout), mask);
}

/* glibc 2.34; so has closefrom(), which a program may have from elsewhere. */
static int close_range_itself(unsigned first, unsigned last, int flags)
{
	return syscall(SYS_close_range, first, last, flags);
}

static void closefrom_itself(int first)
{
	close_range_itself(first < 0 ? 0 : first, ~0u, 0);
}

static void resolve(void)
{
	/* POSIX lets a pointer to an object hold one to a function; ISO C has no word for it. */
	const struct {
		const char *name;
		void *at;
		void *otherwise;
	} symbols[] = {
	    {"listen", &table.listen, NULL},
	    {"shutdown", &table.shutdown, NULL},
	    {"connect", &table.connect, NULL},
	    {"recvmsg", &table.recvmsg, NULL},
	    {"accept4", &table.accept4, NULL},
	    {"setsockopt", &table.setsockopt, NULL},
	    {"close", &table.close, NULL},
	    {"close_range", &table.close_range, close_range_itself},
	    {"closefrom", &table.closefrom, closefrom_itself},
	    {"fclose", &table.fclose, NULL},
	    {"dup", &table.dup, NULL},
	    {"dup2", &table.dup2, NULL},
	    {"dup3", &table.dup3, NULL},
	    {"fcntl", &table.fcntl, NULL},
	    {"ioctl", &table.ioctl, NULL},
	    {"epoll_create", &table.epoll_create, NULL},
	    {"epoll_create1", &table.epoll_create1, NULL},
	    {"epoll_ctl", &table.epoll_ctl, NULL},
	    {"epoll_pwait", &table.epoll_pwait, NULL},
	    {"epoll_pwait2", &library_pwait2, NULL},
	    {"poll", &table.poll, NULL},
	    {"ppoll", &table.ppoll, NULL},
	    {"select", &table.select, NULL},
	    {"pselect", &table.pselect, NULL},
	    {"posix_spawn_file_actions_addclose", &table.addclose, NULL},
	    {"execve", &table.execve, NULL},
	    {"execvpe", &table.execvpe, NULL},
	    {"fexecve", &table.fexecve, NULL},
	};

	for (unsigned i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *found = dlsym(RTLD_NEXT, symbols[i].name);

		*(void **)symbols[i].at = found ? found : symbols[i].otherwise;
	}
	atomic_store_explicit(&resolved, true, memory_order_release);
}

const struct real *real(void)
{
	if (!atomic_load_explicit(&resolved, memory_order_acquire))
		resolve();
	return &table;
}
