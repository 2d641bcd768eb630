// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent frees goes back to the machine. A reading of many containers takes some megabytes for some milliseconds; the
//! allocator would keep as much for each thread that ever made one.

use nix::libc;

/// Larger ones are mappings of their own, and gone when they are freed.
const LARGEST: i32 = 64 * 1024;

/// One arena, since threads seldom allocate at a time, and mappings for what is large.
pub(crate) fn keep_little() {
    // SAFETY: these set two numbers of the allocator; one that does not know them says so, and goes on as it was.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
    }
}
