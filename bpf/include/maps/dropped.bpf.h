/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the kernel dropped at a listening socket. */
#pragma once

/* Who asked whom. */
struct fief_ends {
	__u8 source[16];
	__u8 destination[16];
	__u16 source_port;
	__u16 destination_port;
	__u32 pad;
};

/* All of it under the lock: SYNs and who asks come on several CPUs. */
struct fief_dropped {
	struct bpf_spin_lock lock;
	__u32 count; /* of the notice: */
	__u64 time_ns;
	struct fief_ends told;
	__u64 dropped;
	__u32 untold; /* since the notice, and whose was the last */
	__u32 pad;
	struct fief_ends untold_ends;
	struct fief_ends latest;   /* the last SYN: whether it was dropped, the socket's counter tells later */
	struct fief_ref latest_of; /* whose it was */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct fief_dropped);
} dropped SEC(".maps");
