/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The front door: what happens to a connection before a server accepts it. This file is a table of contents of the parts:
 *
 *   steer      which listening socket a connection reaches
 *   filter     listeners with a filter of their own
 *     filtered      as a connection finds them    witness       which of them have begun to listen
 *   door       what happens to a packet to a guarded port, with ack for those after a SYN, and bare for those without bytes
 *     handed        from one program to the next  leave         once it has its verdict
 *     context       what is known about it        found         which listener that is, as seen last
 *     guard         the guard of its listener     steering      told to steer within that lookup
 *     listening     which socket it is for        local         whether it is for this machine
 *     conntrack     what the kernel tracks    banned        whom the operator has shut out
 *     forward       connections to other machines passed        whether it was here, for steer
 *     freed         places of banned clients
 *   handshake  a SYN, answered and forgotten
 *     cookie        all that is remembered, with siphash
 *     kernel_handshake where the kernel answers   segment       makes the packet into an answer
 *   returned   a segment without a socket, by the cookie that it returns
 *     expected      its end, if all is as usual   guesses       at cookies, how many are checked
 *     proven        by whoever's cookie           kernel_cookie whether the kernel would take it
 *     missing       bytes before it               ran_out       cookies that were good once
 *     unheld        of the kernel's own cookie    penalised     of sources that were refused
 *     stray         segments of no connection
 *   police     whether a SYN is answered
 *     sources       which are proven              bucket        rates, of CPU time too (spent)
 *     prefixes      which flood                   aggregate     what one IPv6 network may take
 *     isolated      which are served last for it  load          the level of overload
 *     excepted      whom neither that nor penalties hold for
 *     newcomers     what the budget is spent on   resent        SYNs that came before
 *     idle          whether the CPU has time left plain         SYNs that the kernel answers, without multipath
 *   begin      the first bytes of a connection, ruled
 *     rest          what is behind them           tail          the end of a head that fits into no packet
 *     admit         makes the connection          admitted      what is remembered of it
 *     stream        its first bytes               hold          a header in pieces
 *     gather        bytes, and acknowledges them  tags          connections that were acknowledged
 *     requested     bytes before the socket       later         requests after the first
 *     ends          of handshakes that the kernel keeps, counted
 *     early         what comes before TCP is as far
 *     answer        what a refused client gets    reset         of a socket, in its client's name
 *     refuse        how a client is turned away
 *     grow          a segment to the whole stream heads         of later requests, until TCP has taken them
 *     repeated      held against them             noted         what of them passes
 *     next          request on a connection       judge         its verdict
 *     halves        begins of requests that wait  added         bytes behind one
 *     keep          one that has no end yet       refused       one that was refused
 *     labelled      a connection's label
 *     tracked       where its next request begins cut           the first bytes of a packet pass
 *     displaced     verdicts that others displace behind        what follows a request
 *     taken         whether TCP would take a segment
 *     arrive        which bytes to a socket are ruled
 *     chunks        of a body, line by line       chunked       on a socket
 *     ignored       bodies servers may not read   inside        the rules about these
 *     confirmed     whether the server leaves HTTP records      of TLS, behind a client hello
 *   rule       the verdict on a request
 *     ruling        what it says                  decide        what becomes of the request
 *     head          of HTTP: line, then header    normal        the path of the line
 *     version       that ends a line              clienthello   of TLS
 *     readings      what servers take it for      proxy         the PROXY head before it
 *     scan          whether a head can be complete
 *     known         heads that were ruled before
 *     match         the first rule that matches   hash, request what is compared, by bytes
 *   queue      which request the server gets next
 *     waiting       one that arrives, and waits   carrier       one that goes to the server
 *     deliver       its end: served, or answered  carried       until TCP has it
 *     places        how many the server has       clock         what moves the queue on
 *     ticks         time, while somebody waits    list          of what waits
 *     lined         what is kept of one           asked         one that its server has not got
 *     narrow        how many a server is to have  fair          turns of the clients of a class
 *     latency       what the policy promises a class
 *     late          the end of a body that makes its request whole
 *     follows       what else comes of one        turns         of clients, where requests cannot be read
 *     room          to wait in                    pipelined     requests of one packet
 *     windows       of clients that wait          charged       work on what waits
 *     turned        away, and what it is told     ended         one that a new policy does not name
 *   verdict    counts of verdicts, and notices
 *
 * The readers of frames and of TCP options, and the keys of flows and sources, stand in flow/. The object reuses the core's
 * maps. Since each hook has one program, the core's programs call the parts that register a server's listeners (register,
 * filter).
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "abi.h"
#include "kernel.bpf.h"

#include "steer.bpf.h"
#include "steering.bpf.h"
#include "filtered.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/bans.bpf.h"
#include "maps/blooms.bpf.h"
#include "maps/bucket_tables.bpf.h"
#include "maps/excepts.bpf.h"
#include "maps/guards.bpf.h"
#include "maps/loads.bpf.h"
#include "maps/meters.bpf.h"
#include "maps/notices.bpf.h"
#include "maps/passed.bpf.h"
#include "maps/rule_tables.bpf.h"
#include "maps/secrets.bpf.h"
#include "maps/source_buckets.bpf.h"
#include "maps/sources.bpf.h"
#include "maps/thresholds.bpf.h"
#include "maps/verdicts.bpf.h"
#include "police.bpf.h"
#include "rule.bpf.h"
#include "door.bpf.h"
#include "ended.bpf.h"
#include "ack.bpf.h"
#include "deliver.bpf.h"
#include "clock.bpf.h"
#include "made.bpf.h"

/* ---- a connection arrives ---- */

SEC("sk_lookup")
int lookup_steer(struct bpf_sk_lookup *ctx)
{
	__u32 address[4] __attribute__((aligned(8))), slot = policy_slot();
	struct steering *steering = steering_here();
	struct listener_found *listener;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	if (steering && steering->known)
		return steer_class(ctx, steering->listener, steering->serve, slot);
	lookup_local_address(ctx, address);
	listener = listener_search(slot, address, ctx->local_port);
	if (!listener)
		return steer_filtered(ctx, address);
	if ((!steering || !steering->looking) && unguarded_refuse(ctx, slot, listener->index))
		return SK_DROP;
	return steer_class(ctx, listener->index, listener->serve, slot);
}

/* For every socket below the top of the cgroups. */
SEC("cgroup_skb/ingress")
int made_keeps(struct __sk_buff *skb)
{
	return made_passes(skb);
}

/* ---- a packet arrives at an interface ---- */

SEC("tcx/ingress")
int ingress_guards(struct __sk_buff *skb)
{
	struct front_context front;
	int read;

	if (is_carrier(skb)) {
		bpf_tail_call(skb, &queue_programs, QUEUE_CARRIES);
		return TCX_DROP;
	}
	early_read(skb);
	front.packet = (struct packet){};
	read = packet_read(skb, &front.packet);
	if (read == PACKET_BLIND)
		return blind_rule(policy_slot());
	if (read)
		return TCX_NEXT;
	front.slot = policy_slot();
	if (!port_guarded(front.slot, front.packet.destination_port))
		return TCX_NEXT;
	context_clear(&front); /* most packets are for other ports, and come no further */
	return door(skb, &front);
}

/* Called by ingress_guards. */
SEC("tcx/ingress")
int ack_guards(struct __sk_buff *skb)
{
	const struct arrival *from = ack_take();
	struct front_context front;
	int verdict;

	if (!from)
		return TCX_NEXT;
	context_begin(&front, from);
	verdict = segment_arrives(skb, &front);
	if (queue_asked(&front, verdict)) {
		bpf_tail_call(skb, &queue_programs, QUEUE_DECIDES);
		count_error(FIEF_ERR_DOOR);
	}
	return door_leave(skb, &front, verdict);
}

/* Called by ack_guards. */
SEC("tcx/ingress")
int queue_decides(struct __sk_buff *skb)
{
	struct queue_handed *from = queue_handed_get();
	struct front_context front;

	if (!from)
		return TCX_DROP;
	context_begin(&front, queue_arrival(from));
	front.isolated = from->isolated;
	front.connected = from->connected;
	front.queued = from->queued;
	return door_leave(skb, &front, queue_take(skb, &front, from->what));
}

/* Called by ingress_guards. */
SEC("tcx/ingress")
int queue_carries(struct __sk_buff *skb)
{
	struct queue_handed *to = queue_handed_get();

	if (!to || carrier_load(skb, to))
		return TCX_DROP;
	bpf_tail_call(skb, &queue_programs, QUEUE_DELIVERS);
	return TCX_DROP;
}

/* Called by queue_carries. */
SEC("tcx/ingress")
int queue_delivers(struct __sk_buff *skb)
{
	return carrier_deliver(skb);
}

/*
 * Run by user space, which names a queue by the priority and tells by the mark what becomes of those that wait there. How many are still
 * there.
 */
SEC("tcx/ingress")
int queue_opens(struct __sk_buff *skb)
{
	return ended_tell(skb, skb->priority, skb->mark);
}

/* Where what was sent round for a queue's sake comes back. */
SEC("tcx/ingress")
int ingress_ticks(struct __sk_buff *skb)
{
	if (is_carrier(skb))
		bpf_tail_call(skb, &queue_programs, QUEUE_CARRIES);
	return TCX_DROP;
}

/* At the loopback, where it has no door. */
SEC("tcx/ingress")
int ingress_notes(struct __sk_buff *skb)
{
	own_note(skb);
	return TCX_NEXT;
}

/* ---- a packet leaves by an interface ---- */

SEC("tcx/egress")
int egress_confirms(struct __sk_buff *skb)
{
	struct bpf_sock *sk = upgrade_seen() ? skb->sk : NULL;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk)
		answer_look(skb, sk);
	return TCX_NEXT;
}

/* Where some listener has a queue. */
SEC("tcx/egress")
int egress_clocks(struct __sk_buff *skb)
{
	return answer_leaves_by(skb);
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(state_clocks, const struct sock *sk, const int oldstate, const int newstate)
{
	return socket_ends((struct sock *)sk, newstate);
}

/*
 * The same. While a CPU runs a tracepoint's program for a thread, an interrupt does not run it again there (prog->active), and a connection
 * that ends in the interrupt would keep its place: of two programs one is not interrupted.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(state_reclocks, const struct sock *sk, const int oldstate, const int newstate)
{
	return socket_ends((struct sock *)sk, newstate);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
