/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Heirs: whose an epoll instance is that several processes share, once its maker has ended, or where nobody can tell; and what a child
 * inherits with it.
 *
 * The server is server.h; names.c runs these.
 */
#pragma once

#include "instances.h"

#include <sched.h>

/* Says how many class listeners it asked for, and stays until the test has heard of all. */
static void look_as_heir(pid_t maker, int go, int told, int stay)
{
	unsigned char count;
	char word;

	alarm(60);
	while (!kill(maker, 0))
		usleep(1000);
	CHECK(read(go, &word, 1) == 1);
	atomic_store(&classes_in_force, CLASSES);
	asked_for = 0;
	look_at_the_policy();
	count = asked_for;
	CHECK(write(told, &count, 1) == 1 && !read(stay, &word, 1));
	close(listening); /* before the test hears that this process has ended */
	_exit(0);
}

static void of_two_orphans_one_makes_the_classes_that_come_later(void)
{
	int go[2], told[2], stay[2];
	unsigned char counts[2];
	pid_t maker;

	what = __func__;
	CHECK(!pipe(go) && !pipe(told) && !pipe(stay));
	maker = fork();
	if (!maker) {
		int set = epoll_create1(EPOLL_CLOEXEC);

		maker = getpid();
		atomic_store(&classes_in_force, 1);
		listening = listen_at(FIRST);
		watch(set, EPOLL_CTL_ADD, listening);
		for (int i = 0; i < 2; i++)
			if (!fork()) {
				close(stay[1]);
				look_as_heir(maker, go[0], told[1], stay[0]);
			}
		_exit(0);
	}
	close(told[1]);
	ended_well(maker);
	for (int i = 0; i < 2; i++)
		CHECK(write(go[1], "x", 1) == 1 && read(told[0], &counts[i], 1) == 1);
	CHECK(counts[0] == CLASSES - 1 && !counts[1]);
	close(stay[1]);
	CHECK(!read(told[0], counts, 1)); /* both have ended */
	close(told[0]);
	close(stay[0]);
	close(go[0]);
	close(go[1]);
}

/* In a child of its own, whose further children are in the namespace. */
static void close_in_another_namespace(void)
{
	pid_t child;

	alarm(60);
	if (unshare(CLONE_NEWPID))
		_exit(errno == EPERM ? 0 : 1); /* in a container of the usual kind */
	child = fork();
	if (!child) {
		CHECK(getpid() == 1);
		close(listening);
		_exit(0);
	}
	ended_well(child);
	_exit(0);
}

static void a_child_in_another_pid_namespace_takes_nothing_out_of_its_parents_set(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	pid_t child;

	what = __func__;
	listening = listen_at(FIRST);
	watch(set, EPOLL_CTL_ADD, listening);
	child = fork();
	if (!child)
		close_in_another_namespace();
	ended_well(child);
	serves(set, listening);
	close(set);
	close(listening);
}

static void what_was_held_of_a_listening_socket_goes_with_it(void)
{
	struct epoll_event edge = {.events = EPOLLIN | EPOLLET, .data.u64 = WORD}, events[4];
	int set = epoll_create1(EPOLL_CLOEXEC), clients[2];
	pid_t child;

	what = __func__;
	listening = listen_at(FIRST);
	CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, listening, &edge));
	for (int i = 0; i < 2; i++)
		clients[i] = client_of(CLASSES - 1 - i);
	CHECK(epoll_wait(set, events, 4, PATIENCE_MS) == 1); /* of the better one, and holds the other */
	child = fork();
	if (!child) {
		alarm(60);
		close(listening);
		CHECK(!epoll_wait(set, events, 4, 0));
		_exit(0);
	}
	ended_well(child);
	accepts(listening, clients[0]);
	is_told(set);
	accepts(listening, clients[1]);
	close(set);
	close(listening);
}
