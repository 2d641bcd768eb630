/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The kernel that parts of the core object find in user space: one CPU, tables of this process, threads that are records only.
 *
 * What the C library for BPF says with relocations is said by plain reads here; what the parts under test never come to answers 0.
 */
#pragma once

#include "vmlinux.h"

#define SEC(name)	     __attribute__((unused))
#define __uint(name, value)  int(*name)[value]
#define __type(name, value)  __typeof__(value) *name
#define __array(name, value) __typeof__(value) *name[]
#define __always_inline	     inline __attribute__((always_inline))
#define __noinline	     __attribute__((noinline, unused))
#define __weak		     __attribute__((weak))
#define __arg_nonnull
#define __ksym
#define __kconfig
#define can_loop		     true
#define barrier()		     __asm__ volatile("" ::: "memory")
#define barrier_var(name)	     __asm__ volatile("" : "+r"(name))
#define bpf_for(i, start, end)	     for (i = (start); i < (end); i++)
#define bpf_for_each(kind, one, ...) for (one = NULL; one;)
#define container_of(at, type, name) ((type *)((char *)(at) - __builtin_offsetof(type, name)))
#define KERNEL_VERSION(a, b, c)	     (((a) << 16) + ((b) << 8) + (c))

/* CO-RE */
#define bpf_core_cast(pointer, type)	     ((type *)(pointer))
#define bpf_core_field_exists(...)	     0
#define bpf_core_field_offset(...)	     0
#define bpf_core_type_exists(...)	     0
#define bpf_core_enum_value_exists(...)	     0
#define bpf_core_enum_value(...)	     0
#define bpf_core_read_str(...)		     0
#define bpf_ksym_exists(symbol)		     0
#define READ_2(a, b)			     ((a)->b)
#define READ_3(a, b, c)			     ((a)->b->c)
#define READ_4(a, b, c, d)		     ((a)->b->c->d)
#define READ_5(a, b, c, d, e)		     ((a)->b->c->d->e)
#define READ_BY(_1, _2, _3, _4, _5, by, ...) by
#define BPF_CORE_READ(...)		     READ_BY(__VA_ARGS__, READ_5, READ_4, READ_3, READ_2, 0)(__VA_ARGS__)
#define BPF_CORE_READ_BITFIELD(a, b)	     ((a)->b)
#define BPF_CORE_READ_STR_INTO(...)	     0
#define BPF_SNPRINTF(...)		     0

/* helpers */
#define bpf_htonl(n)			__builtin_bswap32(n)
#define bpf_ntohl(n)			__builtin_bswap32(n)
#define bpf_htons(n)			__builtin_bswap16(n)
#define bpf_ntohs(n)			__builtin_bswap16(n)
#define bpf_cpu_to_be64(n)		__builtin_bswap64(n)
#define bpf_be64_to_cpu(n)		__builtin_bswap64(n)
#define bpf_get_smp_processor_id()	0
#define bpf_get_current_uid_gid()	0
#define bpf_probe_read_user(...)	(-EFAULT)
#define bpf_probe_read_kernel(...)	(-EFAULT)
#define bpf_skb_load_bytes(...)		(-EFAULT)
#define bpf_map_lookup_percpu_elem(...) NULL
#define bpf_skc_to_tcp_sock(...)	NULL
#define bpf_skc_to_mptcp_sock(...)	NULL
#define bpf_skc_to_unix_sock(sk)	((struct unix_sock *)(sk))
#define bpf_skb_cgroup_id(...)		0
#define bpf_skb_ancestor_cgroup_id(...) 0
#define bpf_ringbuf_output(...)		0
#define bpf_spin_lock(...)		((void)0)
#define bpf_spin_unlock(...)		((void)0)
#define bpf_map_delete_elem(...)	0

static void *bpf_map_lookup_elem(const void *map, const void *key);
static long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags);
static long bpf_map_push_elem(const void *map, const void *value, __u64 flags);
static long bpf_map_pop_elem(const void *map, void *value);
static void *bpf_task_storage_get(const void *map, struct task_struct *p, void *value, __u64 flags);
static long bpf_task_storage_delete(const void *map, struct task_struct *p);
static void *bpf_sk_storage_get(const void *map, void *sk, void *value, __u64 flags);
static struct task_struct *bpf_get_current_task_btf(void);
static __u64 bpf_ktime_get_ns(void);
