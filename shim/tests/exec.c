/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Exec: which class listeners a new program gets, and what it does with them.
 *
 * The program executes itself with a role (role.h), and runs what is in policies.h too. The kernel side is kernel.h. Runs in a network
 * namespace of its own, under the sanitizers of the compiler.
 */
#define _GNU_SOURCE
#include "check.h"
#include "kernel.h"
#include "network.h"
#include "policies.h"
#include "role.h"

#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>

/* ---- what it inherits ---- */

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
