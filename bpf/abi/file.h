/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Files: labels of files, one for each inode. */
#pragma once

#include "container.h"

/* What the page cache knows a file by; a number that is reused has another generation. */
struct fief_file_key {
	__u64 inode;
	__u32 device;
	__u32 generation;
};

struct fief_file {
	struct fief_ref container;
	__u32 uid;	  /* whose quota the label counts against */
	__u32 is_counted; /* among those of all users */
};

#define FIEF_MAX_FILES	    65536
#define FIEF_FILES_PER_USER 1024
