/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Token buckets that the policy names, of each policy slot; all CPUs share each. */
#pragma once

#include "policy_tables.bpf.h"

POLICY_TABLES(bucket_tables, struct fief_bucket);
