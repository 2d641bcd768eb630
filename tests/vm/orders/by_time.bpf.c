/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* First come, first served, by the time alone: it is good also after the line had nobody for minutes. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <fief_policy.h>

static int by_time(struct fief_turn *turn)
{
	if (turn->verb == FIEF_TURN_PLACE && turn->slept)
		turn->at = turn->now_ns;
	return 1;
}

FIEF_POLICY(by_time);

char LICENSE[] SEC("license") = "Dual MIT/GPL";
