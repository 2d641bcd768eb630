/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Names: one epoll instance or listening socket under several descriptors. Who waits by any of them is told of every class, by the
 * server's own word, whichever was used before or closed since.
 *
 * The kernel side is kernel.h. Runs in a network namespace of its own, under the sanitizers of the compiler.
 */
#define _GNU_SOURCE
#include "check.h"
#include "kernel.h"
#include "network.h"
#include "../sets.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
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

static void close_name(int fd, int way)
{
	int other;

	switch (way) {
	case 0:
		CHECK(!close_range(fd, fd, 0));
		break;
	case 1:
		CHECK(!fclose(fdopen(fd, "r")));
		break;
	case 2: /* replaced by something else, which is closed then */
		other = open("/dev/null", O_RDONLY);
		CHECK(dup2(other, fd) == fd && !close(other) && !close(fd));
		break;
	default:
		CHECK(!close(fd));
	}
}

/* ---- names of an instance ---- */

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

/* ---- names of a listening socket ---- */

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
	return 0;
}
