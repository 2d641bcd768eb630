/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Prefixes of clients, patterns of requests and what the rules say of them; of each policy slot. */
#pragma once

#include "policy_tables.bpf.h"

POLICY_TABLES(rule_tables, struct fief_line);
