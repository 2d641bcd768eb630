/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Threads, their records and the references of containers, over tables of this process in the place of the kernel's maps.
 *
 * Each call of a helper is a point where, on a kernel that cannot keep interrupts off, something may come in between.
 * core_midst() names the one where a test's interrupt comes.
 */
#include "kernel.h"

#undef bpf_map_delete_elem
#define bpf_map_delete_elem user_delete
static long user_delete(const void *map, const void *key);

#include "abi.h"
#include "kernel.bpf.h"
#include "compat.bpf.h"
#include "caller.bpf.h"
#include "receive.bpf.h"
#include "follow.bpf.h"
#include "attributes.bpf.h"

#define SLOTS	16 /* a slot that was freed is soon another container's */
#define THREADS 3  /* 0: the idle one */
#define USERS	4
#define SOCKETS 4

static struct fief_container table[SLOTS];
static struct fief_control control;
static struct fief_cpu cpu;
static __u32 free_ids[SLOTS], free_first, free_count;

static struct user {
	bool used;
	__u32 uid;
	struct fief_user value;
} owners[USERS];

static struct thread {
	struct task_struct task;
	struct cred cred;
	struct fief_task record;
	bool stored;
} threads[THREADS];
static struct thread *running;

static struct socket_of {
	struct unix_sock own; /* the first part of it is any socket's */
	struct fief_label label;
	bool labelled;
} sockets[SOCKETS];

static bool busy; /* the storage of this CPU: it deletes nothing */
static bool lacks; /* it makes nothing */

#define UNIT 7 /* id of its cgroup */
static struct fief_unit unit;

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

static struct user *user_find(const void *uid)
{
	for (int i = 0; i < USERS; i++)
		if (owners[i].used && owners[i].uid == *(const __u32 *)uid)
			return &owners[i];
	return NULL;
}

static void *bpf_map_lookup_elem(const void *map, const void *key)
{
	__u32 at = *(const __u32 *)key;
	struct user *user = map == &users ? user_find(key) : NULL;

	point_pass();
	if (user)
		return &user->value;
	if (map == &containers)
		return at < SLOTS ? &table[at] : NULL;
	if (map == &controls)
		return &control;
	if (map == &cpus)
		return at ? NULL : &cpu;
	if (map == &units)
		return at == UNIT ? &unit : NULL;
	return NULL;
}

static long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags)
{
	(void)flags;
	for (int i = 0; map == &users && i < USERS; i++) {
		if (owners[i].used)
			continue;
		owners[i] = (struct user){true, *(const __u32 *)key, *(const struct fief_user *)value};
		return 0;
	}
	return -ENOMEM;
}

static long user_delete(const void *map, const void *key)
{
	struct user *user = map == &users ? user_find(key) : NULL;

	if (!user)
		return -ENOENT;
	user->used = false;
	return 0;
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
	if (!thread->stored && !lacks && flags & BPF_LOCAL_STORAGE_GET_F_CREATE) {
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

static void *bpf_sk_storage_get(const void *map, void *sk, void *value, __u64 flags)
{
	struct socket_of *socket = sk;

	(void)map;
	point_pass();
	if (!socket->labelled && flags & BPF_SK_STORAGE_GET_F_CREATE) {
		socket->label = *(struct fief_label *)value;
		socket->labelled = true;
	}
	return socket->labelled ? &socket->label : NULL;
}

/* ---- containers ---- */

void core_reset(void)
{
	__builtin_memset(table, 0, sizeof(table));
	__builtin_memset(&control, 0, sizeof(control));
	__builtin_memset(&cpu, 0, sizeof(cpu));
	__builtin_memset(threads, 0, sizeof(threads));
	__builtin_memset(owners, 0, sizeof(owners));
	__builtin_memset(sockets, 0, sizeof(sockets));
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
		threads[i].task.cred = &threads[i].cred;
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

/* A program begins as this user, for which the policy names `into`: where it works. */
__u32 core_program(__u32 uid, __u32 into)
{
	struct fief_ref made;

	running->cred.uid.val = uid;
	return program_make(&running->task, own_ref(into), &made) ? made.id : FIEF_NO_ID;
}

/* The policy names it; servers that work for `by` start programs there. */
void core_programs(__u32 into, __u32 by)
{
	table[into].flags |= FIEF_CONTAINER_POLICY;
	table[by].attributes[0].programs = into;
	cpu.task.flags |= FIEF_TASK_FORKED;
}

/* The running thread executes a program as this user. */
void core_exec(__u32 uid)
{
	running->cred.uid.val = uid;
	program_begin(&running->task);
}

/* Whether the running thread may make containers where it works. */
bool core_makes(void)
{
	return cpu.task.rights & FIEF_RIGHT_CHILDREN;
}

/* Containers that count for a user. */
__u32 core_counted(__u32 uid)
{
	struct user *user = user_find(&uid);

	return user ? user->value.containers : 0;
}

/* Containers that one user may have. */
void core_quota(__u32 containers)
{
	control.user_quota = containers;
}

/* Containers that may be below one. */
void core_descendants(__u32 id, __u32 most)
{
	table[id].attributes[0].descendants_max = most;
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

int core_thread(__u32 number, __u32 home, bool follows)
{
	return task_adopt(&threads[number].task, own_ref(home), follows ? FIEF_TASK_FOLLOW : 0, true);
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

/* Whether it was made for the container that has the slot now. */
bool core_is_bound_to(__u32 id)
{
	return cpu.has_task && same_ref(cpu.task.binding, own_ref(id));
}

/* Whose the running thread's time is from now on; FIEF_NO_ID: a socket will tell. */
__u32 core_charges(void)
{
	return cpu.current_.id;
}

#include "born.h"
#include "clients.h"
#include "ends.h"

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

/* The container ends, and its slot is soon another's. */
void core_reuse(__u32 id)
{
	other = id;
	ends_and_slot_is_reused();
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
