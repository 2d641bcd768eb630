/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the shim keeps for a listening socket of the server, and how it follows the policy.
 *
 * A policy can be replaced while the server runs. Once a second, when the server waits or accepts, the kernel is asked
 * for the classes again: priorities and orders of accept change at once, and a class that is new gets its listener, if
 * this process may make one (workers that gave up the user of the listening socket may not: such a class goes on
 * through the server's own socket until the server listens again, or the policy is another one).
 *
 * The listener of a class that is gone stays: the class may come back, and another process may have the listener too, which would
 * get the clients then without accepting them. Where a front has no room for a new class, that takes the place of one that is gone.
 */
#define _GNU_SOURCE
#include "fronts.h"
#include "descriptors.h"
#include "real.h"
#include "turns.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct descriptor descriptors[MAX_DESCRIPTORS];
atomic_int front_count;
static atomic_int used;

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static int cancel_state; /* of who holds it, before */

/* A thread that is cancelled in close() or connect() would keep the lock. */
void fronts_lock(void)
{
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_mutex_lock(&changing);
	cancel_state = state;
}

static bool fronts_trylock(void)
{
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	if (pthread_mutex_trylock(&changing)) {
		pthread_setcancelstate(state, NULL);
		return false;
	}
	cancel_state = state;
	return true;
}

void fronts_unlock(void)
{
	int state = cancel_state;

	pthread_mutex_unlock(&changing);
	pthread_setcancelstate(state, NULL);
}

void fronts_forked(void)
{
	pthread_mutex_init(&changing, NULL); /* whoever held it is not in the child */
	turns_forked();
}

int descriptors_used(void)
{
	return atomic_load_explicit(&used, memory_order_relaxed);
}

void descriptor_is(int fd, enum kind kind)
{
	int most = descriptors_used();

	while (fd >= most && !atomic_compare_exchange_weak(&used, &most, fd + 1))
		;
	descriptors[fd].kind = kind;
}

bool front_ask(int fd, struct fief_classes *answer)
{
	socklen_t size = sizeof(*answer);

	memset(answer, 0, size);
	if (getsockopt(fd, FIEF_SOL, FIEF_CLASSES, answer, &size) || size < sizeof(*answer))
		return false;
	return answer->listener != FIEF_NO_LISTENER && answer->count <= FIEF_MAX_CLASSES;
}

bool is_listening(int fd)
{
	int listening = 0;
	socklen_t size = sizeof(listening);

	return !getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) && listening;
}

const struct fief_class *find_class(const struct fief_classes *classes, struct fief_ref container)
{
	for (uint32_t i = 0; i < classes->count; i++)
		if (same_container(classes->class_[i].container, container))
			return &classes->class_[i];
	return NULL;
}

void front_read_timeout(struct front *front, int fd)
{
	struct timeval timeout = {};
	socklen_t size = sizeof(timeout);

	if (getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, &size))
		return;
	front->receive_timeout = (struct timespec){timeout.tv_sec, timeout.tv_usec * 1000};
}

void front_name(struct front *front, int fd)
{
	struct descriptor *d = descriptor_at(fd);

	if (!d)
		return;
	front->names++;
	d->front = front;
	descriptor_is(fd, FRONT); /* last: who sees a front looks for its record */
}

/* A front without queues yet but its own. */
struct front *front_new(int fd, int listener)
{
	struct front *front = descriptor_at(fd) ? calloc(1, sizeof(*front)) : NULL;

	if (!front)
		return NULL;
	front->turn = turn_take();
	if (!front->turn) {
		free(front);
		return NULL;
	}
	front->blocking = !(real()->fcntl(fd, F_GETFL) & O_NONBLOCK);
	front_read_timeout(front, fd);
	front->listener = listener;
	front->waiter = -1;
	front->count = 1;
	front->queues[OWN_QUEUE] = (struct queue){.fd = fd, .priority = OWN_PRIORITY};
	front_name(front, fd);
	atomic_fetch_add(&front_count, 1);
	return front;
}

/* Others see it when it is whole. False: there is no room. */
static bool add_queue(struct front *front, int fd, const struct fief_class *class)
{
	struct descriptor *d = descriptor_at(fd);

	if (front->count == MAX_QUEUES)
		return false;
	if (d) {
		d->front = front;
		descriptor_is(fd, QUEUE);
	}
	front->queues[front->count] = (struct queue){
	    .fd = fd,
	    .priority = class->priority,
	    .after = class->accept == FIEF_ACCEPT_AFTER,
	    .container = class->container,
	};
	front->count++;
	return true;
}

static struct queue *queue_of(struct front *front, struct fief_ref container)
{
	for (int i = OWN_QUEUE + 1; i < front->count; i++)
		if (same_container(front->queues[i].container, container))
			return &front->queues[i];
	return NULL;
}

bool front_adopt_queue(struct front *front, int fd, const struct fief_class *class)
{
	if (queue_of(front, class->container) || !add_queue(front, fd, class))
		return false;
	real()->fcntl(fd, F_SETFD, FD_CLOEXEC); /* the next program gets it as this one did */
	return true;
}

/* Room for a socket comes and goes, which rights do not. */
static bool is_for_good(int error)
{
	return error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM;
}

/* What the kernel side of an older Fief does not tell is taken for right. */
static bool was_made_for(const struct fief_classes *self, struct fief_ref container)
{
	struct fief_ref told = self->class_[0].container;

	return told.id == FIEF_ROOT || same_container(told, container);
}

static bool is_drained(int fd)
{
	struct pollfd asked = {.fd = fd, .events = POLLIN};

	return fd >= 0 && !real()->poll(&asked, 1, 0);
}

/*
 * The place for one more queue; OWN_QUEUE: there is none. Clients whose handshake was under way when the policy changed have a second to
 * come: looks are in different seconds, so two in a row may be close, and three are not.
 */
static int place_for_queue(const struct front *front)
{
	if (front->count < MAX_QUEUES)
		return front->count;
	for (int i = OWN_QUEUE + 1; i < front->count; i++)
		if (front->queues[i].gone > 2 && is_drained(front->queues[i].fd))
			return i;
	return OWN_QUEUE;
}

/*
 * The number of the descriptor stays: another thread may be about to accept from it. `fd` may only be bound: it listens once the old one
 * has left its turn among the listeners of the class to it.
 */
static void replace_queue(struct front *front, int at, int fd, const struct fief_class *class, int backlog)
{
	struct queue *queue = &front->queues[at];

	/* a child may have the old listener too, and then the kernel would tell of it for ever */
	events_tell_queue(front, EPOLL_CTL_DEL, at);
	if (real()->dup3(fd, queue->fd, O_CLOEXEC) >= 0) {
		queue->priority = class->priority;
		queue->after = class->accept == FIEF_ACCEPT_AFTER;
		queue->container = class->container;
		queue->passed = 0;
		queue->gone = 0;
		real()->listen(queue->fd, backlog);
	}
	events_tell_queue(front, EPOLL_CTL_ADD, at);
	real()->close(fd);
}

/*
 * Makes the listening socket of one class. The kernel is asked by place, and another policy may have come into force since the
 * classes were read: what has become another class's is of no use, and what is refused then is asked for again with the next look.
 */
static void open_class(struct front *front, int fd, uint32_t at, const struct fief_class *class, int backlog)
{
	int place = place_for_queue(front), opened;
	struct fief_classes own;

	if (place == OWN_QUEUE || events_are_foreign(front))
		return;
	if (!is_listening(fd)) /* it may be shut, until the server listens again */
		return;
	opened = open_queue(fd, at, backlog);
	if (opened < 0) {
		if (is_for_good(errno))
			front->refused |= 1u << at;
	} else if (!front_ask(opened, &own) || !was_made_for(&own, class->container)) {
		real()->close(opened);
	} else if (place < front->count) {
		replace_queue(front, place, opened, class, backlog);
	} else {
		add_queue(front, opened, class);
		events_tell_queue(front, EPOLL_CTL_ADD, place);
	}
}

static bool is_in_group(int fd)
{
	int shares = 0;
	socklen_t size = sizeof(shares);

	return !getsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &shares, &size) && shares;
}

/*
 * A class listener that was shut has lost its port if the kernel chose it, and those of a group of SO_REUSEPORT have to have one
 * together: a fresh one gets the port that the group has now. False: the old one has to do. Without a group its port is of no matter, and
 * other processes that have it too go on with it.
 */
static bool reopen_queue(struct front *front, int fd, int at, const struct fief_classes *classes, int backlog)
{
	const struct fief_class *class = find_class(classes, front->queues[at].container);
	struct fief_classes own;
	int fresh;

	if (!class || is_listening(front->queues[at].fd) || !is_in_group(fd) || events_are_foreign(front))
		return false;
	fresh = bind_queue(fd, class - classes->class_);
	if (fresh < 0)
		return false;
	if (!front_ask(fresh, &own) || !was_made_for(&own, class->container)) {
		real()->close(fresh);
		return false;
	}
	replace_queue(front, at, fresh, class, backlog);
	return true;
}

static void listen_again(struct front *front, int fd, int backlog)
{
	struct fief_classes classes;

	if (!front_ask(fd, &classes))
		classes.count = 0; /* without Fief they are listening sockets all the same */
	for (int i = OWN_QUEUE + 1; i < front->count; i++)
		if (front->queues[i].fd >= 0 && !reopen_queue(front, fd, i, &classes, backlog))
			real()->listen(front->queues[i].fd, backlog);
}

static void open_queues(struct front *front, int fd, int backlog)
{
	struct fief_classes classes;

	if (!front_ask(fd, &classes))
		return;
	if (classes.epoch != front->epoch)
		front->refused = 0;
	front->epoch = classes.epoch;
	for (int i = OWN_QUEUE + 1; i < front->count; i++) {
		struct queue *queue = &front->queues[i];
		const struct fief_class *class = find_class(&classes, queue->container);

		queue->gone = class ? 0 : queue->gone + 1;
		if (!class)
			continue;
		queue->priority = class->priority;
		queue->after = class->accept == FIEF_ACCEPT_AFTER;
	}
	for (uint32_t i = 0; i < classes.count; i++)
		if (!(front->refused >> i & 1) && !queue_of(front, classes.class_[i].container))
			open_class(front, fd, i, &classes.class_[i], backlog);
}

/* Another thread may be closing it: what is opened for it then nobody closes. And the number may be another front's by now. */
static bool is_name(const struct front *front, int fd)
{
	return front_of(fd) == front;
}

void front_open_queues(struct front *front, int fd, int backlog)
{
	fronts_lock();
	if (is_name(front, fd)) {
		front->refused = 0;
		listen_again(front, fd, backlog);
		open_queues(front, fd, backlog);
	}
	fronts_unlock();
}

void front_refresh(struct front *front, int fd)
{
	struct timespec now;
	int saved = errno;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_sec == front->looked || !fronts_trylock())
		return;
	if (now.tv_sec != front->looked && is_name(front, fd)) {
		front->looked = now.tv_sec;
		open_queues(front, fd, SOMAXCONN);
	}
	fronts_unlock();
	errno = saved;
}
