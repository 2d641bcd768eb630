/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Multipath: listeners whose connections may have several paths, to which programs can hand no connection. */
#pragma once

/* Whether the socket, which stands below one of multipath TCP or alone, makes connections of several paths. */
static __always_inline bool is_multipath(struct tcp_sock *listening)
{
	return bpf_core_field_exists(listening->is_mptcp) && BPF_CORE_READ_BITFIELD(listening, is_mptcp);
}
