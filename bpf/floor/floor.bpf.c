/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Floor: programs that do nothing, for the places where Fief's are attached.
 *
 * Problem: a bound on what Fief costs may lie below what a program at all costs at these places.
 * How: the lab attaches these to the same places and measures in the same run (floor.rs finds the places).
 * Limits: a place is known here by its section; Fief's programs at cgroups are not among them yet.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

SEC("tp_btf/sched_switch")
int switch_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/task_newtask")
int fork_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/sched_process_free")
int free_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/cgroup_attach_task")
int attach_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/softirq_entry")
int softirq_in_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/softirq_exit")
int softirq_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int irq_in_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int irq_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int packet_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/napi_poll")
int poll_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/sock_recv_length")
int recv_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/sock_send_length")
int send_empty(void *ctx)
{
	return 0;
}

SEC("sk_lookup")
int lookup_empty(struct bpf_sk_lookup *ctx)
{
	return SK_PASS;
}

SEC("tcx/ingress")
int ingress_empty(struct __sk_buff *skb)
{
	return TCX_NEXT;
}

SEC("tcx/egress")
int egress_empty(struct __sk_buff *skb)
{
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
