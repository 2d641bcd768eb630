/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The listening sockets of the classes. An entry goes with its socket's last close, however that comes about.
 */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct fief_class_key);
	__type(value, __u64);
} class_listeners SEC(".maps");

/* Of the first socket of a class. */
static __always_inline struct fief_class_key class_key(__u32 listener, struct fief_ref container)
{
	return (struct fief_class_key){
	    .listener = listener,
	    .turn = container.generation >> (32 - FIEF_CLASS_SLOT_BITS) << FIEF_CLASS_TURN_BITS,
	    .container = container.generation << FIEF_CLASS_SLOT_BITS | container.id,
	};
}
