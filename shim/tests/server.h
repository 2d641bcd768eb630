/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Server: one that serves by epoll, its clients, and the ways to copy and to close a descriptor.
 *
 * The kernel side is kernel.h.
 */
#pragma once

#include "check.h"
#include "kernel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>

#define PATIENCE_MS 20000
#define WORD	    0xf1ef5e7000000001 /* as wide as a pointer: a mark in its place is seen */

static int listening;

static int listen_at(int port)
{
	struct sockaddr_in own = {
	    .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;

	CHECK(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!bind(fd, (struct sockaddr *)&own, sizeof(own)) && !listen(fd, 64));
	return fd;
}

/* Class CLASSES: of none, at the server's own socket. -1: refused. */
static int client_of(int class)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(FIRST + (class == CLASSES ? 0 : STEP * (class + 1))),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	if (!connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return fd;
	CHECK(errno == ECONNREFUSED);
	close(fd);
	return -1;
}

static void watch(int set, int operation, int name)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = WORD};

	CHECK(!epoll_ctl(set, operation, name, &event));
}

static void is_told(int set)
{
	struct epoll_event event;

	CHECK(epoll_wait(set, &event, 1, PATIENCE_MS) == 1);
	CHECK(event.data.u64 == WORD);
}

static void accepts(int name, int client)
{
	struct sockaddr_in peer = {};
	socklen_t size = sizeof(peer);
	int fd = accept4(name, NULL, NULL, SOCK_CLOEXEC);

	CHECK(fd >= 0 && !getpeername(fd, (struct sockaddr *)&peer, &size));
	CHECK(ntohs(peer.sin_port) == port_of(client));
	close(fd);
	close(client);
}

/* A client of each class and of none. */
static void serves(int set, int name)
{
	struct epoll_event event;

	for (int class = 0; class <= CLASSES; class ++) {
		int client = client_of(class);

		CHECK(client >= 0);
		is_told(set);
		accepts(name, client);
		CHECK(!epoll_wait(set, &event, 1, 0));
	}
}

static void ended_well(pid_t child)
{
	int status = -1;

	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void serves_in_a_child(int set, int name)
{
	pid_t child = fork();

	if (!child) {
		alarm(60); /* the parent's does not come over */
		serves(set, name);
		_exit(0);
	}
	ended_well(child);
}

enum { WAYS = 5 };

static int copy_of(int fd, int way)
{
	int copy = way < 2 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;

	switch (way) {
	case 0:
		return dup2(fd, copy);
	case 1:
		return dup3(fd, copy, O_CLOEXEC);
	case 2:
		return fcntl(fd, F_DUPFD, 3);
	case 3:
		return fcntl(fd, F_DUPFD_CLOEXEC, 3);
	default:
		return dup(fd);
	}
}
