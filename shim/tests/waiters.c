/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Waiters: several threads and processes on one epoll set, which the shim puts in order for one alone, or in accept() from one front.
 * None may wait for what another one keeps.
 *
 * The kernel side is kernel.h. Runs in a network namespace of its own, under the sanitizers of the compiler.
 */
#define _GNU_SOURCE
#include "check.h"
#include "kernel.h"
#include "network.h"
#include "../turns.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#define PATIENCE_S 60
#define THREADS	   4
#define ROUNDS	   200
#define CHILDREN   200

static int set, listening;
static int clients[THREADS], served[THREADS];
static atomic_int taken;

static void watch(int operation, int fd, uint32_t mask)
{
	struct epoll_event event = {.events = mask, .data.fd = fd};

	CHECK(!epoll_ctl(set, operation, fd, &event));
}

/* Class CLASSES: of none, at the server's own socket. */
static int client_of(int class)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(FIRST + (class == CLASSES ? 0 : STEP * (class + 1))),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof(to)));
	return fd;
}

static int listen_at(int port)
{
	struct sockaddr_in own = {
	    .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	CHECK(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!bind(fd, (struct sockaddr *)&own, sizeof(own)) && !listen(fd, 64));
	return fd;
}

static void begin(const char *name)
{
	what = name;
	listening = listen_at(FIRST);
	set = epoll_create1(EPOLL_CLOEXEC); /* has the highest number of all that the shim knows */
	CHECK(set >= 0);
	watch(EPOLL_CTL_ADD, listening, EPOLLIN);
}

static void end(void)
{
	close(listening);
	close(set);
}

/* A word of the client has arrived when this returns. */
static void say(int class)
{
	struct pollfd asked = {.fd = served[class], .events = POLLIN};

	CHECK(write(clients[class], "x", 1) == 1 && poll(&asked, 1, PATIENCE_S * 1000) == 1);
}

/* ---- threads ---- */

/* Serves a client, and is not done before all clients are served. */
static void *thread_serve(void *unused)
{
	struct epoll_event event;

	(void)unused;
	CHECK(epoll_wait(set, &event, 1, PATIENCE_S * 1000) == 1);
	CHECK(event.data.fd != listening);
	atomic_fetch_add(&taken, 1);
	while (atomic_load(&taken) < THREADS)
		sched_yield();
	return NULL;
}

static void no_thread_sleeps_on_what_another_holds(void)
{
	pthread_t threads[THREADS];

	for (int round = 0; round < ROUNDS; round++) {
		begin(__func__);
		atomic_store(&taken, 0);
		for (int i = 0; i < THREADS; i++) {
			clients[i] = client_of(i % CLASSES);
			served[i] = accept(listening, NULL, NULL);
			CHECK(served[i] >= 0);
			watch(EPOLL_CTL_ADD, served[i], EPOLLIN | EPOLLET);
		}
		for (int i = 0; i < THREADS; i++) {
			CHECK(!pthread_create(&threads[i], NULL, thread_serve, NULL));
			CHECK(write(clients[i], "x", 1) == 1);
		}
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		for (int i = 0; i < THREADS; i++) {
			close(served[i]);
			close(clients[i]);
		}
		end();
	}
}

/* ---- a dispatcher ---- */

enum { LOW = 1, HIGH = 2 }; /* classes */

static atomic_bool high_told, low_armed;
static pthread_t dispatcher;

/* Waits alone, with one descriptor of each class to hear of. */
static void *thread_dispatch(void *unused)
{
	struct epoll_event told[4];

	CHECK(epoll_wait(set, told, 4, PATIENCE_S * 1000) == 1 && told[0].data.fd == served[HIGH]);
	atomic_store(&high_told, true);
	while (!atomic_load(&low_armed))
		sched_yield();
	CHECK(epoll_wait(set, told, 4, 0) == 1 && told[0].data.fd == served[LOW]);
	return unused;
}

/* Between the kernel's part of epoll_ctl() and the shim's the dispatcher runs, as far as it can. */
static int control_slowly(int events, int operation, int fd, struct epoll_event *event)
{
	int result = shim_real()->epoll_ctl(events, operation, fd, event);

	CHECK(!pthread_create(&dispatcher, NULL, thread_dispatch, NULL));
	for (int waited = 0; waited < 100 && !atomic_load(&high_told); waited++)
		usleep(1000);
	return result;
}

/* Of each class a client, which has said a word. */
static void two_talk(uint32_t low, uint32_t high)
{
	for (int class = LOW; class <= HIGH; class ++) {
		clients[class] = client_of(class);
		served[class] = accept(listening, NULL, NULL);
		watch(EPOLL_CTL_ADD, served[class], class == LOW ? low : high);
		say(class);
	}
}

static void two_leave(void)
{
	for (int class = LOW; class <= HIGH; class ++) {
		close(served[class]);
		close(clients[class]);
	}
	end();
}

static void what_a_worker_arms_again_is_heard_of(void)
{
	struct shim_real *kernel = (struct shim_real *)real();

	begin(__func__);
	two_talk(EPOLLONESHOT, EPOLLIN | EPOLLONESHOT);
	kernel->epoll_ctl = control_slowly;
	watch(EPOLL_CTL_MOD, served[LOW], EPOLLIN | EPOLLONESHOT);
	kernel->epoll_ctl = shim_real()->epoll_ctl;
	atomic_store(&low_armed, true);
	pthread_join(dispatcher, NULL);
	two_leave();
}

static void a_change_that_the_kernel_refuses_loses_nothing(void)
{
	struct epoll_event told[4], wrong = {.events = EPOLLIN | EPOLLEXCLUSIVE};

	begin(__func__);
	two_talk(EPOLLIN | EPOLLET, EPOLLIN | EPOLLET);
	CHECK(epoll_wait(set, told, 4, 0) == 1 && told[0].data.fd == served[HIGH]);
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, served[LOW], &wrong) < 0 && errno == EINVAL);
	CHECK(epoll_wait(set, told, 4, 0) == 1 && told[0].data.fd == served[LOW]);
	two_leave();
}

/* ---- processes ---- */

static atomic_bool busy;

/* Changes what the set says of the front, over and over. */
static void *thread_change(void *unused)
{
	while (atomic_load(&busy))
		watch(EPOLL_CTL_MOD, listening, EPOLLIN);
	return unused;
}

static void a_child_goes_on_whatever_other_threads_did(void)
{
	struct epoll_event event;
	pthread_t thread;
	int status;

	begin(__func__);
	atomic_store(&busy, true);
	CHECK(!pthread_create(&thread, NULL, thread_change, NULL));
	for (int i = 0; i < CHILDREN; i++) {
		pid_t child = fork();

		if (!child) {
			alarm(PATIENCE_S); /* the parent's does not come over */
			_exit(epoll_wait(set, &event, 1, 0) < 0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	atomic_store(&busy, false);
	pthread_join(thread, NULL);
	end();
}

/* What the parent was told of and has not come to, a child that waits on the same set is told too. */
static void a_child_hands_out_what_it_inherited(void)
{
	struct epoll_event event;
	int status, many = 8, client[8], server[8];

	begin(__func__);
	for (int i = 0; i < many; i++) {
		client[i] = client_of(0);
		server[i] = accept(listening, NULL, NULL);
		watch(EPOLL_CTL_ADD, server[i], EPOLLIN | EPOLLET);
		CHECK(write(client[i], "x", 1) == 1);
	}
	struct epoll_event first[16];
	int told = epoll_wait(set, first, 16, PATIENCE_S * 1000);
	pid_t child;

	CHECK(told > 0 && told < many);
	child = fork();
	if (!child) {
		for (; told < many; told++)
			if (epoll_wait(set, &event, 1, 0) != 1)
				_exit(1);
		_exit(epoll_wait(set, &event, 1, 0) != 0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	for (int i = 0; i < many; i++) {
		close(server[i]);
		close(client[i]);
	}
	end();
}

/* As Python starts its children. */
static void child_of_vfork_closes(bool at_once)
{
	pid_t child = vfork();

	if (child) {
		CHECK(child > 0 && waitpid(child, NULL, 0) == child);
		return;
	}
	if (at_once)
		close_range(3, ~0u, 0);
	for (int i = 0; i < CLASSES && !at_once; i++)
		close(served[i]);
	_exit(0);
}

static void what_a_child_of_vfork_closes_keeps_its_class_in_the_parent(void)
{
	struct epoll_event told[8];

	for (int at_once = 0; at_once <= 1; at_once++) {
		begin(__func__);
		for (int i = 0; i < CLASSES; i++) {
			clients[i] = client_of(i);
			served[i] = accept(listening, NULL, NULL);
			watch(EPOLL_CTL_ADD, served[i], EPOLLIN);
		}
		child_of_vfork_closes(at_once);
		for (int i = 0; i < CLASSES; i++)
			say(i);
		/* the higher number has the higher priority, though it came last */
		for (int i = CLASSES - 1; i >= 0; i--) {
			CHECK(epoll_wait(set, told, 8, PATIENCE_S * 1000) == 1 && told[0].data.fd == served[i]);
			close(served[i]);
			close(clients[i]);
		}
		end();
	}
}

/* ---- turns ---- */

static pid_t child_that(void (*acts)(void))
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child)
		return child;
	alarm(PATIENCE_S);
	acts();
	_exit(0);
}

static void ended_well(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Until a client of any class says `e`. */
static void serve_blocking(void)
{
	char word;

	do {
		int fd = accept(listening, NULL, NULL);

		CHECK(fd >= 0 && read(fd, &word, 1) == 1 && write(fd, &word, 1) == 1);
		close(fd);
	} while (word != 'e');
}

static int client_says(int class, char word)
{
	int client = client_of(class);

	CHECK(write(client, &word, 1) == 1);
	return client;
}

static void is_answered(int client)
{
	char word;

	CHECK(read(client, &word, 1) == 1);
	close(client);
}

static void workers_that_block_serve_every_client(void)
{
	enum { WORKERS = 3 };
	int clients[CLASSES + 1];
	pid_t workers[WORKERS];

	begin(__func__);
	for (int i = 0; i < WORKERS; i++)
		workers[i] = child_that(serve_blocking);
	for (int round = 0; round < ROUNDS; round++) {
		for (int class = 0; class <= CLASSES; class ++)
			clients[class] = client_says(round % 2 ? class : CLASSES, 'x');
		for (int i = 0; i <= CLASSES; i++)
			is_answered(clients[i]);
	}
	for (int i = 0; i < WORKERS; i++)
		is_answered(client_says(CLASSES, 'e'));
	for (int i = 0; i < WORKERS; i++)
		ended_well(workers[i]);
	end();
}

static bool is_free(int fd)
{
	return !atomic_load(&front_of(fd)->turn->state);
}

static void keep_turn(void)
{
	turn_lock(front_of(listening)->turn);
}

static void close_and_keep_another_turn(void)
{
	close(listening);
	turn_lock(front_of(listen_at(FIRST + 1))->turn);
}

static void the_turn_of_one_that_died_is_taken(void)
{
	int client, fd;

	begin(__func__);
	ended_well(child_that(keep_turn));
	CHECK(!is_free(listening));
	client = client_of(CLASSES);
	fd = accept(listening, NULL, NULL);
	CHECK(fd >= 0 && is_free(listening));
	close(fd);
	close(client);
	end();
}

static void a_front_that_a_child_makes_has_no_turn_of_its_parent(void)
{
	begin(__func__);
	ended_well(child_that(close_and_keep_another_turn));
	CHECK(is_free(listening));
	end();
}

static int begun[2];

/* When the parent has closed the front, and made another one. */
static void keep_turn_later(void)
{
	char word;

	close(begun[1]);
	CHECK(read(begun[0], &word, 1) == 0);
	keep_turn();
}

static void a_front_that_a_parent_makes_later_has_no_turn_of_its_child(void)
{
	int other = listen_at(FIRST + 1), later;
	struct turn *turn;
	pid_t child;

	begin(__func__);
	turn = front_of(listening)->turn;
	CHECK(!pipe(begun));
	child = child_that(keep_turn_later);
	end();
	later = listen_at(FIRST + 2);
	CHECK(front_of(later)->turn != turn);
	close(begun[0]);
	close(begun[1]);
	ended_well(child);
	CHECK(is_free(later) && is_free(other));
	close(later);
	close(other);
}

static void a_server_that_forks_again_and_again_has_one_mapping(void)
{
	struct turn *turn = NULL;

	for (int i = 0; i < CHILDREN; i++) {
		begin(__func__);
		CHECK(!turn || front_of(listening)->turn == turn);
		turn = front_of(listening)->turn;
		ended_well(child_that(keep_turn));
		end();
	}
}

int main(void)
{
	if (!own_namespace())
		return LEFT_OUT;
	alarm(300);
	a_child_goes_on_whatever_other_threads_did(); /* first: no connection had a higher number than its set */
	no_thread_sleeps_on_what_another_holds();
	what_a_worker_arms_again_is_heard_of();
	a_change_that_the_kernel_refuses_loses_nothing();
	what_a_child_of_vfork_closes_keeps_its_class_in_the_parent();
	a_child_hands_out_what_it_inherited();
	workers_that_block_serve_every_client();
	the_turn_of_one_that_died_is_taken();
	a_front_that_a_child_makes_has_no_turn_of_its_parent();
	a_front_that_a_parent_makes_later_has_no_turn_of_its_child();
	a_server_that_forks_again_and_again_has_one_mapping();
	return 0;
}
