/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Turns: the locks of fronts, in memory that forked workers share.
 *
 * Problem: the holder of a turn may be stopped, die or be cancelled, and may be a process that means harm. Another thread may be in accept()
 * and hold the turn of a front that is just closed. So its memory has to stay, and a server that opens and closes listening sockets
 * for years would run out of mappings (vm.max_map_count).
 * How: a turn is a word of futex(2). A thread that has waited for PATIENCE_NS goes on without the turn: at worst one of two threads then
 * blocks in accept() until the front's next client. So nobody needs to know whether the holder lives, and shared memory has no pointers,
 * which a list of robust mutexes would have.
 * A mapping has many turns, and one that was given back is the next front's. After a fork() a process and its child take new turns
 * from mappings that the other has not. A mapping whose fronts have all been closed is then made anew at its address, so there are
 * never more mappings than there were fronts at once, and one.
 * Trust: processes can write the turns that they have inherited. One that keeps a turn makes the others wait for PATIENCE_NS before
 * each client of the front's own queue, also when it has closed the front. As long as it has the listening socket it could take the clients
 * themselves. Fronts that are made after the fork() are out of its reach.
 * Limits: a child that is made without the C library shares later turns too, so accept() from one front may wait for PATIENCE_NS for another.
 */
#define _GNU_SOURCE
#include "turns.h"
#include "fronts.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TURNS	    64 /* of one mapping; a bit each */
#define TURNS_SIZE  (TURNS * sizeof(struct turn))
#define PATIENCE_NS 100000000

enum { FREE, HELD, WAITED /* held, and somebody may wait */ };

struct turns {
	struct turn *all;
	uint64_t taken;
	unsigned forks; /* when it was made; another number now: others have it too */
	struct turns *next;
};

static struct turns *first; /* of who holds fronts_lock() */
static atomic_uint forks;   /* of this process and those that it comes from */

/* No lock: a signal handler may fork while its thread has fronts_lock(). */
void turns_forked(void)
{
	atomic_fetch_add(&forks, 1);
}

static struct turn *turns_map(void)
{
	return mmap(NULL, TURNS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static struct turns *turns_new(void)
{
	struct turns *turns = calloc(1, sizeof(*turns));

	if (!turns)
		return NULL;
	turns->forks = atomic_load(&forks); /* before it is made: of a fork() meanwhile it is too old */
	turns->all = turns_map();
	if (turns->all != MAP_FAILED)
		return turns;
	free(turns);
	return NULL;
}

/* At its address, which a thread may still use that is in accept() from a closed front. */
static bool renew(struct turns *turns)
{
	unsigned now = atomic_load(&forks);
	struct turn *fresh = turns_map();

	if (fresh == MAP_FAILED)
		return false;
	if (mremap(fresh, TURNS_SIZE, TURNS_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, turns->all) == MAP_FAILED) {
		munmap(fresh, TURNS_SIZE);
		return false;
	}
	turns->forks = now;
	return true;
}

static struct turn *take_of(struct turns *turns)
{
	if (turns->forks != atomic_load(&forks) && (turns->taken || !renew(turns)))
		return NULL;
	for (int i = 0; i < TURNS; i++) {
		if (turns->taken >> i & 1)
			continue;
		turns->taken |= 1ull << i;
		/* a thread may sleep in accept() from a closed front for good */
		atomic_store(&turns->all[i].state, FREE);
		return &turns->all[i];
	}
	return NULL;
}

struct turn *turn_take(void)
{
	struct turns **at = &first;
	struct turn *turn = NULL;

	fronts_lock();
	while (!turn && (*at || (*at = turns_new()))) {
		turn = take_of(*at);
		at = &(*at)->next;
	}
	fronts_unlock();
	return turn;
}

void turn_give(struct turn *turn)
{
	fronts_lock();
	for (struct turns *at = first; at; at = at->next)
		if (turn >= at->all && turn < at->all + TURNS)
			at->taken &= ~(1ull << (turn - at->all));
	fronts_unlock();
}

static bool is_over(const struct timespec *end)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec != end->tv_sec ? now.tv_sec > end->tv_sec : now.tv_nsec >= end->tv_nsec;
}

void turn_lock(struct turn *turn)
{
	unsigned state = FREE;
	struct timespec end;

	if (atomic_compare_exchange_strong(&turn->state, &state, HELD))
		return;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_nsec += PATIENCE_NS;
	end.tv_sec += end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	while (atomic_exchange(&turn->state, WAITED) != FREE && !is_over(&end))
		syscall(SYS_futex, &turn->state, FUTEX_WAIT_BITSET, WAITED, &end, NULL, FUTEX_BITSET_MATCH_ANY);
}

void turn_unlock(struct turn *turn)
{
	if (atomic_exchange(&turn->state, FREE) == WAITED)
		syscall(SYS_futex, &turn->state, FUTEX_WAKE, 1, NULL, NULL, 0);
}
