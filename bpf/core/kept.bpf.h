/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Kept: references of former bindings, held back by the CPU where the thread unbound.
 *
 * Problem: threads on all CPUs bind to one class and leave it, request by request, and each wrote the one word of its
 * references twice. On two hyperthreads that alone made a bind and unbind a quarter dearer.
 * How: a thread that leaves a container leaves its reference with the CPU, by the container's number modulo FIEF_KEPT. A thread
 * that binds to it there takes the reference over. Containers end no later: the caller that releases the last handle calls back
 * the kept references. The keeping CPU checks for handles after keeping, and the releasing caller checks for kept references
 * after releasing, each after a full barrier: one of the two sees the other, and the word is swapped out once.
 * Limits: if other threads are bound to a container, the end of its last handle asks every CPU.
 */
#pragma once

#include "end.bpf.h"

/* What this CPU kept of `ref` is the caller's. */
static __always_inline bool kept_take(struct fief_ref ref)
{
	struct fief_cpu *cs = this_cpu();

	return cs && kept_swap_out(cs, ref_word(ref));
}

static __always_inline bool has_handles(struct fief_container *c)
{
	return *(volatile __u64 *)&c->refs & FIEF_HANDLES_MASK;
}

/* The caller's thread reference is this CPU's, unless nobody would call it back. Global, as container_put. */
__noinline int kept_put(__u32 id, __u32 generation)
{
	__u64 word = ref_word((struct fief_ref){id, generation}), old;
	struct fief_container *c = container_at(id);
	struct fief_cpu *cs = this_cpu();

	if (!c || id < FIEF_FIRST_ID)
		return 0;
	if (!cs)
		return container_put(id, FIEF_THREAD); /* a CPU beyond those that have a record */
	old = __sync_lock_test_and_set(&cs->kept[id & (FIEF_KEPT - 1)], word);
	if (old)
		container_put((__u32)old, FIEF_THREAD);
	if (!has_handles(c) && kept_swap_out(cs, word))
		container_put(id, FIEF_THREAD);
	return 0;
}
