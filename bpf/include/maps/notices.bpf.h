/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Drops and refusals, each told at most once in FIEF_NOTICE_NS. When nobody reads, the newest are lost. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} notices SEC(".maps");
