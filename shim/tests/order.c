/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The order of accept and of events, without the kernel side: records are filled by hand.
 */
#include "../events.h"
#include "../order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);          \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define HIGH	   200
#define LOW	   100
#define EPOLL_FD   1000
#define FRONT_FD   1001
#define FRONT_WORD 0xf00d

/* ---- accept ---- */

static void the_highest_priority_is_next(void)
{
	struct queue queues[] = {{.priority = HIGH}, {.priority = LOW}, {.priority = 0}};

	CHECK(order_next(queues, 3, 7) == 0);
	CHECK(order_next(queues, 3, 6) == 1);
	CHECK(order_next(queues, 3, 4) == 2);
	CHECK(order_next(queues, 3, 0) == -1);
}

static void one_that_waits_for_existing_connections_gives_way(void)
{
	struct queue queues[] = {{.priority = HIGH, .after = true}, {.priority = LOW}};

	CHECK(order_next(queues, 2, 3) == 1);
	CHECK(order_next(queues, 2, 1) == 0);
}

static void a_low_queue_gets_one_turn_in_32_and_priority_zero_none(void)
{
	struct queue queues[] = {{.priority = HIGH}, {.priority = LOW}, {.priority = 0}};
	int turns[3] = {};

	for (int i = 0; i < 320; i++)
		turns[order_next(queues, 3, 7)]++;
	CHECK(turns[0] == 310 && turns[1] == 10 && turns[2] == 0);
}

static void equals_take_turns(void)
{
	struct queue queues[] = {{.priority = LOW}, {.priority = LOW}, {.priority = LOW}};
	int turns[3] = {};

	for (int i = 0; i < 300; i++)
		turns[order_next(queues, 3, 7)]++;
	CHECK(turns[0] == 100 && turns[1] == 100 && turns[2] == 100);
}

/* ---- events ---- */

static struct front front;

static struct events *set_with_front(uint32_t mask)
{
	struct events *set = calloc(1, sizeof(*set));

	front = (struct front){.count = 3};
	front.queues[OWN_QUEUE] = (struct queue){.fd = FRONT_FD, .priority = 100};
	front.queues[1] = (struct queue){.fd = 1, .priority = HIGH};
	front.queues[2] = (struct queue){.fd = 2, .priority = LOW};
	set->fd = set->id = EPOLL_FD;
	set->registered_count = 1;
	set->registered[0] = calloc(FRONT_CHUNK, sizeof(struct registered));
	*registered_at(set, 0) = (struct registered){.front = &front, .fd = FRONT_FD, .mask = mask, .data = FRONT_WORD};
	return set;
}

static void connection(struct events *set, int fd, uint32_t priority, uint32_t mask)
{
	descriptors[fd] =
	    (struct descriptor){.kind = CONNECTION, .priority = priority, .events = set->id, .mask = mask, .data = fd};
	events_hint(set, fd, fd);
}

static struct epoll_event told(uint64_t data)
{
	return (struct epoll_event){.events = EPOLLIN, .data.u64 = data};
}

static void a_high_connection_comes_before_low_ones_and_alone(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8];

	connection(set, 10, LOW, EPOLLIN | EPOLLET);
	connection(set, 11, LOW, EPOLLIN | EPOLLET);
	connection(set, 12, HIGH, EPOLLIN | EPOLLET);
	CHECK(events_order(set, (struct epoll_event[]){told(10), told(11), told(12)}, 3, out, 8) == 1);
	CHECK(out[0].data.u64 == 12);
	/* the edges that were held come out, in their order */
	CHECK(events_order(set, NULL, 0, out, 8) == 2);
	CHECK(out[0].data.u64 == 10 && out[1].data.u64 == 11);
	CHECK(events_order(set, NULL, 0, out, 8) == 0);
	CHECK(set->held_count == 0);
}

static void few_are_handed_out_at_a_time_and_none_is_lost(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event fresh[FETCH], out[FETCH];
	int seen = 0, turns = 0, count = FETCH;

	for (int i = 0; i < FETCH; i++) {
		connection(set, 10 + i, LOW, EPOLLIN | EPOLLET);
		fresh[i] = told(10 + i);
	}
	for (;;) {
		int n = events_order(set, fresh, count, out, FETCH);

		count = 0;
		if (!n)
			break;
		for (int i = 0; i < n; i++)
			CHECK(out[i].data.u64 == 10u + seen++);
		turns++;
	}
	CHECK(seen == FETCH && turns == FETCH / 4);
}

static void a_second_edge_joins_the_one_that_is_held(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8], end = {.events = EPOLLRDHUP, .data.u64 = 10};

	connection(set, 10, LOW, EPOLLIN | EPOLLET);
	connection(set, 11, HIGH, EPOLLIN | EPOLLET);
	CHECK(events_order(set, (struct epoll_event[]){told(10), told(11)}, 2, out, 8) == 1);
	CHECK(events_order(set, &end, 1, out, 8) == 1);
	CHECK(out[0].data.u64 == 10 && out[0].events == (EPOLLIN | EPOLLRDHUP));
	CHECK(events_order(set, NULL, 0, out, 8) == 0);
}

static void an_event_of_a_closed_connection_is_void(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8];

	connection(set, 10, LOW, EPOLLIN | EPOLLET);
	connection(set, 11, HIGH, EPOLLIN | EPOLLET);
	CHECK(events_order(set, (struct epoll_event[]){told(10), told(11)}, 2, out, 8) == 1);
	descriptors[10].kind = PLAIN;
	descriptors[10].pending = 0;
	CHECK(events_order(set, NULL, 0, out, 8) == 0);
}

static void what_the_kernel_tells_again_is_not_held(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8];

	connection(set, 10, LOW, EPOLLIN);
	connection(set, 11, HIGH, EPOLLIN);
	CHECK(events_order(set, (struct epoll_event[]){told(10), told(11)}, 2, out, 8) == 1);
	CHECK(set->held_count == 0);
}

static void the_server_sees_its_own_word_for_a_class_listener(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8];

	CHECK(events_order(set, (struct epoll_event[]){told(events_mark(0, 2))}, 1, out, 8) == 1);
	CHECK(out[0].data.u64 == FRONT_WORD);
	CHECK(front.offered == 1ull << 2);
}

static void an_edge_of_a_class_listener_is_held_too(void)
{
	struct events *set = set_with_front(EPOLLIN | EPOLLET);
	struct epoll_event out[8];

	CHECK(events_order(set, (struct epoll_event[]){told(events_mark(0, 2)), told(events_mark(0, 1))}, 2, out, 8) ==
	      1);
	CHECK(front.offered == 1ull << 1);
	CHECK(events_order(set, NULL, 0, out, 8) == 1);
	CHECK(front.offered == (1ull << 1 | 1ull << 2));
}

static void new_connections_that_come_after_wait_until_the_others_have_nothing(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8];

	front.queues[1].after = true;
	connection(set, 10, LOW, EPOLLIN);
	CHECK(events_order(set, (struct epoll_event[]){told(events_mark(0, 1)), told(10)}, 2, out, 8) == 1);
	CHECK(out[0].data.u64 == 10);
	CHECK(events_order(set, (struct epoll_event[]){told(events_mark(0, 1))}, 1, out, 8) == 1);
	CHECK(out[0].data.u64 == FRONT_WORD);
}

static void descriptors_of_the_server_itself_never_wait(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event fresh[40], out[64];

	for (int i = 0; i < 39; i++)
		fresh[i] = told(0xabc000 + i);
	connection(set, 10, HIGH, EPOLLIN | EPOLLET);
	fresh[39] = told(10);
	CHECK(events_order(set, fresh, 40, out, 64) == 40);
	CHECK(out[39].data.u64 == 10);
}

static void a_passed_over_class_of_events_gets_a_turn(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8];
	int low = 0;

	connection(set, 10, LOW, EPOLLIN);
	connection(set, 11, HIGH, EPOLLIN);
	connection(set, 12, 0, EPOLLIN);
	for (int turn = 0; turn < 320; turn++) {
		int n = events_order(set, (struct epoll_event[]){told(10), told(11), told(12)}, 3, out, 8);

		for (int i = 0; i < n; i++) {
			low += out[i].data.u64 == 10;
			CHECK(out[i].data.u64 != 12);
		}
	}
	CHECK(low == 10);
}

static void several_waiting_threads_get_everything_at_once(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8];

	set->shared = true;
	connection(set, 10, LOW, EPOLLIN | EPOLLET);
	connection(set, 11, HIGH, EPOLLIN | EPOLLET);
	CHECK(events_order(set, (struct epoll_event[]){told(10), told(11)}, 2, out, 8) == 2);
	CHECK(out[0].data.u64 == 11 && out[1].data.u64 == 10);
}

/* As when policies with other priorities come, one after the other. */
static void new_priorities_are_put_in_order_however_many_there_were(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8];

	for (uint32_t i = 1; i < 3 * MAX_LEVELS; i++) {
		connection(set, 10, 10 * i, EPOLLIN);
		connection(set, 11, 10 * i + 1, i % 2 ? EPOLLIN : EPOLLIN | EPOLLET);
		connection(set, 12, 10 * i + 2, EPOLLIN | EPOLLET);
		CHECK(events_order(set, (struct epoll_event[]){told(10), told(11), told(12)}, 3, out, 8) == 1);
		CHECK(out[0].data.u64 == 12);
		CHECK(events_order(set, (struct epoll_event[]){told(10), told(11)}, 2, out, 8) == 1);
		CHECK(out[0].data.u64 == 11);
		CHECK(events_order(set, (struct epoll_event[]){told(10)}, 1, out, 8) == 1);
		CHECK(out[0].data.u64 == 10);
		CHECK(events_order(set, NULL, 0, out, 8) == 0);
	}
	CHECK(set->level_count == MAX_LEVELS);
}

static void what_is_held_keeps_its_place_while_priorities_come_and_go(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[8];

	connection(set, 10, 1, EPOLLIN | EPOLLET);
	connection(set, 11, 2, EPOLLIN | EPOLLET);
	for (uint32_t i = 0; i < PASSED_OFTEN - 1; i++) {
		struct epoll_event fresh[] = {told(12), told(13), told(14), told(15), told(11), told(10)};

		for (int k = 0; k < 4; k++) /* more than there are levels, in all */
			connection(set, 12 + k, 100 + 4 * i + k, EPOLLIN);
		CHECK(events_order(set, fresh, i ? 4 : 6, out, 8) == 1);
		CHECK(out[0].data.u64 == 15);
	}
	CHECK(set->level_count == MAX_LEVELS);
	CHECK(events_order(set, NULL, 0, out, 8) == 1 && out[0].data.u64 == 11);
	CHECK(events_order(set, NULL, 0, out, 8) == 1 && out[0].data.u64 == 10);
}

static void no_more_than_the_server_has_room_for(void)
{
	struct events *set = set_with_front(EPOLLIN);
	struct epoll_event out[1];

	connection(set, 10, LOW, EPOLLIN | EPOLLET);
	connection(set, 11, LOW, EPOLLIN | EPOLLET);
	CHECK(events_order(set, (struct epoll_event[]){told(10)}, 1, out, 1) == 1);
	CHECK(events_order(set, (struct epoll_event[]){told(11)}, 1, out, 1) == 1);
	CHECK(out[0].data.u64 == 11);
}

int main(void)
{
	the_highest_priority_is_next();
	one_that_waits_for_existing_connections_gives_way();
	a_low_queue_gets_one_turn_in_32_and_priority_zero_none();
	equals_take_turns();
	a_high_connection_comes_before_low_ones_and_alone();
	few_are_handed_out_at_a_time_and_none_is_lost();
	a_second_edge_joins_the_one_that_is_held();
	an_event_of_a_closed_connection_is_void();
	what_the_kernel_tells_again_is_not_held();
	the_server_sees_its_own_word_for_a_class_listener();
	an_edge_of_a_class_listener_is_held_too();
	new_connections_that_come_after_wait_until_the_others_have_nothing();
	descriptors_of_the_server_itself_never_wait();
	a_passed_over_class_of_events_gets_a_turn();
	several_waiting_threads_get_everything_at_once();
	new_priorities_are_put_in_order_however_many_there_were();
	what_is_held_keeps_its_place_while_priorities_come_and_go();
	no_more_than_the_server_has_room_for();
	return 0;
}
