// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may change containers through their files: who may by the commands, which is root with its rights.
//!
//! The server is root whoever asks, so it asks about the process that the kernel names. A user without privilege has rights to containers
//! by the descriptors that a process holds and by the cgroup that it is in; neither comes with a write, so what the library would
//! allow cannot be found out here, and nothing is. Root without CAP_SYS_ADMIN, as in a container of the usual kind, has a quota with
//! the library, and root of a user namespace of its own is nobody: neither is an operator.
//! Limits: the process waits for the answer, so it is there while it is asked about; one that is killed meanwhile gets none.

use std::fs;
use std::path::PathBuf;

use fuser::Request;

/// linux/capability.h
const CAP_SYS_ADMIN: u32 = 21;

/// Whether the one who asks is an operator of this machine.
pub fn is_operator(request: &Request) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", request.pid())).unwrap_or_default();
    request.uid() == 0 && has_rights(&status) && shares(request, "user")
}

/// Whether the process ids that it writes are ours.
pub fn has_our_processes(request: &Request) -> bool {
    shares(request, "pid")
}

fn shares(request: &Request, namespace: &str) -> bool {
    let of = |process: &str| -> Option<PathBuf> { fs::read_link(format!("/proc/{process}/ns/{namespace}")).ok() };
    let own = of("self");
    own.is_some() && own == of(&request.pid().to_string())
}

/// By the lines of its status in /proc.
fn has_rights(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = line.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    rights.is_some_and(|rights| rights & (1 << CAP_SYS_ADMIN) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_without_its_rights_is_no_operator() {
        assert!(has_rights("Name:\tsh\nCapPrm:\t0\nCapEff:\t000001ffffffffff\n"));
        // what usual containers leave of root
        assert!(!has_rights("CapPrm:\t000001ffffffffff\nCapEff:\t00000000a80425fb\n"));
        assert!(!has_rights("CapEff:\t0\n"));
        assert!(!has_rights(""), "it is gone");
    }
}
