/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Policies: which class listeners a server has and keeps while policies come, and what becomes of what it could not have.
 *
 * The kernel side is kernel.h, the server is role.h; exec.c runs these.
 */
#pragma once

#include "check.h"
#include "kernel.h"
#include "role.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>

/* Between the answer that the shim gets and the bind() of the class. */
static void a_policy_that_comes_meanwhile_gives_no_class_the_listener_of_another(void)
{
	int listening;

	what = __func__;
	next_policy = "210";
	listening = listen_at(FIRST);
	CHECK(!next_policy && count_right(listening) == 1 && count_class_listeners() == 1);
	front_open_queues(front_of(listening), listening, 64);
	CHECK(count_right(listening) == CLASSES && count_class_listeners() == CLASSES);
	close(listening);
	unsetenv(POLICY);
}

/* A second later; how many class listeners the shim asked for. */
static unsigned asked_at_the_next_look(int listening)
{
	struct front *front = front_of(listening);

	asked_for = 0;
	front->looked = 0;
	front_refresh(front, listening);
	return asked_for;
}

/* It counts the classes by their places, and of three only the first one has its place in the policy that comes meanwhile. */
static void what_a_policy_that_comes_meanwhile_refuses_is_asked_for_under_the_next_one(void)
{
	int listening;

	what = __func__;
	next_policy = "0";
	asked_for = 0;
	listening = listen_at(FIRST);
	CHECK(count_right(listening) == 1 && asked_for == CLASSES);
	set_policy(FIRST_POLICY);
	CHECK(asked_at_the_next_look(listening) == CLASSES - 1);
	CHECK(count_right(listening) == CLASSES && count_class_listeners() == CLASSES);
	CHECK(!asked_at_the_next_look(listening));
	close(listening);
	unsetenv(POLICY);
}

static void what_the_process_may_not_make_it_asks_for_once_until_it_listens_again(void)
{
	int listening;

	what = __func__;
	refuses = EACCES;
	listening = listen_at(FIRST);
	CHECK(!count_class_listeners() && !asked_at_the_next_look(listening));
	refuses = 0;
	CHECK(!asked_at_the_next_look(listening));
	CHECK(!listen(listening, 64) && count_class_listeners() == CLASSES);
	close(listening);
}

static void what_there_was_no_room_for_is_asked_for_again(void)
{
	int listening;

	what = __func__;
	refuses = EMFILE;
	listening = listen_at(FIRST);
	CHECK(asked_at_the_next_look(listening) == CLASSES && !count_class_listeners());
	refuses = 0;
	CHECK(asked_at_the_next_look(listening) == CLASSES && count_class_listeners() == CLASSES);
	close(listening);
}

static void the_next_container_of_a_slot_gets_a_listener_of_its_own(void)
{
	int listening = listen_at(FIRST);

	what = __func__;
	set_policy("a12");
	CHECK(asked_at_the_next_look(listening) == 1);
	CHECK(count_class_listeners() == CLASSES + 1 && front_of(listening)->count == CLASSES + 2);
	CHECK(same_container(front_of(listening)->queues[CLASSES + 1].container, class_of(0, 'a').container));
	close(listening);
	unsetenv(POLICY);
}

static void an_older_kernel_side_tells_classes_by_their_places(void)
{
	int listening;

	what = __func__;
	setenv(OLDER, "1", true);
	listening = listen_at(FIRST);
	CHECK(count_right(listening) == CLASSES && count_class_listeners() == CLASSES);
	CHECK(!asked_at_the_next_look(listening));
	CHECK(ended(started(listening, FIRST_POLICY, "count-right")) == CLASSES);
	CHECK(ended(started(listening, "01", "count")) == 2);
	close(listening);
	unsetenv(OLDER);
}

/* ---- more containers than a front has room for ---- */

static struct queue *queue_named(int listening, char name)
{
	struct front *front = front_of(listening);

	for (int i = OWN_QUEUE + 1; i < front->count; i++)
		if (same_container(front->queues[i].container, class_of(0, name).container))
			return &front->queues[i];
	return NULL;
}

/* By accept(), of which an event tells first unless `set` is -1. */
static void is_served(int set, int listening, int client)
{
	struct epoll_event event;
	char word = 'x';
	int fd;

	CHECK(set < 0 || (epoll_wait(set, &event, 1, PATIENCE_MS) == 1 && event.data.fd == listening));
	fd = accept(listening, NULL, NULL);
	CHECK(fd >= 0 && write(fd, &word, 1) == 1 && read(client, &word, 1) == 1);
	close(fd);
	close(client);
}

static int watch(int listening)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = listening};
	int set = epoll_create1(EPOLL_CLOEXEC);

	CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, listening, &event));
	return set;
}

/* With the next CLASSES containers from one of them on. */
static void policy_comes(int listening, int from)
{
	char classes[CLASSES + 1] = "";

	memcpy(classes, CONTAINERS + from, CLASSES);
	set_policy(classes);
	asked_at_the_next_look(listening);
	asked_at_the_next_look(listening);
}

/* Each with CLASSES containers more, of which a client is served. */
static void policies_come(int set, int listening, int from, int to)
{
	for (; from + CLASSES <= to; from += CLASSES) {
		policy_comes(listening, from);
		for (int i = from; i < from + CLASSES; i++) {
			CHECK(queue_named(listening, CONTAINERS[i]));
			is_served(set, listening, client_at(FIRST + step_of(CONTAINERS[i])));
		}
		CHECK(!asked_at_the_next_look(listening));
	}
}

#define ALL	 (int)(sizeof(CONTAINERS) - 1)
#define TOO_MANY (MAX_QUEUES / CLASSES * CLASSES + CLASSES)

static void a_class_gets_a_listener_however_many_there_were(void)
{
	int listening = listen_at(FIRST), set = watch(listening);

	what = __func__;
	policies_come(set, listening, CLASSES, ALL);
	CHECK(front_of(listening)->count == MAX_QUEUES && count_class_listeners() == MAX_QUEUES - 1);
	CHECK(ended(started(listening, "0", "count-right")) == MAX_QUEUES - 1);
	close(set);
	close(listening);
	CHECK(!count_class_listeners());
	unsetenv(POLICY);
}

static void who_waits_for_a_class_that_is_gone_keeps_its_listener(void)
{
	int listening = listen_at(FIRST), client = client_of(0);

	what = __func__;
	for (int at = CLASSES; at < TOO_MANY; at += CLASSES)
		policy_comes(listening, at);
	CHECK(queue_named(listening, '0') && !queue_named(listening, '1'));
	is_served(-1, listening, client);
	policy_comes(listening, TOO_MANY);
	CHECK(!queue_named(listening, '0'));
	close(listening);
	unsetenv(POLICY);
}

static void a_class_that_is_gone_keeps_its_listener_for_two_looks(void)
{
	char classes[MAX_QUEUES] = "";
	int listening;

	what = __func__;
	memcpy(classes, CONTAINERS, MAX_QUEUES - 1);
	atomic_store(&classes_in_force, MAX_QUEUES - 1);
	set_policy(classes);
	listening = listen_at(FIRST);
	CHECK(count_right(listening) == MAX_QUEUES - 1);
	set_policy("YZ");
	for (int look = 0; look < 2; look++)
		CHECK(!asked_at_the_next_look(listening) && !queue_named(listening, 'Y'));
	CHECK(asked_at_the_next_look(listening) == 2 && queue_named(listening, 'Y') && queue_named(listening, 'Z'));
	CHECK(count_class_listeners() == MAX_QUEUES - 1);
	close(listening);
	atomic_store(&classes_in_force, CLASSES);
	unsetenv(POLICY);
}

/* A child has the listener too, so the kernel would keep it in the sets that it is in. */
static void a_listener_that_was_replaced_wakes_nobody(void)
{
	int listening = listen_at(FIRST), set = watch(listening), client, ends[2];
	struct pollfd waiter = {.events = POLLIN};
	struct epoll_event event;
	pid_t child;

	what = __func__;
	is_served(-1, listening, client_of(0)); /* there is a waiter since */
	CHECK(!pipe(ends));
	child = fork();
	if (!child) {
		close(ends[1]);
		_exit(read(ends[0], &client, 1) != 0);
	}
	close(ends[0]);
	policies_come(set, listening, CLASSES, TOO_MANY);
	CHECK(!queue_named(listening, '0'));
	client = client_of(0);
	waiter.fd = front_of(listening)->waiter;
	CHECK(waiter.fd >= 0 && !poll(&waiter, 1, 0) && !epoll_wait(set, &event, 1, 0));
	close(ends[1]);
	CHECK(ended(child) == 0);
	close(client);
	close(set);
	close(listening);
	unsetenv(POLICY);
}
