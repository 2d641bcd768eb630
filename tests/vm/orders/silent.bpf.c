/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* An order that means ill: it takes the CPU for itself, and says nothing. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <fief_policy.h>

static long round(__u64 index, void *context)
{
	return 0;
}

static int silent(struct fief_turn *turn)
{
	bpf_loop(1 << 20, round, NULL, 0);
	return 0;
}

FIEF_POLICY(silent);

char LICENSE[] SEC("license") = "Dual MIT/GPL";
