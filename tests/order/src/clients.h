/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The running thread's sockets, and what the scheduler is told of its clients and its time (core.c). */
#pragma once

/* ---- sockets ---- */

/* One of the running thread's: of TCP, or the end of a UNIX connection whose other end is socket `peer`. */
void core_socket(__u32 number, bool accepted, __u32 peer)
{
	static struct unix_address name;
	struct unix_sock *own = &sockets[number].own;
	bool is_unix = peer < SOCKETS;

	own->sk.__sk_common.skc_family = is_unix ? AF_UNIX : AF_INET;
	own->sk.sk_type = SOCK_STREAM;
	own->sk.sk_protocol = is_unix ? 0 : IPPROTO_TCP;
	own->sk.sk_max_ack_backlog = accepted && !is_unix;
	own->addr = accepted && is_unix ? &name : NULL;
	own->peer = is_unix ? &sockets[peer].own.sk : NULL;
}

/* Its connection is of a client whose class is `id`; FIEF_NO_ID: of none. */
void core_label(__u32 number, __u32 id)
{
	sockets[number].labelled = true;
	sockets[number].label = (struct fief_label){
	    .container = id == FIEF_NO_ID ? (struct fief_ref){id, 0} : own_ref(id),
	    .listener = FIEF_NO_LISTENER,
	};
}

/* The label is that of a policy's listener, and the scheduler is on. */
void core_listener(__u32 number, __u32 listener)
{
	sockets[number].label.listener = listener;
	cpu.scheduled = 1;
	cpu.received = 0;
}

/* What the scheduler will find of the running thread's clients. */
__u32 core_received(void)
{
	return cpu.received;
}

void core_receive(__u32 number, int bytes)
{
	socket_event(&sockets[number].own.sk, true, bytes > 0);
}

void core_send(__u32 number, int bytes)
{
	socket_event(&sockets[number].own.sk, false, bytes > 0);
}

/* ---- what the scheduler is told ---- */

/* Time is charged to `to` of a thread whose work is `from`'s to the scheduler (FIEF_NO_ID: whose it is charged to), or of a packet. */
void core_gather(__u32 to, __u32 from, bool receives, __u64 ns)
{
	cpu.allocation = from == FIEF_NO_ID ? (struct fief_ref){from, 0} : own_ref(from);
	cpu.receive = receives ? FIEF_RX_PACKET : FIEF_RX_NONE;
	charged_gather(&cpu, own_ref(to), ns);
	cpu.receive = FIEF_RX_NONE;
}

/* Its own use of the CPU; its and that of all below; and what of that does not count against its limit. */
void core_sums(__u32 id, __s64 *sums)
{
	sums[0] = table[id].charged_own_ns;
	sums[1] = table[id].charged_ns;
	sums[2] = table[id].unlimited_ns;
}
