/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Resource containers for applications: create, bind, read; no privilege, no daemon, no library to link.
 *
 * A container is a file descriptor. It is inherited over fork(), passed over UNIX sockets, and ends with its last descriptor and
 * its last bound thread. The calls are socket options, answered in the kernel where the process lives in a unit that Fief manages
 * (`fief run`, `fief exec`, `fief manage`). Each call here returns -1 and sets errno where it fails: ENOPROTOOPT says that nobody
 * manages the process. The others are in errors.md.
 *
 *	int gold = fief_container_create(0, 0);
 *	if (gold >= 0 && fief_enter(gold) == 0) {
 *		serve(request); // what the thread does is gold's
 *		fief_leave(gold);
 *	}
 *
 * `fief interface` writes this file; its records are those of the kernel side.
 */
#ifndef FIEF_H
#define FIEF_H

#include <errno.h>
#include <linux/types.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

@RECORDS@

static inline int fief_set(int fd, int option, const void *value, socklen_t length)
{
	return setsockopt(fd, FIEF_SOL, option, value, length);
}

static inline int fief_get(int fd, int option, void *value, socklen_t length)
{
	int err;

	memset(value, 0, length); /* an older version in force tells less of a record */
	err = getsockopt(fd, FIEF_SOL, option, value, &length);
	/* IPv4's own answer to a level that it does not know */
	if (err && errno == EOPNOTSUPP)
		errno = ENOPROTOOPT;
	return err;
}

/* A socket of which a descriptor can be made, or -1; closes it where the option fails. */
static inline int fief_fresh(int option, const void *value, socklen_t length)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && fief_set(fd, option, value, length)) {
		int error = errno;

		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

/*
 * A new container below the one that the thread is bound to. `flags`: FIEF_CREATE_*; a weight is 1 to 10000, or 0 for the default. EINVAL:
 * other ones.
 */
static inline int fief_container_create(__u32 flags, __u32 weight)
{
	struct fief_create create;

	memset(&create, 0, sizeof(create));
	create.flags = flags;
	create.weight = weight;
	return fief_fresh(FIEF_CREATE, &create, sizeof(create));
}

/* The descriptor becomes one of a new container, as by create, and lets go of the former. */
static inline int fief_container_renew(int container)
{
	return fief_set(container, FIEF_RENEW, NULL, 0);
}

/* One more descriptor with the same rights. */
static inline int fief_container_duplicate(int container)
{
	return fief_set(container, FIEF_STAGE, NULL, 0) ? -1 : fief_fresh(FIEF_DUP, NULL, 0);
}

/* A descriptor of the container that the thread is bound to. */
static inline int fief_open_current(void)
{
	return fief_fresh(FIEF_OPEN_BINDING, NULL, 0);
}

/* The thread works for the container from here on, until fief_leave(). They nest, three deep. */
static inline int fief_enter(int container)
{
	return fief_set(container, FIEF_ENTER, NULL, 0);
}

static inline int fief_leave(int container)
{
	return fief_set(container, FIEF_LEAVE, NULL, 0);
}

/* The same until the next call: the cheapest way to switch. */
static inline int fief_bind_thread(int container)
{
	return fief_set(container, FIEF_BIND, NULL, 0);
}

/* Binds another thread, by its number. The caller must be allowed to signal it. */
static inline int fief_bind_other(int container, int thread)
{
	struct fief_bind order;

	memset(&order, 0, sizeof(order));
	order.thread = thread;
	return fief_set(container, FIEF_BIND, &order, sizeof(order));
}

/* The thread returns home. Any container's descriptor. */
static inline int fief_unbind(int container)
{
	return fief_set(container, FIEF_UNBIND, NULL, 0);
}

/*
 * From now on the thread is scheduled for the container that it is bound to alone, and no more for those that it served lately. Any
 * container's descriptor.
 */
static inline int fief_reset_scheduler_binding(int container)
{
	return fief_set(container, FIEF_RESET_SCHEDULER_BINDING, NULL, 0);
}

/* The container becomes a child of the one that the thread is bound to. */
static inline int fief_container_adopt(int container)
{
	return fief_set(container, FIEF_ADOPT, NULL, 0);
}

/* `attribute`: FIEF_ATTR_*. */
static inline int fief_container_set(int container, __u32 attribute, __u64 value)
{
	struct fief_set_attribute set;

	memset(&set, 0, sizeof(set));
	set.attribute = attribute;
	set.value = value;
	return fief_set(container, FIEF_SET_ATTRIBUTE, &set, sizeof(set));
}

/* At most FIEF_NAME_LEN - 1 bytes of ASCII, no '/' and no control character. EINVAL: another one. */
static inline int fief_container_set_name(int container, const char *name)
{
	return fief_set(container, FIEF_SET_NAME, name, (socklen_t)strlen(name));
}

/* FIEF_RIGHT_*: those that stay. Before a descriptor is passed on; they do not come back. */
static inline int fief_container_keep_rights(int container, __u32 rights)
{
	return fief_set(container, FIEF_DROP_RIGHTS, &rights, sizeof(rights));
}

/* With what running threads have used so far. */
static inline int fief_container_usage(int container, struct fief_usage *usage)
{
	return fief_get(container, FIEF_USAGE, usage, sizeof(*usage));
}

static inline int fief_container_attributes(int container, struct fief_attributes *attributes)
{
	return fief_get(container, FIEF_ATTRIBUTES, attributes, sizeof(*attributes));
}

static inline int fief_container_info(int container, struct fief_info *info)
{
	return fief_get(container, FIEF_INFO, info, sizeof(*info));
}

/* Any socket: work for it is the container's that the thread is bound to, and the container lives as long as the socket. */
static inline int fief_assign(int socket)
{
	return fief_set(socket, FIEF_ASSIGN, NULL, 0);
}

static inline int fief_unassign(int socket)
{
	return fief_set(socket, FIEF_UNASSIGN, NULL, 0);
}

/* The label of an open file, which ends with its last close; the policy has to say `label-files`. */
static inline int fief_assign_file(int file)
{
	__s32 number = file;

	return fief_fresh(FIEF_ASSIGN_FILE, &number, sizeof(number));
}

/* A TCP socket, before bind(): it listens to these clients only. Others may share its address; all need SO_REUSEPORT. */
static inline int fief_listen_to(int socket, const struct fief_filter *filter)
{
	return fief_set(socket, FIEF_FILTER, filter, sizeof(*filter));
}

/* What a listening socket never saw. */
static inline int fief_dropped(int listener, struct fief_drops *drops)
{
	return fief_get(listener, FIEF_DROPS, drops, sizeof(*drops));
}

/*
 * A ring binds the calling thread without a call, for a thread that works for another container with each request. Only root that
 * may administer the machine (CAP_SYS_ADMIN) may open one, since what a ring costs the kernel falls on the thread that comes next;
 * root may give its rights up afterwards. A ring is its thread's own, and ends with it and with exec.
 *
 *	struct fief_ring_page *page = mmap(NULL, FIEF_RING_ALIGN, PROT_READ | PROT_WRITE,
 *					   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
 *	madvise(page, FIEF_RING_ALIGN, MADV_WIPEONFORK); // the child of a fork has no ring
 *	mlock(page, FIEF_RING_ALIGN);                    // the kernel reads it where it cannot wait for a disk
 *	fief_ring_begin(gold, page, now_ns);             // a function: CLOCK_MONOTONIC in nanoseconds
 *	fief_ring_put(gold, 1);
 *	fief_ring_bind(page, 1, now_ns());               // the thread works for gold from here on
 *	fief_ring_bind(page, FIEF_RING_HOME, now_ns());  // and here for its home
 *
 * After FIEF_RING_RECORDS binds comes a flush, before the next one: else none of them counts. In the child of a fork a bind does
 * nothing, and no call says so. The page may be unmapped once fief_ring_end has come back.
 */

#define FIEF_RING_SURE_NS 200000 /* a call takes a hundredth of it, where the thread keeps the CPU */
#define FIEF_RING_TURNS	  16

/*
 * `socket`: any of the unit's, as a container's descriptor is; for the next calls too. The kernel takes the difference of the clocks
 * from this call. Where the thread lost the CPU on its way there, it would stay wrong: the ring is opened again.
 */
static inline int fief_ring_begin(int socket, const struct fief_ring_page *page, __u64 (*now_ns)(void))
{
	struct fief_ring_open open;
	int turn;

	memset(&open, 0, sizeof(open));
	open.address = (__u64)(unsigned long)page;
	for (turn = 0; turn < FIEF_RING_TURNS; turn++) {
		open.now_ns = now_ns();
		if (fief_set(socket, FIEF_RING, &open, sizeof(open)))
			return -1;
		if (now_ns() - open.now_ns < FIEF_RING_SURE_NS)
			return 0;
		if (fief_set(socket, FIEF_RING, NULL, 0))
			return -1;
	}
	errno = EAGAIN;
	return -1;
}

/* The thread stays bound to what it is bound to. */
static inline int fief_ring_end(int socket)
{
	return fief_set(socket, FIEF_RING, NULL, 0);
}

/* The container is in this place, below FIEF_RING_PLACES, of the thread's ring; the home's place is taken. */
static inline int fief_ring_put(int container, __u32 place)
{
	return fief_set(container, FIEF_RING_PLACE, &place, sizeof(place));
}

/* Empties the place. The time of binds to it stays charged as it was. */
static inline int fief_ring_clear(int socket, __u32 place)
{
	return fief_set(socket, FIEF_RING_CLEAR, &place, sizeof(place));
}

/* Charges up to the last record, so that others see it. */
static inline int fief_ring_flush(int socket)
{
	return fief_set(socket, FIEF_RING_FLUSH, NULL, 0);
}

/* No call. The kernel may look between any two stores, on this CPU. */
static inline void fief_ring_bind(struct fief_ring_page *page, __u32 place, __u64 now_ns)
{
	volatile struct fief_ring_page *seen = page;
	__u32 head = seen->head;

	seen->records[head % FIEF_RING_RECORDS] = (now_ns << FIEF_RING_PLACE_BITS) | place;
	seen->head = head + 1;
}

#endif
