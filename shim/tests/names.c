/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Names: one epoll instance or listening socket under several descriptors. Who waits by any of them is told of every class, by the
 * server's own word, whichever was used before or closed since.
 *
 * The server is server.h, and what is of instances is in instances.h. Runs in a network namespace of its own, under the sanitizers of the
 * compiler.
 */
#define _GNU_SOURCE
#include "check.h"
#include "instances.h"
#include "kernel.h"
#include "network.h"
#include "server.h"

#define OTHER_WORD (WORD + 1)

static void watch_other(int set, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = OTHER_WORD};

	CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

static void a_listening_socket_is_one(bool copied_before, int way)
{
	int set = epoll_create1(EPOLL_CLOEXEC), added = listen_at(FIRST), copy = -1, other;
	struct epoll_event event;

	if (copied_before)
		copy = copy_of(added, way);
	watch(set, EPOLL_CTL_ADD, added);
	if (!copied_before)
		copy = copy_of(added, way);
	serves(set, added);
	serves(set, copy);
	close_name(added, way);
	serves(set, copy);
	/* another listening socket has its number */
	other = listen_at(FIRST + 1);
	if (other != added)
		CHECK(dup2(other, added) == added && !close(other));
	watch_other(set, added);
	serves(set, copy);
	watch(set, EPOLL_CTL_DEL, added);
	close(added);
	serves(set, copy);
	/* by two names, of which one is closed */
	watch(set, EPOLL_CTL_ADD, copy);
	serves(set, copy);
	watch(set, EPOLL_CTL_DEL, copy);
	serves(set, copy);
	serves_in_a_child(set, copy);
	close(copy);
	for (int class = 0; class <= CLASSES; class ++)
		CHECK(client_of(class) < 0);
	CHECK(!epoll_wait(set, &event, 1, 0));
	close(set);
}

static void a_listening_socket_is_heard_of_when_the_name_that_was_added_is_closed(void)
{
	what = __func__;
	for (int way = 0; way < WAYS; way++) {
		a_listening_socket_is_one(true, way);
		a_listening_socket_is_one(false, way);
	}
}

/* It is disarmed by its number, which means something else by now. */
static void a_one_shot_listening_socket_disarms_nothing_else(void)
{
	struct epoll_event once = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = WORD}, event;
	int set = epoll_create1(EPOLL_CLOEXEC), added = listen_at(FIRST), copy = dup(added), client, ends[2];

	what = __func__;
	CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, added, &once));
	close(added);
	CHECK(!pipe(ends) && (ends[0] == added || dup2(ends[0], added) == added));
	watch_other(set, added);
	client = client_of(0);
	is_told(set);
	CHECK(write(ends[1], "x", 1) == 1);
	CHECK(epoll_wait(set, &event, 1, PATIENCE_MS) == 1 && event.data.u64 == OTHER_WORD);
	accepts(copy, client);
	close(ends[0]);
	close(ends[1]);
	close(added);
	close(copy);
	close(set);
}

int main(void)
{
	if (!own_namespace())
		return LEFT_OUT;
	alarm(300);
	an_instance_that_was_copied_before_the_server_listened_is_one();
	an_instance_tells_the_same_by_all_its_names();
	a_copy_takes_the_place_of_another_instance();
	who_waits_for_an_instance_that_is_closed_is_told();
	a_listening_socket_is_heard_of_when_the_name_that_was_added_is_closed();
	a_one_shot_listening_socket_disarms_nothing_else();
	who_waited_before_the_first_front_is_told_of_its_classes();
	by_a_name_that_is_not_known_no_word_of_the_shim_is_told();
	whenever_an_instance_comes_and_goes_the_servers_own_word_is_told();
	a_class_that_comes_later_keeps_no_child_busy();
	a_server_in_the_background_gets_the_classes_that_come_later();
	return 0;
}
