// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users without privilege.

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

/// The user whom the machine gives nothing.
pub const NOBODY: u32 = 65534;

/// The process goes on as another user, without capabilities.
pub fn become_user(uid: u32) {
    setgroups(&[]).expect("root");
    setresgid(Gid::from_raw(uid), Gid::from_raw(uid), Gid::from_raw(uid)).expect("root");
    setresuid(Uid::from_raw(uid), Uid::from_raw(uid), Uid::from_raw(uid)).expect("root");
}
