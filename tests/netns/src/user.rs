// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users without privilege.

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

/// The user whom the machine gives nothing.
pub const NOBODY: u32 = 65534;

/// The process stays root and has none of root's rights, as in a container of the usual kind.
pub fn drop_capabilities() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let (header, none) = (Header { version: 0x2008_0522, pid: 0 }, [0u32; 6]);
    // SAFETY: header and data are of the kernel's version 3 and live until the call returns.
    let err = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    assert_eq!(err, 0, "{}", std::io::Error::last_os_error());
}

/// The process goes on as another user, without capabilities.
pub fn become_user(uid: u32) {
    setgroups(&[]).expect("root");
    setresgid(Gid::from_raw(uid), Gid::from_raw(uid), Gid::from_raw(uid)).expect("root");
    setresuid(Uid::from_raw(uid), Uid::from_raw(uid), Uid::from_raw(uid)).expect("root");
}
