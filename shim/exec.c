/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * exec: class listeners go with their front to a program that has the shim, and to no other.
 *
 * A server hands its listening sockets to a new binary of its own (nginx), or was itself started to hand them on (socket
 * activation). Either may leave LD_PRELOAD out of the environment, and without the shim the new program would never see the
 * connections of the classes. So class listeners close on exec. What executes by the functions here puts the shim into the
 * environment and passes those on whose front stays open, unless the program would not load it (program.c).
 *
 * Limits: who executes by execl() and its like, posix_spawn() or the kernel's own call gives the new program no class listeners. If
 * it has the shim it makes its own; else all clients come to the front itself.
 */
#define _GNU_SOURCE
#include "descriptors.h"
#include "program.h"
#include "real.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char preload[4096];

static __attribute__((constructor)) void remember(void)
{
	const char *word = getenv("LD_PRELOAD");

	/* kept now, since the server may clear its environment */
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", word ? word : "");
}

static size_t words(char *const *environment)
{
	size_t count = 0;

	while (environment && environment[count])
		count++;
	return count;
}

/*
 * `environment` with the shim, in `more`, which has room for two words more. False: it names other libraries, and whether they are
 * with the shim is not known here.
 */
static bool with_shim(char *const *environment, char **more)
{
	const char *theirs = preload;
	size_t count = 0;

	for (; environment && environment[count]; count++) {
		more[count] = environment[count];
		if (!strncmp(more[count], "LD_PRELOAD=", sizeof("LD_PRELOAD=") - 1))
			theirs = more[count];
	}
	if (theirs == preload)
		more[count++] = preload;
	more[count] = NULL;
	return !strcmp(theirs, preload);
}

/* The class listeners of each front that stays open: its descriptors may have been given away in a child of fork(). */
static void pass_on(int flags)
{
	for (int fd = 0; fd < descriptors_used(); fd++) {
		struct front *front = front_of(fd);
		int own = front ? real()->fcntl(fd, F_GETFD) : -1;

		if (own < 0 || own & FD_CLOEXEC)
			continue;
		for (int i = OWN_QUEUE + 1; i < front->count; i++)
			if (front->queues[i].fd >= 0)
				real()->fcntl(front->queues[i].fd, F_SETFD, flags);
	}
}

/* The new program was not to be had. */
static int stays(int result)
{
	int saved = errno;

	pass_on(FD_CLOEXEC);
	errno = saved;
	return result;
}

PUBLIC int execve(const char *path, char *const *arguments, char *const *environment)
{
	if (!atomic_load(&front_count))
		return real()->execve(path, arguments, environment);

	char *more[words(environment) + 2];

	if (with_shim(environment, more) && program_preloads(path))
		pass_on(0);
	return stays(real()->execve(path, arguments, more));
}

PUBLIC int execvpe(const char *file, char *const *arguments, char *const *environment)
{
	if (!atomic_load(&front_count))
		return real()->execvpe(file, arguments, environment);

	char *more[words(environment) + 2];

	if (with_shim(environment, more) && program_preloads_from_path(file))
		pass_on(0);
	return stays(real()->execvpe(file, arguments, more));
}

PUBLIC int fexecve(int fd, char *const *arguments, char *const *environment)
{
	if (!atomic_load(&front_count))
		return real()->fexecve(fd, arguments, environment);

	char *more[words(environment) + 2];

	if (with_shim(environment, more) && program_preloads_from_file(fd))
		pass_on(0);
	return stays(real()->fexecve(fd, arguments, more));
}

PUBLIC int execv(const char *path, char *const *arguments)
{
	return execve(path, arguments, environ);
}

PUBLIC int execvp(const char *file, char *const *arguments)
{
	return execvpe(file, arguments, environ);
}
