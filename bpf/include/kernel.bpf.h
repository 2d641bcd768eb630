/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Constants of the kernel's that are macros there and so not in its BTF. */
#pragma once

#define EPERM		  1
#define ENOENT		  2
#define ESRCH		  3
#define ENXIO		  6
#define E2BIG		  7
#define EBADF		  9
#define EAGAIN		  11
#define ENOMEM		  12
#define EACCES		  13
#define EFAULT		  14
#define EBUSY		  16
#define EEXIST		  17
#define EINVAL		  22
#define ENFILE		  23
#define EMFILE		  24
#define ENOSPC		  28
#define ENOSYS		  38
#define ENOTEMPTY	  39
#define EPROTONOSUPPORT	  93
#define EOPNOTSUPP	  95
#define EADDRINUSE	  98
#define EADDRNOTAVAIL	  99
#define ESTALE		  116
#define EDQUOT		  122
#define CAP_KILL	  5
#define CAP_SYS_ADMIN	  21
#define AF_UNIX		  1
#define AF_INET		  2
#define AF_INET6	  10

#define PF_EXITING	  0x00000004
#define SIGNAL_GROUP_EXIT 0x4 /* signal->flags: killed as a whole */
#define PF_KTHREAD	  0x00200000
#define TASK_DEAD	  0x00000080
#define TASK_NOLOAD	  0x00000400

#define ETH_P_IP	  0x0800
#define ETH_P_IPV6	  0x86dd
#define ETH_P_8021Q	  0x8100
#define ETH_P_8021AD	  0x88a8
#define ETH_ALEN	  6
#define PACKET_HOST	  0

#define SOCK_RCVBUF_LOCK  2
#define MSG_PEEK	  2

/* headers in front of TCP in IPv6 */
#define NEXTHDR_HOP	 0
#define NEXTHDR_ROUTING	 43
#define NEXTHDR_FRAGMENT 44
#define NEXTHDR_AUTH	 51
#define NEXTHDR_DEST	 60
#define NEXTHDR_MOBILITY 135

#ifndef NULL
#define NULL ((void *)0)
#endif
