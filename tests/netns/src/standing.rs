// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that stands still, so that it is known what comes meanwhile.

use fief_testkit::{NetNs, lives, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::SOON;

/// All processes of the namespace but Fief's stand still while clients come.
pub fn while_it_stands<T>(server: &NetNs, come: impl FnOnce() -> T) -> T {
    let word = |pid: &u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let pids = server.pids().into_iter();
    let pids: Vec<u32> = pids.filter(|pid| word(pid, "comm").trim() != "fief").collect();
    let all = |signal| {
        for pid in &pids {
            // it may have ended
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    };
    all(Signal::SIGSTOP);
    wait_until(SOON, || pids.iter().all(|pid| word(pid, "stat").contains(") T ") || !lives(*pid))).unwrap();
    let come = come();
    all(Signal::SIGCONT);
    come
}
