/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Programs: what servers start for their clients, and where cgroups hold it. */
#pragma once

/* Where the processes of a container of programs belong, by the container's id; only while cgroups divide the CPU. */
struct fief_program_group {
	__u64 cgroup;	     /* its id */
	__u32 unified;	     /* 1: of version 2 */
	__u32 pid_namespace; /* of who moves processes: its inode */
};

/* A process that belongs in such a group and is in another one. */
struct fief_program {
	__s32 pid; /* in that namespace */
	__u32 container;
};
