/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the kernel side's headers need of the kernel's. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef short __s16;
typedef int __s32;
typedef long long __s64;

#ifndef __always_inline /* the C library has it too */
#define __always_inline inline __attribute__((always_inline))
#endif
