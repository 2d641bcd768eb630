/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The front door: what happens to a connection before a server accepts it. Table of contents.
 *
 *   steer.bpf.h     which listening socket a connection reaches      sk_lookup
 *   register.bpf.h  how sockets become listeners of a class          set/getsockopt, bind, listen
 *   filter.bpf.h    listeners with a filter of their own             set, bind, listen, close
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

char LICENSE[] SEC("license") = "Dual BSD/GPL";
