/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The core object: container table, descriptors, bind, charge. This file is a table of contents of the parts:
 *
 *   containers   the tree of containers           create       a new one, and whether there is room
 *   end          how a container ends             attributes   state over several containers
 *   descriptors  containers as file descriptors   options      the socket options that are the calls
 *   caller       what a thread asks for itself    bind         which container a thread works for
 *   request      what another thread asks for     record       what is known of a thread, until its end
 *   kept         references of former bindings    file         labels of files
 *   charge       one state machine per CPU        switch       context switches, life of threads
 *   stint        a thread between two switches    unseen       switches that ran no program
 *   pause        while nobody needs it
 *   steal        what the hypervisor had          kthread      what a kernel thread does
 *   receive      softirq, NAPI, packets           labels       which container a socket belongs to
 *   follow       unmodified event loops           usage        reading all of it
 *   admin        the control plane's operations   sweep        the references that are really held
 *   asked        what users ask of it
 *   drops        SYNs that the kernel dropped     told         notices to a server about them
 *   grown        records that callers ask for
 *   repeats      when answers to requests are sent again
 *   program      what servers start for their clients
 *   watch        by which sources a container is charged
 *   cost         which clients it was for         costliest    which of them keep a place
 *   served       what a thread worked for, for the scheduler
 *   ring         bound by what a thread wrote     ring_calls where its ring is, what it may name
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "abi.h"
#include "kernel.bpf.h"
#include "compat.bpf.h"
#include "hidden.bpf.h"
#include "owed.bpf.h"
#include "switch.bpf.h"
#include "receive.bpf.h"
#include "pause.bpf.h"
#include "follow.bpf.h"
#include "options.bpf.h"
#include "front/register.bpf.h"
#include "front/filter.bpf.h"
#include "asked.bpf.h"
#include "sweep.bpf.h"
#include "repeats.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* ---- charge: every thread of the machine passes here ---- */

SEC("tp_btf/sched_switch")
int BPF_PROG(switch_charges, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	return switch_charge(preempt, prev, next, prev_state);
}

SEC("tp_btf/task_newtask")
int BPF_PROG(newtask_inherits, struct task_struct *task)
{
	return newtask_inherit(task);
}

/* Behind the last switch away from a thread, which may not have been told. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(task_frees, struct task_struct *task)
{
	return task_free(task);
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(attach_adopts, struct cgroup *to, const char *path, struct task_struct *task, bool whole)
{
	return attach_adopt(to, task, whole);
}

/* ---- bind: what a server starts ---- */

SEC("tp_btf/sched_process_exec")
int BPF_PROG(exec_begins, struct task_struct *task)
{
	return program_begin(task);
}

/* In front of the new program's memory; behind it is too late for what the old one wrote in its own. */
SEC("tp_btf/sched_prepare_exec")
int BPF_PROG(exec_drains)
{
	return ring_finish();
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(exit_drains)
{
	return ring_finish();
}

/* User space has it run on a CPU whose thread's open stint is to be read. */
SEC("raw_tp")
int cpu_drains(void *ctx)
{
	ring_look(this_cpu(), 0);
	return 0;
}

/* User space has it run on each CPU before no time is charged any more. */
SEC("raw_tp")
int cpu_closes(void *ctx)
{
	return cpu_close();
}

/* ---- charge: receive contexts ---- */

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_enters, unsigned int vector)
{
	return softirq_enter(vector);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_leaves)
{
	return softirq_leave();
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(irq_enters)
{
	return irq_enter_charge();
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(irq_leaves)
{
	return irq_leave_charge();
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(packet_starts, struct sk_buff *skb)
{
	return packet_start(skb);
}

SEC("tp_btf/napi_poll")
int BPF_PROG(poll_ends)
{
	return poll_end();
}

SEC("cgroup_skb/ingress")
int ingress_charges(struct __sk_buff *skb)
{
	struct fief_ref to = unattributed();
	struct bpf_sock *sk = skb->sk;
	struct fief_label *label;
	__u64 client = 0;
	__u32 packets, discards = 0;
	bool listens;

	if (sk) {
		/* what is not a full socket has no storage */
		label = bpf_sk_storage_get(&labels, sk, 0, 0);
		/* read once: the compiler would keep the field's address, which the verifier refuses */
		listens = *(volatile __u32 *)&sk->state == BPF_TCP_LISTEN;
		if (listens && reaches_hidden(skb, sk, label))
			return 0;
		to = packet_container(skb, sk, label, listens);
		client = packet_client(skb, label);
	}
	packets = skb->gso_segs ? skb->gso_segs : 1;
	if (charges_scheduled() && !must_pass(skb))
		discards = excess_discards(ref_word(to), packets) & 1;
	barrier_var(discards); /* the verifier does not know what a global function returns */
	packet_charge(to, sk, client, packets, skb->len, discards & 1);
	return ~discards & 1;
}

SEC("cgroup_skb/egress")
int egress_charges(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct fief_ref by;

	if (!sk)
		return 1;
	by = socket_container(skb, bpf_sk_storage_get(&labels, sk, 0, 0));
	packet_sent(by, skb->gso_segs ? skb->gso_segs : 1, skb->len);
	return 1;
}

/* ---- bind: the socket a thread works on ---- */

/* A hook runs once for each of its programs, so what a server registers when it listens is called from here. */
SEC("sockops")
int sockops_label(struct bpf_sock_ops *ops)
{
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		established_label(ops);
	} else if (ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB) {
		listen_label(ops);
		class_listen(ops);
		filter_listen(ops);
	} else if (ops->op == BPF_SOCK_OPS_TIMEOUT_INIT) {
		repeats_spread(ops);
	}
	return 1;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(recv_follows, struct sock *sk, int bytes, int flags)
{
	return socket_event(sk, true, bytes > 0 && !(flags & MSG_PEEK));
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(send_follows, struct sock *sk, int bytes)
{
	return socket_event(sk, false, bytes > 0);
}

/* ---- descriptors ---- */

SEC("cgroup/setsockopt")
int sockopt_sets(struct bpf_sockopt *ctx)
{
	if (ctx->level == FIEF_SOL && ctx->optname == FIEF_CLASS)
		return class_ask(ctx);
	if (ctx->level == FIEF_SOL && ctx->optname == FIEF_FILTER)
		return filter_ask(ctx);
	return setsockopt_serve(ctx);
}

SEC("cgroup/getsockopt")
int sockopt_gets(struct bpf_sockopt *ctx)
{
	if (ctx->level == FIEF_SOL && ctx->optname == FIEF_CLASSES)
		return classes_answer(ctx);
	return getsockopt_serve(ctx);
}

SEC("cgroup/sock_release")
int release_puts(struct bpf_sock *sk)
{
	filter_release(sk); /* in any state: it may have been meant to listen, and have connected */
	release_serve(sk);
	return 1;
}

SEC("cgroup/bind4")
int bind4_steers(struct bpf_sock_addr *ctx)
{
	__u32 address[4] = {0, 0, MAPPED_PREFIX, ctx->user_ip4};
	struct fief_ref home = caller_home();
	int class, err;

	if (!address_refuse(ctx->sk))
		return 0;
	class = class_bind(ctx, address, &home);
	err = class ? 0 : filter_bind(ctx, address);
	if (class < 0 || err)
		return refuse(class < 0 ? class : err);
	if (class && ctx->sk) {
		ctx->user_ip4 = bpf_htonl(LOOPBACK_IPV4);
		ctx->user_port = bpf_htons(group_port(ctx->sk));
	}
	return ALLOW;
}

SEC("cgroup/bind6")
int bind6_steers(struct bpf_sock_addr *ctx)
{
	__u32 address[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	struct fief_ref home = caller_home();
	int class = class_bind(ctx, address, &home);
	int err = class ? 0 : filter_bind(ctx, address);

	if (class < 0 || err)
		return refuse(class < 0 ? class : err);
	if (class && ctx->sk) {
		/* bound to ::1 the kernel would make a socket of both families IPv6 only */
		bool only = is_ipv6_only(ctx->sk);

		ctx->user_ip6[0] = 0;
		ctx->user_ip6[1] = 0;
		ctx->user_ip6[2] = only ? 0 : MAPPED_PREFIX;
		ctx->user_ip6[3] = bpf_htonl(only ? 1 : LOOPBACK_IPV4);
		ctx->user_port = bpf_htons(group_port(ctx->sk));
	}
	return ALLOW;
}

SEC("cgroup/post_bind4")
int bound4_filter(struct bpf_sock *ctx)
{
	__u32 address[4];

	mapped_ipv4(ctx->src_ip4, address);
	return filter_register(ctx, address);
}

SEC("cgroup/post_bind6")
int bound6_filter(struct bpf_sock *ctx)
{
	__u32 address[4] = {ctx->src_ip6[0], ctx->src_ip6[1], ctx->src_ip6[2], ctx->src_ip6[3]};

	return filter_register(ctx, address);
}

SEC("cgroup/connect4")
int connect_refuses(struct bpf_sock_addr *ctx)
{
	return address_refuse(ctx->sk);
}

SEC("cgroup/sendmsg4")
int sendmsg_refuses(struct bpf_sock_addr *ctx)
{
	return address_refuse(ctx->sk);
}

/* ---- admin: BPF_PROG_RUN only ---- */

SEC("syscall")
int admin_init(struct fief_admin *a)
{
	return table_init(a);
}

SEC("syscall")
int admin_create(struct fief_admin *a)
{
	return admin_create_named(a);
}

SEC("syscall")
int admin_rename(struct fief_admin *a)
{
	return admin_rename_named(a);
}

SEC("syscall")
int admin_release(struct fief_admin *a)
{
	return admin_let_go(a);
}

SEC("syscall")
int admin_attributes(struct fief_admin *a)
{
	return admin_stage(a);
}

SEC("syscall")
int admin_set(struct fief_admin *a)
{
	return admin_set_one(a);
}

SEC("syscall")
int admin_flip(struct fief_admin *a)
{
	return admin_slot(a);
}

SEC("syscall")
int admin_usage(struct fief_admin *a)
{
	struct fief_usage usage = {};
	int err = usage_read(a->container, &usage);

	a->usage = usage; /* the context takes constant offsets only */
	return err;
}

SEC("syscall")
int admin_unit(struct fief_admin *a)
{
	return admin_unit_place(a);
}

SEC("syscall")
int admin_task(struct fief_admin *a)
{
	return admin_task_place(a);
}

SEC("syscall")
int admin_asked(struct fief_admin *a)
{
	return admin_asked_for(a);
}

SEC("syscall")
int admin_lost(struct fief_admin *a)
{
	return admin_let_lost_go(a);
}

SEC("syscall")
int admin_forget(struct fief_admin *a)
{
	return admin_unit_forget(a);
}

SEC("syscall")
int admin_userless(struct fief_admin *a)
{
	return admin_user_forget(a);
}

SEC("syscall")
int admin_unlabel(struct fief_admin *a)
{
	return admin_file_forget(a);
}

SEC("syscall")
int admin_files(struct fief_admin *a)
{
	return admin_file_programs(a);
}

SEC("syscall")
int admin_watch(struct fief_admin *a)
{
	return admin_watch_place(a);
}

SEC("syscall")
int admin_costs(struct fief_admin *a)
{
	return admin_cost_place(a);
}

SEC("syscall")
int admin_pauses(struct fief_admin *a)
{
	return admin_pause(a);
}

/* ---- sweep: iterators that the control plane reads ---- */

SEC("iter/bpf_sk_storage_map")
int sweep_fds(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	return descriptor_mark(ctx->meta->seq, ctx->value);
}

SEC("iter/bpf_sk_storage_map")
int sweep_labels(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	return label_mark(ctx->meta->seq, ctx->value, ctx->sk);
}

SEC("iter/bpf_sk_storage_map")
int sweep_files(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	return file_mark(ctx->meta->seq, ctx->value);
}

SEC("iter/task")
int sweep_tasks(struct bpf_iter__task *ctx)
{
	return task_mark(ctx->meta->seq, ctx->task);
}
