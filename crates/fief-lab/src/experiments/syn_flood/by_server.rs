// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The example server of crate `fief` that isolates by itself, under `fief run`.
//!
//! No policy names its address: it is told what the kernel drops before its listening socket, and gives the network that it
//! comes from a socket of its own, whose queue the flood fills from then on (Resource Containers, section 5.7). What it keeps is
//! measured after that: until the kernel has forgotten the handshakes of before, the queue of everybody else is full of them.

#[path = "../../../../fief/examples/isolating.rs"]
#[allow(dead_code)] // its own main
mod isolating;

use super::measure::FOREIGN;
use super::{Attack, PORT, isolation};
use crate::command::{DOWN, PolicyFile, own};
use crate::error::{Error, Kind, Result};
use fief_testkit::{Process, Topology, pin_command, wait_ready};
use nix::time::{ClockId, clock_gettime};
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

const POLICY: &str = "version = 1\n\n[container.lab]\n";
const LONGEST: Duration = Duration::from_secs(4);
/// The kernel forgets a handshake that nobody ends after a second, since it does not send its answer again here.
const FORGOTTEN: Duration = Duration::from_millis(1500);

/// The child's main: the port, and the length of the networks that it isolates.
pub fn isolating_main(arguments: &[String]) -> Result<()> {
    let usage = || Error::new(Kind::Usage, "an isolating server takes a port and the length of a prefix");
    let [port, length] = arguments else {
        return Err(usage());
    };
    let port: u16 = port.parse().map_err(|_| usage())?;
    let length = length.parse().map_err(|_| usage())?;
    isolating::isolating(([0, 0, 0, 0], port).into(), [length; 2]).map_err(|error| Error::failed(error.to_string()))
}

/// It and Fief, which come down when it is dropped.
#[derive(Debug)]
pub struct IsolatingServer {
    _process: Process,
    /// From the first SYN of a flood until it said that its network is isolated; NaN if it did not.
    pub isolated_s: f64,
    _policy: PolicyFile,
}

impl IsolatingServer {
    /// The server after a first flood: it has isolated the flood's network, and the handshakes that nobody ended are gone.
    pub fn start(topology: &Topology) -> Result<IsolatingServer> {
        let policy = PolicyFile::new(POLICY)?;
        let program = own()?;
        let words = ["lab-isolating".to_owned(), PORT.to_string(), FOREIGN.prefix_length.to_string()];
        let mut command = policy.run(&topology.server, program, words.map(Into::into).into())?;
        command.stdout(Stdio::piped());
        pin_command(&mut command, Topology::server_cpu());
        let mut process = Process::start(command)?;
        process.ask_first(DOWN);
        let said = isolations(process.child().stdout.take().expect("it was piped"));
        wait_ready(&topology.server, &mut process, PORT, None)?;
        let flood = Attack::Prefix(isolation::RATE).flood(topology, LONGEST.as_secs_f64()).expect("a flood");
        let flood = flood.start(&topology.clients)?;
        let at = said.recv_timeout(LONGEST);
        let sent = flood.end()?;
        let isolated = at.map(|at| at.saturating_sub(Duration::from_nanos(sent.began_ns)));
        std::thread::sleep(FORGOTTEN);
        let isolated_s = isolated.map_or(f64::NAN, |time| time.as_secs_f64());
        Ok(IsolatingServer { _process: process, isolated_s, _policy: policy })
    }
}

/// When the server says that it isolates a network.
fn isolations(words: impl Read + Send + 'static) -> mpsc::Receiver<Duration> {
    let (tell, said) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(words).lines().map_while(std::io::Result::ok);
        for _ in lines.filter(|line| line.starts_with("isolated ")) {
            let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
            // nobody asks for more than the first
            let _ = tell.send(now);
        }
    });
    said
}
