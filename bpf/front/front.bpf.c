/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The front door: what happens to a connection before a server accepts it. A table of contents; the parts are beside
 * it.
 *
 *   steer     which listening socket a connection reaches
 *   register  how sockets become listeners of a class
 *   filter    listeners with a filter of their own
 *
 * It reuses the core's maps and owns the map of class listeners.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include "abi.h"
#include "kernel.bpf.h"

#include "steer.bpf.h"
#include "register.bpf.h"
#include "filter.bpf.h"

/* ---- a connection arrives ---- */

SEC("sk_lookup")
int lookup_steer(struct bpf_sk_lookup *ctx)
{
	__u32 address[4], slot = policy_slot();
	struct fief_listener *listener;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	local_address(ctx, address);
	listener = find_listener(slot, address, ctx->local_port);
	return listener ? steer_class(ctx, listener, slot) : steer_filtered(ctx, address);
}

/* ---- a server listens: options, bind, listen, close ---- */

SEC("cgroup/setsockopt")
int setopt_steer(struct bpf_sockopt *ctx)
{
	if (ctx->level != FIEF_SOL)
		return ALLOW;
	if (ctx->optname == FIEF_CLASS)
		return class_ask(ctx);
	if (ctx->optname == FIEF_FILTER)
		return filter_ask(ctx);
	return ALLOW;
}

SEC("cgroup/getsockopt")
int getopt_steer(struct bpf_sockopt *ctx)
{
	if (ctx->level != FIEF_SOL || ctx->optname != FIEF_CLASSES)
		return ALLOW;
	return classes_answer(ctx);
}

SEC("cgroup/bind4")
int bind4_steer(struct bpf_sock_addr *ctx)
{
	__u32 address[4] = {0, 0, MAPPED_PREFIX, ctx->user_ip4};
	int class = class_bind(ctx, address);
	int err = class ? 0 : filter_bind(ctx, address);

	if (class < 0 || err)
		return refuse(class < 0 ? class : err);
	if (class && ctx->sk) {
		ctx->user_ip4 = bpf_htonl(LOOPBACK_IPV4);
		ctx->user_port = bpf_htons(group_port(ctx->sk));
	}
	return ALLOW;
}

SEC("cgroup/bind6")
int bind6_steer(struct bpf_sock_addr *ctx)
{
	__u32 address[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	int class = class_bind(ctx, address);
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
	return filter_register(ctx);
}

SEC("cgroup/post_bind6")
int bound6_filter(struct bpf_sock *ctx)
{
	return filter_register(ctx);
}

SEC("sockops")
int sockops_steer(struct bpf_sock_ops *ctx)
{
	if (ctx->op != BPF_SOCK_OPS_TCP_LISTEN_CB)
		return 1;
	class_listen(ctx);
	filter_listen(ctx);
	return 1;
}

SEC("cgroup/sock_release")
int release_filter(struct bpf_sock *ctx)
{
	return filter_release(ctx);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
