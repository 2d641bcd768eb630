/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* An order that means ill: half of the places are in ten minutes. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <fief_policy.h>

static int beyond(struct fief_turn *turn)
{
	if (turn->verb == FIEF_TURN_PLACE)
		turn->at = turn->clock + (turn->random & 1 ? 600000000000ull : 0);
	return 1;
}

FIEF_POLICY(beyond);

char LICENSE[] SEC("license") = "Dual MIT/GPL";
