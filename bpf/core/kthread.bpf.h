/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Kernel threads: what kind of work one does, which is the system's by name.
 */
#pragma once

#include "maps/cpus.bpf.h"

/* A kernel thread tells what it does by its name; the last one's is remembered, since NAPI threads come often. */
static __noinline __u32 kthread_look(struct task_struct *p)
{
	char comm[16];

	if (bpf_probe_read_kernel(comm, sizeof(comm), p->comm))
		return FIEF_SYSTEM_KTHREAD;
	if (comm[0] == 'k' && comm[1] == 'w' && comm[2] == 'o')
		return FIEF_SYSTEM_KWORKER;
	if (comm[0] == 'k' && comm[1] == 's' && comm[2] == 'o' && comm[3] == 'f')
		return FIEF_SYSTEM_KSOFTIRQD;
	if (comm[0] == 'n' && comm[1] == 'a' && comm[2] == 'p' && comm[3] == 'i' && comm[4] == '/')
		return FIEF_SYSTEM_NAPI;
	return FIEF_SYSTEM_KTHREAD;
}

static __always_inline __u32 kthread_kind(struct fief_cpu *cs, struct task_struct *p)
{
	if (cs->kthread != p->pid) {
		cs->kthread_kind = kthread_look(p);
		cs->kthread = p->pid;
	}
	return cs->kthread_kind;
}
