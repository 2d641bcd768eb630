/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Threads, their records and the references of containers, over tables of this process in the place of the kernel's maps.
 *
 * Each call of a helper is a point where, on a kernel that cannot keep interrupts off, something may come in between.
 * core_midst() names the one where a test's interrupt comes.
 */
#include "kernel.h"

#include "abi.h"
#include "kernel.bpf.h"
#include "compat.bpf.h"
#include "caller.bpf.h"
#include "receive.bpf.h"
#include "attributes.bpf.h"

#define SLOTS	16 /* a slot that was freed is soon another container's */
#define THREADS 3  /* 0: the idle one */

static struct fief_container table[SLOTS];
static struct fief_control control;
static struct fief_cpu cpu;
static __u32 free_ids[SLOTS], free_first, free_count;

static struct thread {
	struct task_struct task;
	struct fief_task record;
	bool stored;
} threads[THREADS];
static struct thread *running;
static bool busy; /* the storage of this CPU: it deletes nothing */

/* ---- points ---- */

static void (*interrupt)(void);
static __u32 point, wanted;

static void point_pass(void)
{
	void (*comes)(void) = interrupt;

	if (!comes || point++ != wanted)
		return;
	interrupt = NULL;
	comes();
}

/* The next calls are interrupted at a point, counted from 0. */
static void midst(__u32 at, void (*comes)(void))
{
	point = 0;
	wanted = at;
	interrupt = comes;
}

/* ---- the kernel ---- */

static __u64 bpf_ktime_get_ns(void)
{
	static __u64 now = 1000000000;

	point_pass();
	return now += 1000;
}

static struct task_struct *bpf_get_current_task_btf(void)
{
	return &running->task;
}

static void *bpf_map_lookup_elem(const void *map, const void *key)
{
	__u32 at = *(const __u32 *)key;

	point_pass();
	if (map == &containers)
		return at < SLOTS ? &table[at] : NULL;
	if (map == &controls)
		return &control;
	if (map == &cpus)
		return at ? NULL : &cpu;
	return NULL;
}

static long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags)
{
	(void)map, (void)key, (void)value, (void)flags;
	return -ENOMEM;
}

static long bpf_map_push_elem(const void *map, const void *value, __u64 flags)
{
	(void)map, (void)flags;
	free_ids[(free_first + free_count++) % SLOTS] = *(const __u32 *)value;
	return 0;
}

static long bpf_map_pop_elem(const void *map, void *value)
{
	(void)map;
	point_pass();
	if (!free_count)
		return -ENOENT;
	*(__u32 *)value = free_ids[free_first];
	free_first = (free_first + 1) % SLOTS;
	free_count--;
	return 0;
}

static void *bpf_task_storage_get(const void *map, struct task_struct *p, void *value, __u64 flags)
{
	struct thread *thread = container_of(p, struct thread, task);

	(void)map, (void)value;
	point_pass();
	if (!thread->stored && flags & BPF_LOCAL_STORAGE_GET_F_CREATE) {
		__builtin_memset(&thread->record, 0, sizeof(thread->record));
		thread->stored = true;
		p->bpf_storage = (void *)thread;
	}
	return thread->stored ? &thread->record : NULL;
}

static long bpf_task_storage_delete(const void *map, struct task_struct *p)
{
	struct thread *thread = container_of(p, struct thread, task);

	(void)map;
	if (busy)
		return -EBUSY;
	if (!thread->stored)
		return -ENOENT;
	thread->stored = false;
	p->bpf_storage = NULL;
	return 0;
}

/* ---- containers ---- */

void core_reset(void)
{
	__builtin_memset(table, 0, sizeof(table));
	__builtin_memset(&control, 0, sizeof(control));
	__builtin_memset(&cpu, 0, sizeof(cpu));
	__builtin_memset(threads, 0, sizeof(threads));
	busy = false;
	interrupt = NULL;
	control.containers = SLOTS;
	free_first = free_count = 0;
	for (__u32 id = 0; id < SLOTS; id++) {
		if (id < FIEF_FIRST_ID)
			table[id].state = FIEF_ALIVE;
		else
			bpf_map_push_elem(&free_slots, &id, 0);
	}
	for (int i = 0; i < THREADS; i++) {
		threads[i].task.pid = threads[i].task.tgid = i;
		threads[i].task.start_time = i;
	}
	running = &threads[0];
	cpu.online = 1;
	cpu.thread = (__u64)&running->task;
}

/* Without a lookup, which would be a point. */
static struct fief_ref own_ref(__u32 id)
{
	return (struct fief_ref){id, table[id].generation};
}

/* The operator's; a negative error where there is none. */
int core_create(__u32 parent)
{
	struct fief_ref below = own_ref(parent), made;
	int err = container_create(&below, FIEF_OWNER_OPERATOR, 0, &made);

	return err ? err : (int)made.id;
}

int core_adopt(__u32 id, __u32 parent)
{
	return container_adopt(own_ref(id), own_ref(parent));
}

/* The test's handle is closed. */
void core_close(__u32 id)
{
	container_put(id, FIEF_HANDLE);
}

__u64 core_references(__u32 id)
{
	return table[id].refs;
}

__u32 core_free(void)
{
	return free_count;
}

/* ---- threads ---- */

int core_thread(__u32 number, __u32 home)
{
	return task_adopt(&threads[number].task, own_ref(home), 0, true);
}

static void switch_to(__u32 number, unsigned int state)
{
	struct thread *next = &threads[number], *prev = running;

	prev->task.nvcsw++;
	running = next; /* what follows is on its behalf soon, and of nobody's meanwhile */
	switch_charge(false, &prev->task, &next->task, state);
}

void core_switch(__u32 number)
{
	switch_to(number, 1);
}

/* The running thread ends, and later its structure goes. */
void core_end(bool storage_busy)
{
	struct thread *ended = running;

	busy = storage_busy;
	switch_to(0, TASK_DEAD);
	busy = false;
	task_free(&ended->task);
}

int core_bind(__u32 id)
{
	struct fief_descriptor d = {.container = own_ref(id), .rights = FIEF_RIGHTS_ALL};

	running->task.utime += 1000; /* else nothing is settled */

	return bind_self(&d);
}

int core_unbind(void)
{
	return unbind_self();
}

/* As request_send(), of who may. */
int core_request(__u32 number, __u32 id)
{
	int err;

	container_hold(&table[id], FIEF_THREAD);
	err = request_leave(&threads[number].record, own_ref(id), FIEF_RIGHTS_ALL, 0);
	cpu.refresh = 1;
	return err;
}

void core_softirq(void)
{
	softirq_enter(FIEF_SYSTEM_HI);
	softirq_leave();
}

__u32 core_binding(void)
{
	return cpu.has_task ? cpu.task.binding.id : FIEF_NO_ID;
}

/* ---- what comes in between ---- */

static __u32 other;

static void request_comes(void)
{
	core_request(running->task.pid, other);
	core_softirq();
}

static void preempted_for_a_request(void)
{
	__u32 number = running->task.pid;

	core_request(number, other);
	core_switch(0);
	core_switch(number);
}

static void ends_and_slot_is_reused(void)
{
	int first;

	core_close(other);
	first = core_create(FIEF_ROOT);
	while (free_count)
		core_create(FIEF_ROOT);
	core_close(first); /* there is room for one more */
}

/* At the point, a request to work for `id` is left with the running thread, and a softirq or a switch comes. */
void core_midst_request(__u32 at, __u32 id, bool preempted)
{
	other = id;
	midst(at, preempted ? preempted_for_a_request : request_comes);
}

/* At the point, the container ends, and its slot is soon another's. */
void core_midst_end(__u32 at, __u32 id)
{
	other = id;
	midst(at, ends_and_slot_is_reused);
}

/* Whether there was such a point; none comes any more. */
bool core_met(void)
{
	bool met = !interrupt;

	interrupt = NULL;
	return met;
}
