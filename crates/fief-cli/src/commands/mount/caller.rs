// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks for a change: an operator, who may all that the commands may; a user, whose rights the kernel side finds; or one who may
//! not even read.
//!
//! The server is root whoever asks, so it asks about the thread that the kernel names. Root without CAP_SYS_ADMIN, as in a container of
//! the usual kind, is a user like others, as for the library; root of a user namespace of its own is the user who made that.
//! Limits: the thread waits for the answer, so it is there while it is asked about; one that is killed meanwhile waits too, once its
//! request is read. Only an aborted mount sends it on before that.

use std::fs;
use std::path::PathBuf;

use fief_control::Asker;
use fuser::Request;

use super::readers::Readers;

/// linux/capability.h
const CAP_SYS_ADMIN: u32 = 21;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Of this machine.
    Operator,
    User(Asker),
}

/// `None`: somebody of whom nothing is known, or who may not read.
pub fn of(request: &Request, readers: &Readers) -> Option<Caller> {
    // 0 is one of another PID namespace, of which the kernel tells no number
    let thread = i32::try_from(request.pid()).ok().filter(|&thread| thread > 0)?;
    // the name in it may be any bytes
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let uid = request.uid();
    if uid == 0 && has_rights(&status) && shares(request, "user") {
        return Some(Caller::Operator);
    }
    let reads = uid == 0 || groups(&status, request.gid()).any(|group| readers.has(group));
    reads.then_some(Caller::User(Asker { thread, uid }))
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

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// By the lines of its status in /proc.
fn has_rights(status: &str) -> bool {
    let rights = field(status, "CapEff:").and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    rights.is_some_and(|rights| rights & (1 << CAP_SYS_ADMIN) != 0)
}

/// Its group, and those beside it.
fn groups(status: &str, own: u32) -> impl Iterator<Item = u32> {
    let beside = field(status, "Groups:").unwrap_or_default().split_whitespace();
    beside.filter_map(|group| group.parse().ok()).chain([own])
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

    #[test]
    fn groups_are_its_own_and_those_beside_it() {
        let all = |status: &str| groups(status, 60).collect::<Vec<_>>();
        assert_eq!(all("Gid:\t60\t60\t60\t60\nGroups:\t4 27 1000 \nCapEff:\t0\n"), [4, 27, 1000, 60]);
        assert_eq!(all("Groups:\t\n"), [60]);
        // a thread cannot bring a line of its own in: the kernel escapes the name
        assert_eq!(all("Name:\tx\\nGroups:\\t0\nGroups:\t4\n"), [4, 60]);
    }
}
