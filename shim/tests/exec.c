/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Exec: which class listeners a new program gets, and what it does with them.
 *
 * The program executes itself with a role. The kernel side is kernel.h. Runs in a network namespace of its own, under the
 * sanitizers of the compiler.
 */
#define _GNU_SOURCE
#include "check.h"
#include "kernel.h"
#include "network.h"

#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
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

/* ---- the new program ---- */

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

/* ---- what it inherits ---- */

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

static void a_client_of_each_class_is_served_under(const char *policy)
{
	int clients[CLASSES + 1], listening = listen_at(FIRST);
	pid_t child;

	for (int i = 0; i <= CLASSES; i++)
		clients[i] = client_of(i);
	child = started(listening, policy, "serve");
	close(listening);
	for (int i = 0; i <= CLASSES; i++) {
		struct pollfd asked = {.fd = clients[i], .events = POLLIN};
		char word;

		CHECK(poll(&asked, 1, PATIENCE_MS) == 1 && read(clients[i], &word, 1) == 1);
		close(clients[i]);
	}
	CHECK(ended(child) == 0);
}

static void a_listening_socket_at_descriptor_zero_is_served_by_class(void)
{
	what = __func__;
	a_client_of_each_class_is_served_under(FIRST_POLICY);
}

static void class_listeners_stand_for_their_containers_under_another_policy(void)
{
	const char *policies[] = {"210", "120", "20", "1", "a12"};
	int listening = listen_at(FIRST);

	what = __func__;
	CHECK(count_right(listening) == CLASSES);
	for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++)
		CHECK(ended(started(listening, policies[i], "count-right")) == CLASSES);
	close(listening);
}

static void who_waits_for_a_class_that_is_gone_is_served(void)
{
	what = __func__;
	a_client_of_each_class_is_served_under("20");
}

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

/* ---- what else it inherits ---- */

static void class_listeners_without_their_front_are_closed(void)
{
	int listening = listen_at(FIRST);
	pid_t child;

	what = __func__;
	CHECK(count_class_listeners() == CLASSES);
	child = fork();
	if (!child) {
		/* exec keeps the class listeners and not the front, whoever saw to that */
		for (int fd = 0; fd < MOST; fd++)
			if (is_class_listener(fd))
				fcntl(fd, F_SETFD, 0);
		fcntl(listening, F_SETFD, FD_CLOEXEC);
		become("count");
	}
	CHECK(ended(child) == 0);
	close(listening);
}

/* A copy of a server for one class listens as that class, without the shim's doing. */
static void the_own_socket_of_a_copy_stays_open(void)
{
	int listening = listen_at(FIRST + STEP);
	pid_t child = fork();

	what = __func__;
	if (!child)
		become("count");
	CHECK(ended(child) == 1);
	close(listening);
}

/* ---- what is passed on ---- */

static bool passed;

static int look(void)
{
	passed = true;
	for (int fd = 0; fd < MOST; fd++)
		passed &= !is_class_listener(fd) || !(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	errno = ENOEXEC;
	return -1;
}

static int look_at_path(const char *path, char *const *arguments, char *const *environment)
{
	(void)path, (void)arguments, (void)environment;
	return look();
}

static int look_at_file(int fd, char *const *arguments, char *const *environment)
{
	(void)fd, (void)arguments, (void)environment;
	return look();
}

static void write_file(const char *name, const void *text, size_t size, mode_t mode)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);

	CHECK(fd >= 0 && write(fd, text, size) == (ssize_t)size && !fchmod(fd, mode));
	close(fd);
}

/* The headers of this program, as they are and without an interpreter. */
static void write_programs(void)
{
	union {
		char text[4096];
		ElfW(Ehdr) head;
	} own = {};
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	ElfW(Phdr) * part;

	CHECK(read(fd, &own, sizeof(own)) == sizeof(own));
	close(fd);
	write_file("dynamic", &own, sizeof(own), 0700);
	write_file("privileged", &own, sizeof(own), 04700);
	part = (ElfW(Phdr) *)(own.text + own.head.e_phoff);
	CHECK(own.head.e_phoff + own.head.e_phnum * sizeof(*part) <= sizeof(own));
	for (int i = 0; i < own.head.e_phnum; i++)
		if (part[i].p_type == PT_INTERP)
			part[i].p_type = PT_NULL;
	write_file("static", &own, sizeof(own), 0700);
	own.head.e_ident[EI_CLASS] ^= ELFCLASS32 ^ ELFCLASS64;
	write_file("other-word", &own, sizeof(own), 0700);
	write_file("script", "#!/bin/sh\n", 10, 0700);
	write_file("script-of-static", "#! ./static word\n", 17, 0700);
}

static void only_a_program_that_will_load_the_shim_gets_class_listeners(void)
{
	static const struct {
		const char *name;
		bool passed;
	} programs[] = {{"dynamic", true}, {"privileged", false}, {"static", false},
			{"script", true},  {"other-word", false}, {"script-of-static", false}};
	struct shim_real *kernel = (struct shim_real *)real();
	char folder[] = "/tmp/fief-shim-exec-XXXXXX", *words[] = {"program", NULL};
	int listening = listen_at(FIRST);

	what = __func__;
	CHECK(mkdtemp(folder) && !chdir(folder) && !setenv("PATH", folder, true));
	write_programs();
	kernel->execve = kernel->execvpe = look_at_path;
	kernel->fexecve = look_at_file;
	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
		int fd = open(programs[i].name, O_RDONLY | O_CLOEXEC);

		what = programs[i].name;
		CHECK(execve(what, words, environ) == -1 && errno == ENOEXEC && passed == programs[i].passed);
		CHECK(execvp(what, words) == -1 && passed == programs[i].passed);
		CHECK(fexecve(fd, words, environ) == -1 && passed == programs[i].passed);
		close(fd);
		look();
		CHECK(!passed); /* what failed passes nothing on later */
	}
	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
		CHECK(!unlink(programs[i].name));
	CHECK(!rmdir(folder));
	close(listening);
}

int main(int count, char **words)
{
	if (count > 1 && !strcmp(words[1], "count-right"))
		return count_right(0);
	if (count > 1)
		return strcmp(words[1], "serve") ? count_class_listeners() : serve();
	if (!own_namespace())
		return LEFT_OUT;
	alarm(300);
	a_listening_socket_at_descriptor_zero_is_served_by_class();
	class_listeners_stand_for_their_containers_under_another_policy();
	who_waits_for_a_class_that_is_gone_is_served();
	a_policy_that_comes_meanwhile_gives_no_class_the_listener_of_another();
	what_a_policy_that_comes_meanwhile_refuses_is_asked_for_under_the_next_one();
	what_the_process_may_not_make_it_asks_for_once_until_it_listens_again();
	what_there_was_no_room_for_is_asked_for_again();
	the_next_container_of_a_slot_gets_a_listener_of_its_own();
	an_older_kernel_side_tells_classes_by_their_places();
	a_class_gets_a_listener_however_many_there_were();
	who_waits_for_a_class_that_is_gone_keeps_its_listener();
	a_class_that_is_gone_keeps_its_listener_for_two_looks();
	a_listener_that_was_replaced_wakes_nobody();
	class_listeners_without_their_front_are_closed();
	the_own_socket_of_a_copy_stays_open();
	only_a_program_that_will_load_the_shim_gets_class_listeners();
	return 0;
}
