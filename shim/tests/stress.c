/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Stress: a server that opens, duplicates, closes, pauses, hands on and listens again at random, against a model of what it holds.
 *
 *   fief-shim-stress [SEED [STEPS]]
 *
 * The kernel side is kernel.h. After each step a listening socket, drawn by lot, must serve a client of each class and of
 * none, or refuse them if it was closed, and the process must have just the descriptors of the model.
 * Runs in a network namespace of its own, under the sanitizers of the compiler.
 */
#define _GNU_SOURCE
#include "kernel.h"
#include "network.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define FRONTS	    40 /* more than one set's first chunk */
#define NAMES	    4
#define SETS	    3
#define DEEPEST	    2
#define PATIENCE_MS 10000

static unsigned seed, step_number;
static const char *what = "";

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: seed %u, step %u, %s: not so: %s (%s)\n", __FILE__, __LINE__, seed,    \
				step_number, what, #condition, strerror(errno));                                       \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

#include "closing.h"

/* ---- the model ---- */

struct listening {
	int count; /* of names; 0: closed */
	int names[NAMES];
	int set;     /* that it is in; -1: none */
	int watched; /* the name that it was added by; -1: none, or a closed one */
	bool left;   /* in the set by a name that was closed, where it stays as long as it has others */
};

static struct listening fronts[FRONTS];
static bool above[FRONTS]; /* the program before has it too, so it listens on when this one closes it */
static int sets[SETS], bases, depth;

static unsigned dice(unsigned sides)
{
	static unsigned state;

	if (!state)
		state = seed * 2654435761u + depth + 1;
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state % sides;
}

static int descriptors_open(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = -3; /* `.`, `..` and the folder's own */

	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static int descriptors_meant(void)
{
	int count = bases + SETS;

	for (int i = 0; i < FRONTS; i++)
		count += fronts[i].count ? fronts[i].count + CLASSES : 0;
	return count;
}

static int any_open(void)
{
	int first = dice(FRONTS);

	for (int i = 0; i < FRONTS; i++)
		if (fronts[(first + i) % FRONTS].count)
			return (first + i) % FRONTS;
	return -1;
}

static int any_name(int at)
{
	return fronts[at].names[dice(fronts[at].count)];
}

/* ---- clients ---- */

/* Class CLASSES: of none, at the server's own socket. -1: refused. */
static int client_of(int at, int class)
{
	int port = FIRST + at + (class == CLASSES ? 0 : STEP * (class + 1));
	struct sockaddr_in to = {
	    .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	if (!connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return fd;
	CHECK(errno == ECONNREFUSED);
	close(fd);
	return -1;
}

/* Accepts from the listening socket, however long the kernel takes. */
static int accept_soon(int fd)
{
	for (int waited = 0; waited < PATIENCE_MS; waited++) {
		int served = accept4(fd, NULL, NULL, dice(2) ? SOCK_CLOEXEC : 0);

		if (served >= 0)
			return served;
		CHECK(errno == EAGAIN);
		usleep(1000);
	}
	return -1;
}

static void serve(int at, int class)
{
	int client = client_of(at, class), served, name = any_name(at);
	struct sockaddr_in peer = {};
	socklen_t size = sizeof(peer);
	struct epoll_event event;

	CHECK(client >= 0);
	if (fronts[at].set >= 0) {
		CHECK(epoll_wait(sets[fronts[at].set], &event, 1, PATIENCE_MS) == 1);
		CHECK(event.data.u64 == (uint64_t)at);
	}
	served = accept_soon(name);
	CHECK(served >= 0);
	CHECK(!getpeername(served, (struct sockaddr *)&peer, &size) && ntohs(peer.sin_port) == port_of(client));
	close(served);
	close(client);
	if (fronts[at].set >= 0)
		CHECK(epoll_wait(sets[fronts[at].set], &event, 1, 0) == 0);
}

static void all_hold(void)
{
	int at = dice(FRONTS);

	for (int class = 0; class <= CLASSES; class ++) {
		if (fronts[at].count)
			serve(at, class);
		else if (!above[at])
			CHECK(client_of(at, class) < 0);
	}
	CHECK(descriptors_open() == descriptors_meant());
}

/* ---- steps ---- */

static void step_open(void)
{
	int at = dice(FRONTS), fd, one = 1;
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	if (fronts[at].count || above[at])
		return;
	own.sin_port = htons(FIRST + at);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!bind(fd, (struct sockaddr *)&own, sizeof(own)));
	CHECK(!listen(fd, 64));
	fronts[at] = (struct listening){.count = 1, .names = {fd}, .set = -1, .watched = -1};
}

static void step_duplicate(void)
{
	int at = any_open(), copy = -1;

	if (at < 0 || fronts[at].count == NAMES)
		return;
	switch (dice(4)) {
	case 0:
		copy = dup(any_name(at));
		break;
	case 1:
		copy = fcntl(any_name(at), F_DUPFD, 100);
		break;
	case 2:
		copy = open("/dev/null", O_RDONLY);
		CHECK(dup2(any_name(at), copy) == copy);
		break;
	default:
		copy = open("/dev/null", O_RDONLY);
		CHECK(dup3(any_name(at), copy, 0) == copy);
	}
	CHECK(copy >= 0);
	fronts[at].names[fronts[at].count++] = copy;
}

static void unwatch(int at)
{
	if (fronts[at].watched < 0)
		return;
	CHECK(!epoll_ctl(sets[fronts[at].set], EPOLL_CTL_DEL, fronts[at].watched, NULL));
	fronts[at].watched = -1;
	if (!fronts[at].left)
		fronts[at].set = -1;
}

static void step_close(void)
{
	int at = any_open(), which;

	if (at < 0)
		return;
	which = dice(fronts[at].count);
	if (fronts[at].watched == fronts[at].names[which]) {
		fronts[at].watched = -1;
		fronts[at].left = true;
	}
	close_name(fronts[at].names[which], dice(WAYS_TO_CLOSE));
	fronts[at].names[which] = fronts[at].names[--fronts[at].count];
	if (!fronts[at].count) {
		fronts[at].set = -1;
		fronts[at].left = false;
	}
}

static void step_listen(void)
{
	int at = any_open();

	if (at >= 0)
		CHECK(!listen(any_name(at), 32 + dice(32)));
}

/* The server takes its socket off the network, and puts it back. */
static void step_pause(void)
{
	const struct sockaddr nothing = {.sa_family = AF_UNSPEC};
	int at = any_open();

	if (at < 0)
		return;
	switch (dice(3)) {
	case 0:
		CHECK(!shutdown(any_name(at), SHUT_RD));
		break;
	case 1:
		CHECK(!shutdown(any_name(at), SHUT_RDWR));
		break;
	default:
		CHECK(!connect(any_name(at), &nothing, sizeof(nothing)));
	}
	for (int class = 0; class <= CLASSES; class ++)
		CHECK(client_of(at, class) < 0);
	CHECK(!listen(any_name(at), 64) && !shutdown(any_name(at), SHUT_WR));
	for (int class = 0; class <= CLASSES; class ++)
		serve(at, class);
}

static void step_watch(void)
{
	int at = any_open(), name;

	if (at < 0)
		return;
	if (fronts[at].watched >= 0) {
		unwatch(at);
		return;
	}
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = at};

	if (!fronts[at].left)
		fronts[at].set = dice(SETS);
	name = any_name(at);
	if (!epoll_ctl(sets[fronts[at].set], EPOLL_CTL_ADD, name, &event))
		fronts[at].watched = name;
	else
		CHECK(fronts[at].left && errno == EEXIST); /* a copy has the number of the closed one */
}

static void ended_well(pid_t child)
{
	int status = -1;

	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(status == 0);
}

/* A child closes what it inherited, in one of the ways of daemons. */
static void step_fork(void)
{
	unsigned how = dice(3);
	pid_t child = fork();

	if (child) {
		ended_well(child);
		return;
	}
	for (int i = 0; i < FRONTS && how == 0; i++)
		for (int k = 0; k < fronts[i].count; k++)
			close(fronts[i].names[k]);
	if (how == 1)
		close_range(3, ~0u, 0);
	for (int i = 0; i < 300 && how == 2; i++)
		close(3 + i);
	_exit(0);
}

static void step_spawn(void)
{
	char *words[] = {"true", NULL};
	posix_spawn_file_actions_t actions;
	int at = any_open();
	pid_t child;

	posix_spawn_file_actions_init(&actions);
	for (int k = 0; at >= 0 && k < fronts[at].count; k++)
		CHECK(!posix_spawn_file_actions_addclose(&actions, fronts[at].names[k]));
	CHECK(!posix_spawnp(&child, "true", &actions, NULL, words, (char *[]){"PATH=/usr/bin:/bin", NULL}));
	posix_spawn_file_actions_destroy(&actions);
	ended_well(child);
}

/* Workers with a set each take connections of all classes, which come one by one: each is taken once. */
static void step_workers(void)
{
	enum { WORKERS = 2, CLIENTS = 12 };
	int at = any_open(), clients[CLIENTS];
	pid_t workers[WORKERS];
	atomic_int *taken;

	if (at < 0)
		return;
	taken = mmap(NULL, sizeof(*taken), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(taken != MAP_FAILED);
	for (int w = 0; w < WORKERS; w++) {
		workers[w] = fork();
		if (workers[w])
			continue;
		struct epoll_event event = {.events = EPOLLIN, .data.u64 = at};
		int set = epoll_create1(0), name = fronts[at].names[0], left = PATIENCE_MS / 10, fd;

		CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, name, &event));
		for (; atomic_load(taken) < CLIENTS && left; left--)
			if (epoll_wait(set, &event, 1, 10) == 1 && (fd = accept(name, NULL, NULL)) >= 0) {
				atomic_fetch_add(taken, 1);
				close(fd);
			}
		_exit(left ? 0 : 1);
	}
	for (int i = 0; i < CLIENTS; i++) {
		clients[i] = client_of(at, i % (CLASSES + 1));
		CHECK(clients[i] >= 0);
	}
	for (int w = 0; w < WORKERS; w++)
		ended_well(workers[w]);
	CHECK(atomic_load(taken) == CLIENTS);
	for (int i = 0; i < CLIENTS; i++)
		close(clients[i]);
	munmap(taken, sizeof(*taken));
}

/* A new program takes the listening sockets over, as when a server replaces its binary; then the old one goes on. */
static void step_execute(const char *program)
{
	char numbers[3][16], list[FRONTS * NAMES * 16] = "";
	pid_t child;

	if (depth == DEEPEST)
		return;
	child = fork();
	if (child) {
		ended_well(child);
		return;
	}
	for (int i = 0; i < FRONTS; i++) {
		for (int k = 0; k < fronts[i].count; k++)
			snprintf(list + strlen(list), 16, "%d:%d,", i, fronts[i].names[k]);
		if (!fronts[i].count && above[i])
			snprintf(list + strlen(list), 16, "%d:-1,", i);
	}
	snprintf(numbers[0], 16, "%u", seed);
	snprintf(numbers[1], 16, "20"); /* steps */
	snprintf(numbers[2], 16, "%d", depth + 1);
	execve(program, (char *[]){"fief-shim-stress", numbers[0], numbers[1], numbers[2], list, NULL}, environ);
	_exit(127);
}

/* ---- the run ---- */

static void inherit(char *list)
{
	for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
		int at, fd;

		CHECK(sscanf(word, "%d:%d", &at, &fd) == 2);
		if (fd >= 0)
			fronts[at].names[fronts[at].count++] = fd;
		above[at] = true;
	}
}

int main(int count, char **words)
{
	unsigned steps = count > 2 ? atoi(words[2]) : 400;

	seed = count > 1 ? (unsigned)atoi(words[1]) : (unsigned)time(NULL);
	depth = count > 3 ? atoi(words[3]) : 0;
	alarm(300);
	if (!depth && !own_namespace())
		return LEFT_OUT;
	for (int i = 0; i < FRONTS; i++)
		fronts[i].set = fronts[i].watched = -1;
	if (count > 4)
		inherit(words[4]);
	bases = descriptors_open();
	for (int i = 0; i < FRONTS; i++)
		bases -= fronts[i].count ? fronts[i].count + CLASSES : 0;
	for (int i = 0; i < SETS; i++)
		CHECK((sets[i] = epoll_create1(EPOLL_CLOEXEC)) >= 0);
	for (step_number = 0; step_number < steps; step_number++) {
		static const struct {
			const char *name;
			void (*take)(void);
		} ways[] = {
		    {"open", step_open},   {"open", step_open},	    {"duplicate", step_duplicate},
		    {"close", step_close}, {"listen", step_listen}, {"watch", step_watch},
		    {"fork", step_fork},   {"spawn", step_spawn},   {"workers", step_workers},
		    {"pause", step_pause},
		};
		unsigned way = dice(11);

		what = way < 10 ? ways[way].name : "execute";
		if (way < 10)
			ways[way].take();
		else
			step_execute("/proc/self/exe");
		all_hold();
	}
	for (int i = 0; i < FRONTS; i++) {
		unwatch(i);
		while (fronts[i].count)
			close_name(fronts[i].names[--fronts[i].count], dice(WAYS_TO_CLOSE));
	}
	what = "end";
	CHECK(descriptors_open() == descriptors_meant());
	return 0;
}
