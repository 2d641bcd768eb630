/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Instances: an epoll instance under several names, one that is closed while somebody waits, who waits unknown to the shim, and one
 * that several processes share.
 *
 * The server is server.h; names.c runs these.
 */
#pragma once

#include "server.h"
#include "../sets.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

static int sets_named(void)
{
	int count = 0;

	for (struct events *set = sets; set; set = set->next)
		count += set->names > 0;
	return count;
}

/* `by`: which of the two names, in the order in which they came, the listening socket is added by, and which is closed. */
static void an_instance_is_one(bool copied_before, int added_by, int closed, int way)
{
	int names[2] = {epoll_create1(EPOLL_CLOEXEC), -1}, other;

	if (copied_before)
		names[1] = copy_of(names[0], way);
	watch(names[added_by], EPOLL_CTL_ADD, listening);
	if (!copied_before)
		names[1] = copy_of(names[0], way);
	CHECK(names[1] >= 0 && sets_named() == 1);
	serves(names[0], listening);
	serves(names[1], listening);
	watch(names[!added_by], EPOLL_CTL_MOD, listening);
	close_name(names[closed], way);
	serves(names[!closed], listening);
	serves_in_a_child(names[!closed], listening);
	other = epoll_create1(EPOLL_CLOEXEC); /* has the number of the one that was closed */
	CHECK(!set_enter(other) && sets_named() == 1);
	close(other);
	watch(names[!closed], EPOLL_CTL_DEL, listening);
	watch(names[!closed], EPOLL_CTL_ADD, listening);
	serves(names[!closed], listening);
	close(names[!closed]);
	CHECK(!sets_named());
}

static void an_instance_tells_the_same_by_all_its_names(void)
{
	what = __func__;
	listening = listen_at(FIRST);
	for (int way = 0; way < WAYS; way++)
		for (int choice = 0; choice < 4; choice++) {
			an_instance_is_one(true, choice & 1, choice >> 1, way);
			an_instance_is_one(false, 0, choice >> 1, way);
		}
	close(listening);
}

/* As tokio has it: the copy comes before anything else, also before the listening socket. */
static void an_instance_that_was_copied_before_the_server_listened_is_one(void)
{
	int waits = epoll_create1(EPOLL_CLOEXEC), adds = fcntl(waits, F_DUPFD_CLOEXEC, 3);

	what = __func__;
	listening = listen_at(FIRST);
	watch(adds, EPOLL_CTL_ADD, listening);
	serves(waits, listening);
	close(listening);
	close(waits);
	close(adds);
}

static void a_copy_takes_the_place_of_another_instance(void)
{
	int first = epoll_create1(EPOLL_CLOEXEC), second = epoll_create(1);

	what = __func__;
	listening = listen_at(FIRST);
	watch(first, EPOLL_CTL_ADD, listening);
	watch(second, EPOLL_CTL_ADD, listening);
	CHECK(sets_named() == 2 && dup2(first, second) == second && sets_named() == 1);
	serves(second, listening);
	CHECK(dup2(first, second) == second);
	serves(first, listening);
	close(first);
	serves(second, listening);
	close(second);
	CHECK(!sets_named());
	close(listening);
}

static int next_instance;

/* Another thread closes the instance, and uses another one, between the kernel's part of epoll_wait() and the shim's. */
static int wait_and_lose(int fd, struct epoll_event *events, int room, const struct timespec *timeout,
			 const sigset_t *mask)
{
	struct shim_real *kernel = (struct shim_real *)real();
	int result = shim_real()->epoll_pwait2(fd, events, room, timeout, mask);

	kernel->epoll_pwait2 = shim_real()->epoll_pwait2;
	CHECK(!close(fd) && !sets_named());
	next_instance = epoll_create1(EPOLL_CLOEXEC);
	watch(next_instance, EPOLL_CTL_ADD, listening);
	return result;
}

static int sets_in_memory(void)
{
	int count = 0;

	for (struct events *set = sets; set; set = set->next)
		count++;
	return count;
}

static void who_waits_for_an_instance_that_is_closed_is_told(void)
{
	struct shim_real *kernel = (struct shim_real *)real();
	int most = sets_in_memory() + 2;

	what = __func__;
	listening = listen_at(FIRST);
	for (int class = 0; class <= CLASSES; class ++) {
		int set = epoll_create1(EPOLL_CLOEXEC), client = client_of(class);

		watch(set, EPOLL_CTL_ADD, listening);
		kernel->epoll_pwait2 = wait_and_lose;
		is_told(set);
		accepts(listening, client);
		serves(next_instance, listening);
		close(next_instance);
		CHECK(sets_in_memory() <= most);
	}
	close(listening);
}

/* ---- who is not known to wait ---- */

static int late_client;

/* The listening socket is added, and has a client, once the shim has seen that there is no set. */
static int wait_before_the_front(int fd, struct epoll_event *events, int room, int timeout, const sigset_t *mask)
{
	((struct shim_real *)real())->epoll_pwait = shim_real()->epoll_pwait;
	watch(fd, EPOLL_CTL_ADD, listening);
	late_client = client_of(0);
	return shim_real()->epoll_pwait(fd, events, room, timeout, mask);
}

static void who_waited_before_the_first_front_is_told_of_its_classes(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event;

	what = __func__;
	listening = listen_at(FIRST);
	((struct shim_real *)real())->epoll_pwait = wait_before_the_front;
	CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == WORD);
	accepts(listening, late_client);
	serves(set, listening);
	close(set);
	close(listening);
}

static void by_a_name_that_is_not_known_no_word_of_the_shim_is_told(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC), copy = syscall(SYS_dup, set), client;
	struct epoll_event event;

	what = __func__;
	listening = listen_at(FIRST);
	watch(set, EPOLL_CTL_ADD, listening);
	client = client_of(0);
	CHECK(!epoll_wait(copy, &event, 1, 0) && !epoll_wait(copy, &event, 1, 1));
	accepts(listening, client);
	client = client_of(CLASSES);
	is_told(copy);
	accepts(listening, client);
	syscall(SYS_close, copy);
	close(set);
	close(listening);
}

static volatile sig_atomic_t signals;

static void count_signal(int unused)
{
	(void)unused;
	signals++;
}

/* A signal that is let through only while it waits ends the wait, though the kernel tells of somebody else's client all the time. */
static void waits_until_a_signal_comes(int set)
{
	struct sigaction counts = {.sa_handler = count_signal};
	struct epoll_event event;
	sigset_t one, before;

	signals = 0;
	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	CHECK(!sigaction(SIGUSR1, &counts, NULL) && !sigprocmask(SIG_BLOCK, &one, &before));
	for (int count = 1; count <= 2; count++) {
		CHECK(!kill(getpid(), SIGUSR1) && signals == count - 1);
		if (count == 1)
			CHECK(epoll_pwait(set, &event, 1, -1, &before) == -1 && errno == EINTR);
		else
			CHECK(epoll_pwait2(set, &event, 1, NULL, &before) == -1 && errno == EINTR);
		CHECK(signals == count);
	}
	CHECK(!sigprocmask(SIG_SETMASK, &before, NULL));
}

static void a_signal_ends_a_wait_by_a_name_that_is_not_known(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC), copy = syscall(SYS_dup, set), client;

	what = __func__;
	listening = listen_at(FIRST);
	watch(set, EPOLL_CTL_ADD, listening);
	client = client_of(0);
	waits_until_a_signal_comes(copy);
	accepts(listening, client);
	syscall(SYS_close, copy);
	close(set);
	close(listening);
}

static atomic_int changing; /* an instance that comes and goes */
static atomic_bool ends;

static void *wait_for_what_changes(void *unused)
{
	struct epoll_event event;

	while (!atomic_load(&ends))
		if (epoll_wait(atomic_load(&changing), &event, 1, 0) > 0)
			CHECK(event.data.u64 == WORD);
	return unused;
}

static void whenever_an_instance_comes_and_goes_the_servers_own_word_is_told(void)
{
	enum { ROUNDS = 2000 };
	pthread_t threads[2];
	int client;

#ifdef __SANITIZE_THREAD__
	return; /* to that sanitizer a descriptor that is closed while another thread waits is a race of the server's */
#endif
	what = __func__;
	listening = listen_at(FIRST);
	client = client_of(0);
	atomic_store(&changing, epoll_create1(EPOLL_CLOEXEC));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, wait_for_what_changes, NULL));
	for (int round = 0; round < ROUNDS; round++) {
		watch(changing, EPOLL_CTL_ADD, listening);
		close(changing);
		atomic_store(&changing, epoll_create1(EPOLL_CLOEXEC));
	}
	atomic_store(&ends, true);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	accepts(listening, client);
	close(changing);
	close(listening);
}

/* ---- processes that share an instance ---- */

static void look_at_the_policy(void)
{
	front_of(listening)->looked = 0;
	front_refresh(front_of(listening), listening);
}

/* Until a client comes to the server's own socket; how many class listeners were asked for. */
static unsigned wait_in_a_child(int set)
{
	struct epoll_event event;

	asked_for = 0;
	look_at_the_policy();
	CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == WORD);
	CHECK(accept4(listening, NULL, NULL, SOCK_CLOEXEC) >= 0);
	return asked_for;
}

static void a_class_that_comes_later_keeps_no_child_busy(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC), status = -1, client;
	struct rusage used;
	pid_t child;

	what = __func__;
	atomic_store(&classes_in_force, 1);
	listening = listen_at(FIRST);
	watch(set, EPOLL_CTL_ADD, listening);
	atomic_store(&classes_in_force, CLASSES);
	child = fork();
	if (!child) {
		alarm(60);
		_exit(wait_in_a_child(set));
	}
	look_at_the_policy();
	CHECK(front_of(listening)->count == CLASSES + 1);
	client = client_of(CLASSES - 1);
	poll(NULL, 0, 500); /* all that time the kernel tells the child of it */
	is_told(set);
	accepts(listening, client);
	client = client_of(CLASSES);
	CHECK(wait4(child, &status, 0, &used) == child && status == 0);
	CHECK(!used.ru_utime.tv_sec && !used.ru_stime.tv_sec);
	CHECK(used.ru_utime.tv_usec + used.ru_stime.tv_usec < 250000);
	close(client);
	close(set);
	close(listening);
}

static void a_signal_ends_a_childs_wait_while_its_parent_has_a_client(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC), client, ends[2];
	pid_t child;
	char word;

	what = __func__;
	CHECK(!pipe(ends));
	atomic_store(&classes_in_force, 1);
	listening = listen_at(FIRST);
	watch(set, EPOLL_CTL_ADD, listening);
	atomic_store(&classes_in_force, CLASSES);
	child = fork();
	if (!child) {
		alarm(60);
		CHECK(read(ends[0], &word, 1) == 1);
		waits_until_a_signal_comes(set);
		_exit(0);
	}
	look_at_the_policy();
	client = client_of(CLASSES - 1);
	CHECK(write(ends[1], "x", 1) == 1);
	ended_well(child);
	is_told(set);
	accepts(listening, client);
	close(ends[0]);
	close(ends[1]);
	close(set);
	close(listening);
}

/* Listens, goes into the background, and has a class more. */
static void run_in_the_background(int told)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	char word = 'x';
	pid_t parent = getpid();

	atomic_store(&classes_in_force, 1);
	listening = listen_at(FIRST);
	watch(set, EPOLL_CTL_ADD, listening);
	if (fork())
		_exit(0);
	alarm(60);
	while (!kill(parent, 0))
		usleep(1000);
	atomic_store(&classes_in_force, CLASSES);
	look_at_the_policy();
	serves(set, listening);
	_exit(write(told, &word, 1) != 1);
}

static void a_server_in_the_background_gets_the_classes_that_come_later(void)
{
	int ends[2];
	pid_t child;
	char word;

	what = __func__;
	CHECK(!pipe(ends));
	child = fork();
	if (!child)
		run_in_the_background(ends[1]);
	ended_well(child);
	close(ends[1]);
	CHECK(read(ends[0], &word, 1) == 1);
	close(ends[0]);
}
