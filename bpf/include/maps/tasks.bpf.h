/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The record of a thread while it is not running; while it runs the working copy is in its CPU's record.
 * Never hand out this map: who can write it forges any thread's binding. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct fief_task);
} tasks SEC(".maps");
