// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flood of SYNs from the clients' end of a testbed, as a child process on the load's core.
//!
//! Open loop: it keeps its rate whatever the server does. It is bounded in time and count by its description, ends with
//! whoever started it, and refuses every interface that no running lab made. Its packets come from ports below [`FIRST_CLIENT_PORT`], which no client of
//! the lab uses; so the host that owns the spoofed addresses can stay silent ([`hush`]), as hosts that a spoofer chooses
//! are, and no RST helps the server.

pub mod frame;
mod request_sockets;
mod send;

pub use request_sockets::{forget_request_sockets, request_sockets};

use crate::error::{Context, Error, Kind, Result};
use fief_testkit::{NetNs, Process, Topology};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The testbed's clients use this port and those above.
pub const FIRST_CLIENT_PORT: u16 = 1024;
/// No flood may be longer or faster than this.
const MOST_SECONDS: f64 = 60.0;
const MOST_PER_SECOND: f64 = 1_000_000.0;
/// Above the load and its high client, so that the rate is kept; below the receiving threads.
const FIFO: i32 = 45;

/// What one flood does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flood {
    pub server: SocketAddrV4,
    pub server_mac: [u8; 6],
    pub sources: Sources,
    pub per_second: f64,
    pub seconds: f64,
    /// Each SYN comes a second time, the very same, after so many seconds; both count to the rate. 0: none does.
    pub again_s: f64,
    /// Between two bursts.
    pub pause_us: u32,
    pub cpu: usize,
}

/// Shorter would cost the core more wake-ups, longer would overflow the receiver's queue.
const PAUSE_US: u32 = 250;

/// A prefix whose addresses the SYNs come from, each as often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    pub first: Ipv4Addr,
    pub prefix_length: u8,
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    pub syns: u64,
    /// From the first SYN to the last.
    pub seconds: f64,
    /// CLOCK_MONOTONIC of the first SYN.
    pub began_ns: u64,
}

impl Sent {
    pub fn per_second(&self) -> f64 {
        self.syns as f64 / self.seconds
    }
}

/// A running flood.
#[derive(Debug)]
pub struct Running {
    process: Process,
}

const END: Duration = Duration::from_secs(30);

impl Flood {
    /// At port 80 of the testbed's server.
    pub fn of(topology: &Topology, sources: Sources, per_second: f64, seconds: f64) -> Flood {
        Flood {
            server: SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 80),
            server_mac: topology.link.near_mac.octets(),
            sources,
            per_second,
            seconds,
            again_s: 0.0,
            pause_us: PAUSE_US,
            cpu: Topology::load_cpu(),
        }
    }

    /// Starts it inside the clients' namespace.
    pub fn start(&self, clients: &NetNs) -> Result<Running> {
        let spec = serde_json::to_string(self).context("write down the flood")?;
        let mut command = crate::command::child("lab-flood")?;
        clients.enter(&mut command);
        command.arg(spec).stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = Process::start(command)?;
        Ok(Running { process })
    }
}

impl Running {
    /// Ends it, if its time is not over yet.
    pub fn end(mut self) -> Result<Sent> {
        drop(self.process.child().stdin.take());
        let output = self.process.finish(END)?;
        if !output.status.success() {
            return Err(Error::failed(format!("the flood ended with {}; its words are above", output.status)));
        }
        serde_json::from_slice(&output.stdout).context("read what the flood sent")
    }
}

impl Sources {
    pub const fn new(first: [u8; 4], prefix_length: u8) -> Sources {
        let [a, b, c, d] = first;
        Sources { first: Ipv4Addr::new(a, b, c, d), prefix_length }
    }

    /// The address that a random number picks.
    pub fn address(self, random: u32) -> Ipv4Addr {
        let host = u32::MAX.checked_shr(self.prefix_length.into()).unwrap_or(0);
        Ipv4Addr::from((u32::from(self.first) & !host) | (random & host))
    }
}

impl std::fmt::Display for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix_length)
    }
}

/// Makes the clients' host swallow what the server answers to a flood. Lasts as long as the testbed.
pub fn hush(topology: &Topology) -> Result<()> {
    crate::command::nft(
        &topology.clients,
        &format!(
            "table netdev hush {{
                 chain arriving {{
                     type filter hook ingress device {} priority 0
                     tcp dport < {FIRST_CLIENT_PORT} drop
                 }}
             }}",
            Topology::CLIENTS
        ),
    )
}

/// The child's main: the only argument is the flood as JSON.
pub fn flood_main(arguments: &[String]) -> Result<()> {
    let [spec] = arguments else {
        return Err(Error::new(Kind::Usage, "a flood takes one argument, its description in JSON"));
    };
    let flood: Flood = serde_json::from_str(spec).context("read the flood")?;
    if !(flood.seconds <= MOST_SECONDS && flood.per_second <= MOST_PER_SECOND) {
        return Err(Error::new(
            Kind::Usage,
            format!("a flood lasts {MOST_SECONDS} s and has {MOST_PER_SECOND} SYNs a second at most"),
        ));
    }
    fief_testkit::pin(0, flood.cpu)?;
    fief_testkit::set_fifo(0, FIFO)?;
    let sent = send::run(&flood, &ended_with_input())?;
    println!("{}", serde_json::to_string(&sent).context("write down what was sent")?);
    Ok(())
}

/// True once standard input ends: whoever started this asked for it, or is gone.
fn ended_with_input() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        flag.store(true, Ordering::Relaxed);
    });
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_address_is_inside_the_prefix(random: u32, prefix_length in 0u8..=32) {
            let sources = Sources::new([10, 88, 129, 7], prefix_length);
            let outside = u32::from(sources.address(random)) ^ u32::from(sources.first);
            prop_assert_eq!(outside.checked_shr(u32::from(32 - prefix_length)).unwrap_or(0), 0);
        }
    }

    #[test]
    fn a_flood_without_bounds_is_refused() {
        let flood = Flood {
            server: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80),
            server_mac: [2, 0, 0, 0, 0, 1],
            sources: Sources::new([10, 88, 0, 0], 16),
            per_second: 1e9,
            seconds: 1.0,
            again_s: 0.0,
            pause_us: PAUSE_US,
            cpu: 0,
        };
        let refused = |flood: &Flood| {
            flood_main(&[serde_json::to_string(flood).expect("JSON")]).is_err_and(|error| error.kind() == Kind::Usage)
        };
        assert!(refused(&flood));
        assert!(refused(&Flood { per_second: 1.0, seconds: 1e6, ..flood }));
    }
}
