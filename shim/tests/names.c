/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Names: one epoll instance or listening socket under several descriptors, which may come in a message. Who waits by any of them is
 * told of every class, by the server's own word, whichever was used before or closed since.
 *
 * The server is server.h; what is of instances is in instances.h and heirs.h, of sockets that are shut in listening.h, of older C
 * libraries in older.h. Runs in a network namespace of its own, under the sanitizers of the compiler.
 */
#define _GNU_SOURCE
#include "check.h"
#include "closing.h"
#include "heirs.h"
#include "instances.h"
#include "kernel.h"
#include "listening.h"
#include "network.h"
#include "older.h"
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

/* ---- in a message ---- */

static void name_send(int to, int name)
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
	char word = 'x';
	struct iovec words = {&word, 1};
	struct msghdr message = {
	    .msg_iov = &words, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
	struct cmsghdr *part = CMSG_FIRSTHDR(&message);

	part->cmsg_level = SOL_SOCKET;
	part->cmsg_type = SCM_RIGHTS;
	part->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(part), &name, sizeof(int));
	CHECK(sendmsg(to, &message, 0) == 1);
}

static int name_receive(int from)
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int))];
	char word;
	struct iovec words = {&word, 1};
	struct msghdr message = {
	    .msg_iov = &words, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
	int name;

	CHECK(recvmsg(from, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message));
	memcpy(&name, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return name;
}

/* From a server that ends then. */
static int name_from_another_process(void)
{
	int ends[2], name;
	pid_t child;

	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	child = fork();
	if (!child) {
		name_send(ends[1], listen_at(FIRST));
		_exit(0);
	}
	name = name_receive(ends[0]);
	ended_well(child);
	close(ends[0]);
	close(ends[1]);
	return name;
}

static void a_listening_socket_that_came_in_a_message_has_its_classes(void)
{
	what = __func__;
	for (int way = 0; way < 3; way++) {
		int name = name_from_another_process(), set = epoll_create1(EPOLL_CLOEXEC), one = 1;
		struct epoll_event event;

		CHECK(front_of(name) && front_of(name)->count == 1); /* who hands it on serves no class */
		watch(set, EPOLL_CTL_ADD, name);
		switch (way) {
		case 0:
			CHECK(!setsockopt(name, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)));
			break;
		case 1:
			CHECK(!epoll_wait(set, &event, 1, 0));
			break;
		default:
			CHECK(accept(name, NULL, NULL) < 0 && errno == EAGAIN);
		}
		serves(set, name);
		close(name);
		close(set);
		for (int class = 0; class <= CLASSES; class ++)
			CHECK(client_of(class) < 0);
	}
}

static void a_copy_that_came_in_a_message_is_one_more_name(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC), name = listen_at(FIRST), ends[2], copy;

	what = __func__;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	watch(set, EPOLL_CTL_ADD, name);
	name_send(ends[1], name);
	copy = name_receive(ends[0]);
	CHECK(front_of(copy) == front_of(name) && front_of(name)->names == 2);
	close(name);
	serves(set, copy);
	close(copy);
	for (int class = 0; class <= CLASSES; class ++)
		CHECK(client_of(class) < 0);
	close(ends[0]);
	close(ends[1]);
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
	a_listening_socket_that_came_in_a_message_has_its_classes();
	a_copy_that_came_in_a_message_is_one_more_name();
	class_listeners_of_a_group_are_fresh_when_it_listens_again();
	a_thread_that_is_cancelled_keeps_nobody_from_listening();
	a_socket_that_has_been_closed_gets_no_class_listeners();
	a_class_that_comes_while_its_server_pauses_is_shut_too();
	who_waited_before_the_first_front_is_told_of_its_classes();
	by_a_name_that_is_not_known_no_word_of_the_shim_is_told();
	where_the_newest_call_is_missing_a_server_waits_all_the_same();
	where_close_range_is_missing_descriptors_are_closed_all_the_same();
	a_signal_ends_a_wait_by_a_name_that_is_not_known();
	whenever_an_instance_comes_and_goes_the_servers_own_word_is_told();
	a_class_that_comes_later_keeps_no_child_busy();
	a_signal_ends_a_childs_wait_while_its_parent_has_a_client();
	what_was_held_of_a_listening_socket_goes_with_it();
	of_two_orphans_one_makes_the_classes_that_come_later();
	a_child_in_another_pid_namespace_takes_nothing_out_of_its_parents_set();
	a_server_in_the_background_gets_the_classes_that_come_later();
	return 0;
}
