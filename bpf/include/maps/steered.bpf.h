/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The network namespace whose connections are steered: one, since a listening socket of another would be handed connections that its
 * namespace never saw. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fief_netns);
} steered SEC(".maps");
