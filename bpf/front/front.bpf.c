/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The front door: what happens to a connection before a server accepts it. This file is a table of contents of the parts:
 *
 *   steer      which listening socket a connection reaches
 *   filter     listeners with a filter of their own, as a connection finds them
 *   door       what happens to a packet to a guarded port, with ack for those after a SYN
 *     context       what is known about it        found         which listener that is, as seen last
 *     guard         the guard of its listener     steering      told to steer within that lookup
 *     listening     which socket it is for        conntrack     what the kernel tracks
 *     forward       connections to other machines passed        whether it was here, for steer
 *   handshake  a SYN, answered and forgotten
 *     options       of the packet                 cookie        all that is remembered, with siphash
 *     kernel_cookie where the kernel answers      segment       makes the packet into an answer
 *     expected      its end, if all is as usual   guesses       at cookies, how many are checked
 *   police     whether a SYN is answered
 *     sources       which are proven              bucket        rates, of CPU time too (spent)
 *     prefixes      which flood                   aggregate     what one IPv6 network may take
 *     isolated      which are served last for it  load          the level of overload
 *     newcomers     what the budget is spent on   resent        SYNs that came before
 *     idle          whether the CPU has time left plain         SYNs that the kernel answers, without multipath
 *   admit      a connection after its verdict
 *     stream        its first bytes               hold          a header in pieces
 *     requested     bytes before the socket       later         requests after the first
 *     ends          of handshakes that the kernel keeps, counted
 *     answer        what a refused client gets    stray         segments of no connection
 *     grow          a segment to the whole stream heads         of later requests, until TCP has taken them
 *     halves        begins of requests that wait  labelled      a connection's label
 *     displaced     verdicts that others displace behind        what follows a request
 *     taken         whether TCP would take a segment
 *     chunks        of a body, line by line       ignored       bodies that servers may not read
 *     confirmed     whether the server leaves HTTP records      of TLS, behind a client hello
 *   rule       the verdict on a request
 *     header        of HTTP, with normal (paths)  clienthello   of TLS
 *     readings      what servers take it for      proxy         the PROXY head before it
 *     scan          whether a head can be complete
 *     match         the first rule that matches   hash, request what is compared, by bytes
 *   verdict    counts of verdicts, and notices
 *
 * The readers of frames, and the keys of flows and sources, stand in flow/. The object reuses the core's maps. Since each hook
 * has one program, the core's programs call the parts that register a server's listeners (register, filter).
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include "abi.h"
#include "kernel.bpf.h"

#include "steer.bpf.h"
#include "steering.bpf.h"
#include "filter.bpf.h"
#include "maps/admitted.bpf.h"
#include "maps/blooms.bpf.h"
#include "maps/bucket_tables.bpf.h"
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

/* ---- a connection arrives ---- */

SEC("sk_lookup")
int lookup_steer(struct bpf_sk_lookup *ctx)
{
	__u32 address[4], slot = policy_slot();
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

/* ---- a packet arrives at an interface ---- */

SEC("tcx/ingress")
int ingress_guards(struct __sk_buff *skb)
{
	struct front_context front = {.slot = policy_slot()};
	struct bpf_dynptr frame;
	int read;

	if (bpf_dynptr_from_skb(skb, 0, &frame))
		return TCX_NEXT;
	read = packet_read(skb, &frame, &front.packet);
	if (read)
		return read == PACKET_BLIND ? blind_rule(front.slot) : TCX_NEXT;
	if (!port_guarded(front.slot, front.packet.destination_port))
		return TCX_NEXT;
	return door(skb, &front);
}

/* Called by ingress_guards. */
SEC("tcx/ingress")
int ack_guards(struct __sk_buff *skb)
{
	struct front_context front = {};

	return ack_take(&front) ? TCX_NEXT : door_leave(skb, &front, segment_arrives(skb, &front));
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
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk)
		answer_look(skb, sk);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
