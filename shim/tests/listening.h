/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Listening: sockets that are shut and listen again, and whose class listeners are made while they are shut or closed, or their thread is
 * cancelled.
 *
 * The server is server.h; names.c runs these.
 */
#pragma once

#include "instances.h"

#include <pthread.h>

static uint64_t cookie_of_socket(int fd)
{
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);

	CHECK(!getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) && cookie);
	return cookie;
}

/* Shuts the listening socket and lets it listen again; how many of its class listeners are other sockets then, under the same numbers. */
static int count_fresh(void)
{
	struct front *front = front_of(listening);
	int descriptors[CLASSES], count = 0;
	uint64_t before[CLASSES];

	CHECK(front->count == CLASSES + 1);
	for (int i = 0; i < CLASSES; i++) {
		descriptors[i] = front->queues[OWN_QUEUE + 1 + i].fd;
		before[i] = cookie_of_socket(descriptors[i]);
	}
	CHECK(!shutdown(listening, SHUT_RDWR));
	for (int class = 0; class <= CLASSES; class ++)
		CHECK(client_of(class) < 0);
	CHECK(!listen(listening, 64) && front->count == CLASSES + 1);
	for (int i = 0; i < CLASSES; i++) {
		CHECK(front->queues[OWN_QUEUE + 1 + i].fd == descriptors[i] && is_listening(descriptors[i]));
		count += cookie_of_socket(descriptors[i]) != before[i];
	}
	return count;
}

static void class_listeners_of_a_group_are_fresh_when_it_listens_again(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC), one = 1;
	pid_t child;

	what = __func__;
	listening = listen_at(FIRST);
	watch(set, EPOLL_CTL_ADD, listening);
	CHECK(!count_fresh());
	serves(set, listening);
	CHECK(!setsockopt(listening, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)));
	CHECK(count_fresh() == CLASSES);
	serves(set, listening);
	refuses = EACCES; /* the server has given up its user since */
	CHECK(!count_fresh());
	serves(set, listening);
	refuses = 0;
	child = fork();
	if (!child) {
		alarm(60);
		CHECK(!count_fresh()); /* the parent hears of those that are in its set */
		serves(set, listening);
		_exit(0);
	}
	ended_well(child);
	serves(set, listening);
	close(set);
	close(listening);
}

/* ---- while another thread looks ---- */

/* It closes the sockets that are refused, where it would be cancelled. */
static void *listen_and_end(void *unused)
{
	CHECK(!pthread_cancel(pthread_self()));
	front_open_queues(front_of(listening), listening, 64);
	pthread_testcancel();
	return unused;
}

static void a_thread_that_is_cancelled_keeps_nobody_from_listening(void)
{
	pthread_t thread;
	void *result;
	int set;

	what = __func__;
	refuses = EACCES;
	listening = listen_at(FIRST);
	CHECK(!pthread_create(&thread, NULL, listen_and_end, NULL) && !pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED);
	refuses = 0;
	CHECK(!listen(listening, 64) && front_of(listening)->count == CLASSES + 1);
	set = epoll_create1(EPOLL_CLOEXEC);
	watch(set, EPOLL_CTL_ADD, listening);
	serves(set, listening);
	close(set);
	close(listening);
}

static void a_socket_that_has_been_closed_gets_no_class_listeners(void)
{
	struct front *closed;
	int other;

	what = __func__;
	listening = listen_at(FIRST);
	closed = front_of(listening);
	close(listening);
	other = listen_at(FIRST + 1);
	CHECK(other == listening && front_of(other) != closed); /* the number is another one's */
	atomic_store(&classes_in_force, CLASSES);
	asked_for = 0;
	closed->looked = 0;
	front_refresh(closed, listening);
	front_open_queues(closed, listening, 64);
	CHECK(!asked_for && front_of(other)->count == CLASSES + 1);
	close(other);
}

static pthread_t shutter;

static void *shut(void *unused)
{
	CHECK(!shutdown(listening, SHUT_RDWR));
	return unused;
}

/* The kernel has taken the server's own socket off the network when this returns. */
static int listen_while_shut(int fd, int backlog)
{
	((struct shim_real *)real())->listen = shim_real()->listen;
	CHECK(!pthread_create(&shutter, NULL, shut, NULL));
	while (is_listening(listening))
		sched_yield();
	return shim_real()->listen(fd, backlog);
}

static void a_class_that_comes_while_its_server_pauses_is_shut_too(void)
{
	struct front *front;

	what = __func__;
	atomic_store(&classes_in_force, 1);
	listening = listen_at(FIRST);
	front = front_of(listening);
	atomic_store(&classes_in_force, CLASSES);
	((struct shim_real *)real())->listen = listen_while_shut;
	look_at_the_policy();
	CHECK(!pthread_join(shutter, NULL));
	CHECK(front->count == OWN_QUEUE + 3);
	for (int i = 0; i < front->count; i++)
		CHECK(!is_listening(front->queues[i].fd));
	close(listening);
}
