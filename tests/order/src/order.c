/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The scheduler's parts, over tables of this process in the place of the kernel's maps. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "types.h"
#include "calls.h"

/* Each atomic step is a point where the other CPU may come in between. */
#define __sync_fetch_and_add(at, by)		  (calls_point(), __sync_fetch_and_add(at, by))
#define __sync_val_compare_and_swap(at, old, now) (calls_point(), __sync_val_compare_and_swap(at, old, now))
#define __sync_lock_test_and_set(at, now)	  (calls_point(), __sync_lock_test_and_set(at, now))

#include "abi.h"

#define __noinline __attribute__((noinline))
#define __arg_nonnull
#define __hidden
#define barrier_var(variable) __asm__ volatile("" : "+r"(variable))
#define __arg_trusted
#define SEC(name)	    __attribute__((unused))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) __typeof__(value) *name
#define can_loop	    true
/* The lock is waited for in one. */
#define bpf_for(i, start, end) for (i = (start); i < (end); i++, own_clock += try_ns, calls_spin())
#define barrier()	       __asm__ volatile("" ::: "memory")
#define CPUS		       2
enum { BPF_ANY, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_TASK_STORAGE = 29, BPF_F_NO_PREALLOC = 1, BPF_F_MMAPABLE = 1024 };
struct bpf_timer {
	__u64 opaque[2];
};
struct task_struct;

static __u64 own_clock, try_ns; /* so long each turn of a loop takes */

static void *bpf_map_lookup_elem(const void *map, const void *key);

static __u32 bpf_get_prandom_u32(void)
{
	static __u64 state = 0x9e3779b97f4a7c15ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state >> 16;
}

static __u64 bpf_ktime_get_ns(void)
{
	return own_clock;
}

static __u32 own_cpu; /* outside of calls */

static __u32 bpf_get_smp_processor_id(void)
{
	int call = calls_running();

	return call < 0 ? own_cpu : (__u32)call;
}

/* An order from outside, as object_answers() says. */
static int own_object(__u32 number);
#define OBJECT(number)                                                                                                 \
	static int object_##number(__u32 cpu)                                                                          \
	{                                                                                                              \
		return own_object(number) + cpu;                                                                       \
	}

static void *bpf_task_storage_get(const void *map, struct task_struct *p, void *value, __u64 flags);
static __s32 scx_bpf_dsq_nr_queued(__u64 dsq);

#define TABLE 4096
static struct fief_container table[TABLE];

static struct fief_container *container_at(__u32 id)
{
	return id < TABLE ? &table[id] : NULL;
}

static struct fief_attributes *attributes_of(struct fief_container *c)
{
	return &c->attributes[0];
}

#include "order.h"
#include "state.bpf.h"
#undef bpf_for
#define bpf_for(i, start, end) for (i = (start); i < (end); i++, own_clock += try_ns)
#include "tree.bpf.h"
#include "numbers.bpf.h"
#include "limit.bpf.h"
#include "pick.bpf.h"
#include "alone.bpf.h"
#include "policy.bpf.h"

static const __u32 cpu_count = CPUS;
static int queues; /* stands for the map */

void order_charge(__u32 id, __u64 ns);

static struct fief_container *container_get(struct fief_ref ref)
{
	struct fief_container *c = container_at(ref.id);

	return c && c->generation == ref.generation ? c : NULL;
}

#include "lent.bpf.h"
#include "scx.h"
#include "threads.h"
#include "floor.h"

static struct sched_node nodes[TABLE];
static struct sched_queue lines[QUEUES];
static struct fief_queue requests;
static struct fief_guard listeners[2] = {{.queue = 1}}; /* the second one has none */
static __u32 numbers[QUEUES];
static struct fief_turn turn;
static struct fief_object objects[FIEF_OBJECT_SETS];
static __u32 generation;

#include "cpus.h"
#include "mishaps.h"

static void *bpf_map_lookup_elem(const void *map, const void *key)
{
	__u32 at = *(const __u32 *)key;

	if (lookups_stop)
		calls_point();
	if (map == &sched_nodes)
		return at < TABLE ? &nodes[at] : NULL;
	if (map == &sched_queues)
		return at < QUEUES ? &lines[at] : NULL;
	if (map == &sched_free)
		return at < QUEUES ? &numbers[at] : NULL;
	if (map == &guards)
		return at < 2 ? &listeners[at] : NULL;
	if (map == &queues)
		return at == 1 ? &requests : NULL;
	if (map == &sched_states)
		return &state;
	if (map == &sched_turns)
		return &turn;
	if (map == &sched_objects)
		return at < FIEF_OBJECT_SETS ? &objects[at] : NULL;
	return NULL;
}

void order_container(__u32 id, __u32 parent, __u32 share_ppm, __u32 limit_ppm, __u32 weight, __u32 priority)
{
	struct fief_container *c = &table[id];

	c->parent.id = parent;
	c->generation = ++generation; /* as of a number that had other containers before */
	c->state = FIEF_ALIVE;
	c->attributes[0].share_ppm = share_ppm;
	c->attributes[0].limit_ppm = limit_ppm;
	c->attributes[0].weight = weight;
	c->attributes[0].priority = priority;
	table[parent].attributes[0].reserved_ppm += share_ppm;
}

void order_reset(void)
{
	memset(table, 0, sizeof(table));
	memset(nodes, 0, sizeof(nodes));
	memset(lines, 0, sizeof(lines));
	memset(&requests, 0, sizeof(requests));
	memset(&machine, 0, sizeof(machine));
	memset(&state, 0, sizeof(state));
	memset(threads, 0, sizeof(threads));
	memset(tasks, 0, sizeof(tasks));
	memset(stored, 0, sizeof(stored));
	memset(places, 0, sizeof(places));
	memset(records, 0, sizeof(records));
	memset(cpus, 0, sizeof(cpus));
	own_cpu = 0;
	try_ns = 0;
	floor_reset();
	for (__u32 i = 1; i < QUEUES; i++)
		numbers[i - 1] = QUEUES - i;
	machine.free = QUEUES - 1;
	machine.cpus = 1;
	machine.late_step_ns = STEP_MOST_NS;
	table[FIEF_ROOT].state = FIEF_ALIVE;
	table[FIEF_ROOT].attributes[0].weight = 100;
	order_container(FIEF_USERS, FIEF_ROOT, 0, 0, 100, 100);
}

void order_move(__u32 id, __u32 parent)
{
	table[id].parent.id = parent;
}

/* Containers that are in a list, or have one. */
__u32 order_listed(void)
{
	__u32 listed = 0;

	for (__u32 id = 0; id < TABLE; id++)
		listed += nodes[id].linked || nodes[id].first;
	return listed;
}

void order_charge(__u32 id, __u64 ns)
{
	table[id].charged_own_ns += ns;
	for (; id != FIEF_ROOT; id = table[id].parent.id)
		table[id].charged_ns += ns;
}

/* In whose line. */
__u32 order_wait(__u32 id)
{
	id = line_find(id);
	waits_more(id);
	return id;
}

/* The number of its queue. */
__u32 order_queue(__u32 id)
{
	return queue_take(id);
}

void order_run(__u32 id)
{
	line_leave(id);
}

/* So many CPUs have the tree between them. */
void order_cpus(__u32 cpus)
{
	machine.cpus = cpus;
}

bool order_held(__u32 id)
{
	return is_held(id);
}

/* From now on another CPU has the tree's lock, and has been stopped; what this one tries in vain takes so long each time. 0: it has gone on. */
void order_stopped(__u64 ns)
{
	machine.lock = ns != 0;
	try_ns = ns;
}

/* How long this one waits for the lock. */
__u64 order_lock_waits(void)
{
	__u64 began = own_clock;

	machine_lock();
	return own_clock - began;
}

static __u32 looks;

/* How often the tree was looked at for the last pick. */
__u32 order_looks(void)
{
	return looks;
}

/* As a CPU does it: takes the one that waits alone, or searches until a container is found, or nothing is left. */
__s32 order_pick(__u64 now)
{
	__s32 found = alone_pick();

	looks = 0;
	if (found != PICK_AGAIN)
		return found;
	front_joins(&machine);
	alone_joins(&machine);
	machine.search = ++machine.searches;
	machine.vain = 0;
	for (; looks < 4096 && found == PICK_AGAIN; looks++)
		found = tree_pick(now);
	return found;
}

/* From now on that CPU chooses. */
void order_chooser(__u32 cpu)
{
	machine.chooser = chooser_of(cpu);
}

/* It has seen that none of those that wait in the line may run on it. */
void order_misfits(__u32 id)
{
	nodes[id].misfits |= machine.chooser;
}

/* ---- threads of one container ---- */

void line_reset(__u32 thread)
{
	memset(&threads[thread], 0, sizeof(threads[thread]));
}

void line_policy(__u32 id, __u32 policy, __u32 period_us, __u32 budget_us)
{
	table[id].attributes[0].policy = policy;
	table[id].attributes[0].period_us = period_us;
	table[id].attributes[0].budget_us = budget_us;
}

__u64 line_place(__u32 id, __u32 thread, __u32 weight, bool slept, __u64 now)
{
	threads[thread].thread.slept = slept;
	return place_take(id, &threads[thread], weight, now);
}

void line_runs(__u32 thread, __u64 sum_ns)
{
	place_runs(&threads[thread], sum_ns);
}

void line_ran(__u32 thread, __u64 sum_ns)
{
	place_ran(&threads[thread], sum_ns);
}

__u64 line_slice(__u32 id, __u32 thread)
{
	return slice_of(id, &threads[thread]);
}

/* ---- orders from outside ---- */

static __u32 answered, asked[FIEF_TURN_YIELDS + 1];
static __s64 ahead;
static __u64 takes;

static int own_object(__u32 number)
{
	(void)number;
	asked[turn.verb]++;
	own_clock += takes;
	turn.answered = answered;
	if (turn.verb == FIEF_TURN_PLACE)
		turn.at = turn.now_ns + ahead;
	return 0;
}

/* From now on: whether it answers, where it places threads, from now, and how long it thinks. Another one has the number. */
void object_answers(__u32 number, __u32 answers, __s64 ahead_ns, __u64 takes_ns)
{
	objects[number] = (struct fief_object){.instance = objects[number].instance + 1};
	memset(asked, 0, sizeof(asked));
	answered = answers;
	ahead = ahead_ns;
	takes = takes_ns;
}

__u32 object_asked(__u32 verb)
{
	return asked[verb];
}

__u64 object_faults(__u32 number)
{
	return objects[number].faults;
}

bool object_removed(__u32 number)
{
	return objects[number].removed;
}

/* ---- requests that wait ---- */

/* One more class of the queue, the number 1, of the first listener. */
__u32 requests_class(__u32 id)
{
	requests.class[requests.classes].container.id = id;
	requests.class[requests.classes].container.generation = table[id].generation;
	return requests.classes++;
}

void requests_line(__u32 class, bool waits)
{
	requests.bits = (requests.bits & ~(1u << class)) | (__u32)waits << class;
}

void requests_handed(__u32 class, __u64 at_ns, __u64 until_ns)
{
	requests.class[class].handed_ns = at_ns;
	requests.class[class].handed_until_ns = until_ns;
}

void requests_limit(__u32 class, __u64 again_ns)
{
	requests.class[class].again_ns = again_ns;
}

void requests_open(bool open, bool monitor)
{
	requests.open = open;
	requests.monitor = monitor;
}

void requests_worked(__u32 id, __u64 now)
{
	worked_note(id, now);
}

/* A thread of it runs on the second CPU. */
void requests_runs(__u32 id)
{
	machine.places[1].own = id + 1;
}

/* A thread that works for another one has its turn on the second CPU. */
void requests_lent(__u32 id)
{
	machine.places[1].turn = id + 1;
}

/* Whether a thread still serves the listener that ran so long since it received from a client of it. */
bool requests_served(__u64 ran_ns)
{
	struct sched_waiting w = {.queue = 1, .listener = 1, .received_ran_ns = 1000};

	return listener_lately(&w, 1000 + ran_ns);
}

/* Whose turn a thread of the first CPU has that works for `bound`. */
__u32 requests_lend(__u32 listener, __u32 bound, __u64 now)
{
	own_clock = now;
	return lent_best(1, listener, bound, bound, 0);
}

/* How long it took to find that out. */
__u64 requests_took(__u64 now)
{
	return own_clock - now;
}
