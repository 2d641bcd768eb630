// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of the kernel's own clock of a thread on this machine, found out by experiment.
//!
//! `sum_exec_runtime` counts softirqs on top of a thread as the thread's, except where the kernel accounts interrupts apart
//! (IRQ_TIME_ACCOUNTING, which can also be switched off at boot). Steal is computed from what that clock leaves out, so its
//! meaning must be known.

use std::net::UdpSocket;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Windows of the experiment; one without a foreign preemption is enough.
const WINDOWS: u32 = 60;
/// Datagrams in one window; about half of their time is receive work in a softirq on top of the sender.
const DATAGRAMS: u32 = 100;
/// Below this part of the wall clock even in the best window, softirqs are not the thread's.
const WHOLE: f64 = 0.9;

/// Whether a thread's clock leaves out the softirqs that interrupt it.
pub fn excludes_softirq() -> bool {
    best_window().is_some_and(|part| part < WHOLE)
}

/// The largest part of the wall clock that the thread's clock showed while it sent to itself over the loopback.
fn best_window() -> Option<f64> {
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    socket.connect(socket.local_addr().ok()?).ok()?;
    socket.set_nonblocking(true).ok()?;
    let mut best: f64 = 0.0;
    for _ in 0..WINDOWS {
        let (wall, own) = (now(ClockId::CLOCK_MONOTONIC)?, now(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
        for _ in 0..DATAGRAMS {
            // a full buffer drops the datagram after the same work
            let _ = socket.send(&[0; 64]);
        }
        let wall = now(ClockId::CLOCK_MONOTONIC)?.saturating_sub(wall);
        let own = now(ClockId::CLOCK_THREAD_CPUTIME_ID)?.saturating_sub(own);
        best = best.max(own.as_secs_f64() / wall.as_secs_f64());
        while socket.recv(&mut [0; 64]).is_ok() {}
    }
    Some(best)
}

fn now(clock: ClockId) -> Option<Duration> {
    clock_gettime(clock).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel says what it was built with where it shows its configuration.
    #[test]
    fn agrees_with_the_kernels_configuration() {
        let Ok(output) = std::process::Command::new("zgrep")
            .args(["-c", "^CONFIG_IRQ_TIME_ACCOUNTING=y", "/proc/config.gz"])
            .output()
        else {
            return;
        };
        match String::from_utf8_lossy(&output.stdout).trim() {
            "0" => assert!(!excludes_softirq(), "best window {:?}", best_window()),
            "1" => assert!(excludes_softirq(), "best window {:?}", best_window()),
            _ => {} // the kernel does not show it
        }
    }
}
