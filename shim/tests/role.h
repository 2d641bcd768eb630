/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Role: a server with class listeners and its clients, and what the program does that the test executes: itself, with a role.
 *
 * The kernel side is kernel.h.
 */
#pragma once

#include "check.h"
#include "kernel.h"

#include <stdlib.h>
#include <sys/wait.h>

#define PATIENCE_MS 10000
#define MOST	    256 /* descriptors that are looked at */

static int listen_at(int port)
{
	struct sockaddr_in own = {
	    .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	CHECK(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!bind(fd, (struct sockaddr *)&own, sizeof(own)) && !listen(fd, 64));
	return fd;
}

static bool is_class_listener(int fd)
{
	return port_of(fd) >= FIRST + STEP && port_of(fd) < FIRST + (CLASSES + 1) * STEP;
}

static int client_at(int port)
{
	struct sockaddr_in to = {
	    .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof(to)));
	return fd;
}

/* Class CLASSES: of none, at the server's own socket. */
static int client_of(int class)
{
	return client_at(FIRST + (class == CLASSES ? 0 : STEP * (class + 1)));
}

static void become(const char *role)
{
	execv("/proc/self/exe", (char *[]){"fief-shim-exec", (char *)role, NULL});
	_exit(127);
}

/* Answers a client of each class and of none at its standard input. */
static int serve(void)
{
	for (int i = 0; i <= CLASSES; i++) {
		int fd = accept(0, NULL, NULL);

		CHECK(fd > 0 && write(fd, "x", 1) == 1);
		close(fd);
	}
	return 0;
}

static int count_class_listeners(void)
{
	int count = 0;

	for (int fd = 0; fd < MOST; fd++)
		count += is_class_listener(fd);
	return count;
}

/* Class listeners that stand for the container that they were made for, by the rank that the policy in force gives it. */
static int count_right(int listening)
{
	const struct front *front = front_of(listening);
	int count = 0;

	for (int i = OWN_QUEUE + 1; front && i < front->count; i++) {
		char name = class_of_port(port_of(front->queues[i].fd));
		struct fief_class class = class_of(0, name);

		count += same_container(front->queues[i].container, class.container) &&
			 front->queues[i].priority == (strchr(policy(), name) ? class.priority : OWN_PRIORITY);
	}
	return count;
}

static int ended(pid_t child)
{
	int status = -1;

	CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* As spawn-fcgi starts a server. */
static pid_t started(int listening, const char *policy, const char *role)
{
	pid_t child = fork();

	if (child)
		return child;
	alarm(60);
	setenv(POLICY, policy, true);
	dup2(listening, 0);
	close(listening);
	become(role);
	return -1;
}
