/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Steer: the listening socket of the client's class, on one address and port.
 *
 * Problem: accept takes connections in the order of their arrival; a kernel listener has one queue.
 * How: each class has its own listening socket, hidden on a loopback address (register.bpf.h). The lookup of a listener for a
 * new connection finds the class of its source and selects that socket.
 * Limits: if anything is missing (policy, rule, socket) the connection goes to the server's own listener: fail open. Packets
 * from outside cannot reach a hidden socket by its own address and port, since that is loopback. A local process could, and is
 * refused where the packet meets the socket (include/hidden.bpf.h).
 */
#pragma once

#include "classify.bpf.h"
#include "flow/socket.bpf.h"
#include "maps/class_listeners.bpf.h"

/* Assigns the first socket of the class that takes the connection: one of the other family refuses it. */
static __always_inline bool assign_class(struct bpf_sk_lookup *ctx, __u32 listener, struct fief_ref container)
{
	struct fief_class_key key = class_key(listener, container);
	int turn;

	bpf_for (turn, 0, FIEF_CLASS_TURNS) {
		struct bpf_sock *sk = bpf_map_lookup_elem(&class_listeners, &key);
		long refused = -1;

		key.turn++;
		if (!sk)
			continue;
		/* one that its server has shut stays in the map until it is closed, and would drop the client's packet */
		if (*(volatile __u32 *)&sk->state == BPF_TCP_LISTEN)
			refused = bpf_sk_assign(ctx, sk, 0);
		bpf_sk_release(sk);
		if (!refused)
			return true;
	}
	return false;
}

/* `listener`: its index. */
static __always_inline int steer_class(struct bpf_sk_lookup *ctx, __u32 listener, __u32 serve, __u32 slot)
{
	struct fief_client *client;
	__u32 address[4];

	if (serve == FIEF_SERVE_SHARED)
		return SK_PASS;
	lookup_remote_address(ctx, address);
	client = classify(slot, listener, address);
	if (client)
		assign_class(ctx, listener, client->container);
	return SK_PASS;
}
