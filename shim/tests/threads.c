/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Threads: a server with several, while listening sockets come and go and the policy gets classes.
 *
 *   fief-shim-threads [SEED [ROUNDS]]
 *
 * Two threads have a set each, two share one, one polls, two block in accept(). Then one waits and hands what it hears of to two, which
 * arm it again. Nobody waits with a deadline, but for the clients: what no thread hears of is a client that gets no answer.
 * The kernel side is kernel.h. Runs in a network namespace of its own, under the sanitizers of the compiler; under that for threads too.
 */
#define _GNU_SOURCE
#include "kernel.h"
#include "network.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>

#define PATIENCE_MS 20000
#define FRONTS	    3
#define BLOCKING    (FRONTS - 1) /* the last one is of those that block in accept() */
#define CHURNED	    FRONTS	 /* opened and closed all the time */
#define DISPATCHED  (FRONTS + 1) /* served by one thread that waits and those that work for it */
#define TALKERS	    24		 /* its clients, in classes by turns */
#define WORDS	    20		 /* that each of them says */
#define LISTENS	    (1ull << 32) /* in the word of an event: a listening socket, not a connection */

static unsigned seed, round_number;

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: seed %u, round %u: not so: %s (%s)\n", __FILE__, __LINE__, seed,       \
				round_number, #condition, strerror(errno));                                            \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

static int fronts[FRONTS], shared, end_told, dispatching, dispatched, handed[2];
static atomic_bool ends;
static pthread_barrier_t together;

static unsigned dice(unsigned sides)
{
	static unsigned state;

	if (!state)
		state = seed * 2654435761u + 1;
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state % sides;
}

static int listen_at(int at, int flags)
{
	struct sockaddr_in own = {
	    .sin_family = AF_INET, .sin_port = htons(FIRST + at), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | flags, 0), one = 1;

	CHECK(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!bind(fd, (struct sockaddr *)&own, sizeof(own)) && !listen(fd, 64));
	return fd;
}

static void watch(int set, int fd, uint32_t mask, uint64_t data)
{
	struct epoll_event event = {.events = mask, .data.u64 = data};

	CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

/* ---- the server ---- */

/* Whether it was one of those that end a thread. */
static bool answer(int fd)
{
	char word;

	CHECK(read(fd, &word, 1) == 1 && write(fd, &word, 1) == 1);
	close(fd);
	return word == 'e';
}

static void set_serve(int set)
{
	struct epoll_event event;

	while (!atomic_load(&ends)) {
		int fd;

		CHECK(epoll_wait(set, &event, 1, -1) == 1);
		fd = (int)event.data.u64;
		if (!(event.data.u64 & LISTENS))
			answer(fd);
		else if (fd != end_told && (fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
			watch(set, fd, EPOLLIN | EPOLLONESHOT, fd); /* of two threads one is told */
	}
}

static void *serve_own_set(void *unused)
{
	int set = epoll_create1(EPOLL_CLOEXEC);

	watch(set, end_told, EPOLLIN, LISTENS | end_told);
	pthread_barrier_wait(&together);
	for (int i = 0; i < BLOCKING; i++)
		watch(set, fronts[i], EPOLLIN, LISTENS | fronts[i]);
	set_serve(set);
	close(set);
	return unused;
}

/* Each adds one of the listening sockets to a set that the shim has not seen. */
static void *serve_shared_set(void *front)
{
	int fd = *(int *)front;

	pthread_barrier_wait(&together);
	watch(shared, fd, EPOLLIN, LISTENS | fd);
	set_serve(shared);
	return NULL;
}

static void *serve_by_poll(void *unused)
{
	pthread_barrier_wait(&together);
	while (!atomic_load(&ends)) {
		struct pollfd asked[] = {{.fd = fronts[0], .events = POLLIN},
					 {.fd = end_told, .events = POLLIN},
					 {.fd = fronts[1], .events = POLLIN}};

		CHECK(poll(asked, 3, -1) > 0);
		for (int i = 0; i < 3; i += 2) {
			int fd = asked[i].revents ? accept(asked[i].fd, NULL, NULL) : -1;

			if (fd >= 0)
				answer(fd);
		}
	}
	return unused;
}

static void *serve_blocking(void *unused)
{
	int fd;

	pthread_barrier_wait(&together);
	do {
		fd = accept(fronts[BLOCKING], NULL, NULL);
		CHECK(fd >= 0);
	} while (!answer(fd));
	return unused;
}

/* Has the set alone, and hands connections that have a word to those that work. */
static void *dispatch(void *unused)
{
	watch(dispatched, end_told, EPOLLIN, LISTENS | end_told);
	watch(dispatched, dispatching, EPOLLIN, LISTENS | dispatching);
	while (!atomic_load(&ends)) {
		struct epoll_event told[TALKERS];
		int count = epoll_wait(dispatched, told, TALKERS, -1), fd;

		CHECK(count > 0);
		for (int i = 0; i < count; i++) {
			fd = (int)told[i].data.u64;
			if (!(told[i].data.u64 & LISTENS))
				CHECK(write(handed[1], &fd, sizeof(fd)) == sizeof(fd));
			else if (fd != end_told && (fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
				watch(dispatched, fd, EPOLLIN | EPOLLONESHOT, fd);
		}
	}
	return unused;
}

/* A thread that hears of an event may be faster than the thread that armed the connection for it. */
static int control_and_yield(int events, int operation, int fd, struct epoll_event *event)
{
	int result = shim_real()->epoll_ctl(events, operation, fd, event), saved = errno;

	sched_yield();
	errno = saved;
	return result;
}

/* Answers a word, and arms the connection again unless it was the last one. */
static void *work(void *unused)
{
	int fd;

	while (read(handed[0], &fd, sizeof(fd)) == sizeof(fd)) {
		struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = fd};
		char word;

		CHECK(read(fd, &word, 1) == 1 && write(fd, &word, 1) == 1);
		if (word == 'e')
			close(fd);
		else
			CHECK(!epoll_ctl(dispatched, EPOLL_CTL_MOD, fd, &event));
	}
	return unused;
}

/* One more listening socket, in a set or not, under one name or two. */
static void *churn(void *unused)
{
	int set = epoll_create1(EPOLL_CLOEXEC);

	pthread_barrier_wait(&together);
	while (!atomic_load(&ends)) {
		int fd = listen_at(CHURNED, SOCK_NONBLOCK), copy = dup(fd);

		watch(set, fd, EPOLLIN, LISTENS | fd);
		CHECK(!listen(copy, 32));
		CHECK(!epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
		close(fd);
		close(copy);
	}
	close(set);
	return unused;
}

/* ---- clients ---- */

/* Class CLASSES: of none, at the server's own socket. */
static int client_of(int at, int class, char word)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(FIRST + at + (class == CLASSES ? 0 : STEP * (class + 1))),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(!connect(fd, (struct sockaddr *)&to, sizeof(to)) && write(fd, &word, 1) == 1);
	return fd;
}

static void hears(int fd)
{
	struct pollfd asked = {.fd = fd, .events = POLLIN};
	char word;

	CHECK(poll(&asked, 1, PATIENCE_MS) == 1 && read(fd, &word, 1) == 1);
}

static void is_answered(int fd)
{
	hears(fd);
	close(fd);
}

/* Each says a word when it has heard the one before. */
static void clients_talk(void)
{
	int clients[TALKERS];

	for (int i = 0; i < TALKERS; i++)
		clients[i] = client_of(DISPATCHED, i % CLASSES, 'x');
	for (int said = 1; said < WORDS; said++)
		for (int i = 0; i < TALKERS; i++) {
			hears(clients[i]);
			CHECK(write(clients[i], said < WORDS - 1 ? "x" : "e", 1) == 1);
		}
	for (int i = 0; i < TALKERS; i++)
		is_answered(clients[i]);
}

static void clients_come(int classes)
{
	int clients[FRONTS * (CLASSES + 1)], count = 0;

	for (int at = 0; at < FRONTS; at++) {
		for (int class = 0; class < classes; class ++)
			clients[count++] = client_of(at, class, 'x');
		clients[count++] = client_of(at, CLASSES, 'x');
	}
	while (count)
		is_answered(clients[--count]);
}

static void one_round(void)
{
	enum { THREADS = 8 };
	pthread_t threads[THREADS];
	uint64_t one = 1;

	atomic_store(&classes_in_force, 1);
	atomic_store(&ends, false);
	for (int i = 0; i < FRONTS; i++)
		fronts[i] = listen_at(i, i == BLOCKING ? 0 : SOCK_NONBLOCK);
	shared = epoll_create1(EPOLL_CLOEXEC); /* has the highest number of all */
	end_told = eventfd(0, EFD_CLOEXEC);
	watch(shared, end_told, EPOLLIN, LISTENS | end_told);
	pthread_barrier_init(&together, NULL, THREADS + 1);
	pthread_create(&threads[0], NULL, serve_own_set, NULL);
	pthread_create(&threads[1], NULL, serve_own_set, NULL);
	pthread_create(&threads[2], NULL, serve_shared_set, &fronts[0]);
	pthread_create(&threads[3], NULL, serve_shared_set, &fronts[1]);
	pthread_create(&threads[4], NULL, serve_by_poll, NULL);
	pthread_create(&threads[5], NULL, serve_blocking, NULL);
	pthread_create(&threads[6], NULL, serve_blocking, NULL);
	pthread_create(&threads[7], NULL, churn, NULL);
	pthread_barrier_wait(&together);
	for (int classes = 1; classes <= CLASSES; classes++) {
		atomic_store(&classes_in_force, classes);
		for (int i = 0; i < FRONTS; i++)
			CHECK(!listen(fronts[(i + dice(FRONTS)) % FRONTS], 64) && !listen(fronts[i], 64));
		clients_come(classes);
	}
	atomic_store(&ends, true);
	CHECK(write(end_told, &one, sizeof(one)) == sizeof(one));
	for (int i = 0; i < 2; i++)
		is_answered(client_of(BLOCKING, dice(CLASSES + 1), 'e'));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&together);
	for (int i = 0; i < FRONTS; i++)
		close(fronts[i]);
	close(shared);
	close(end_told);
}

static void one_round_of_dispatch(void)
{
	pthread_t dispatcher, workers[2];
	uint64_t one = 1;

	atomic_store(&ends, false);
	dispatching = listen_at(DISPATCHED, SOCK_NONBLOCK);
	dispatched = epoll_create1(EPOLL_CLOEXEC);
	end_told = eventfd(0, EFD_CLOEXEC);
	CHECK(!pipe(handed));
	pthread_create(&dispatcher, NULL, dispatch, NULL);
	for (int i = 0; i < 2; i++)
		pthread_create(&workers[i], NULL, work, NULL);
	clients_talk();
	atomic_store(&ends, true);
	CHECK(write(end_told, &one, sizeof(one)) == sizeof(one));
	pthread_join(dispatcher, NULL);
	close(handed[1]);
	for (int i = 0; i < 2; i++)
		pthread_join(workers[i], NULL);
	close(handed[0]);
	close(dispatching);
	close(dispatched);
	close(end_told);
}

/* Mappings that children share. */
static unsigned shared_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned count = 0;
	char line[512];

	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "/dev/zero") != NULL;
	fclose(maps);
	return count;
}

int main(int count, char **words)
{
	unsigned rounds = count > 2 ? atoi(words[2]) : 50, mappings = shared_mappings();

	seed = count > 1 ? (unsigned)atoi(words[1]) : (unsigned)time(NULL);
	if (!own_namespace())
		return LEFT_OUT;
	for (round_number = 0; round_number < rounds; round_number++)
		one_round();
	((struct shim_real *)real())->epoll_ctl = control_and_yield;
	for (round_number = 0; round_number < rounds; round_number++)
		one_round_of_dispatch();
	CHECK(shared_mappings() == mappings + 1); /* however many fronts came and went */
	return 0;
}
