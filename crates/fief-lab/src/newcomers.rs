// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that nobody has seen before: each comes from an address of its own, asks once, and its time runs from its
//! first SYN to the last byte of the response.
//!
//! A child process in the clients' namespace. The clients are the kernel's own TCP, so a lost SYN comes again after 1 and 3
//! seconds, with the same number.

use crate::error::{Context, Error, Kind, Result};
use fief_testkit::{NetNs, Process, Topology};
use nix::libc;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Above the load, below the flood: nobody's time is measured on a core that others have.
const FIFO: i32 = 40;
const END: Duration = Duration::from_secs(30);
const REQUEST: &[u8] = b"GET /1k HTTP/1.0\r\nHost: server\r\n\r\n";
/// Of the file that is asked for.
const BODY: usize = 1024;

/// Who comes, and how long each waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Newcomers {
    pub server: SocketAddrV4,
    /// One client each, which the clients' host must own.
    pub addresses: Vec<Ipv4Addr>,
    pub per_second: f64,
    pub patience_s: f64,
}

/// How each fared, in their order: seconds until the whole response; none for those that were not served in time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    pub served_s: Vec<Option<f64>>,
    /// Of those not served, how many were reset or refused.
    pub refused: usize,
}

impl Newcomers {
    /// Runs them inside the namespace, to the end of the last one.
    pub fn come(&self, clients: &NetNs) -> Result<Waits> {
        let spec = serde_json::to_string(self).context("write down the newcomers")?;
        let mut command = crate::command::child("lab-newcomers")?;
        clients.enter(&mut command);
        command.arg(spec).stdin(Stdio::null()).stdout(Stdio::piped());
        let longest = Duration::from_secs_f64(self.addresses.len() as f64 / self.per_second + self.patience_s);
        let output = Process::start(command)?.finish(longest + END)?;
        if !output.status.success() {
            return Err(Error::failed(format!("the newcomers ended with {}", output.status)));
        }
        serde_json::from_slice(&output.stdout).context("read how the newcomers fared")
    }
}

/// The child's main: the only argument is the description as JSON.
pub fn newcomers_main(arguments: &[String]) -> Result<()> {
    let [spec] = arguments else {
        return Err(Error::new(Kind::Usage, "newcomers take one argument, their description in JSON"));
    };
    let newcomers: Newcomers = serde_json::from_str(spec).context("read the newcomers")?;
    fief_testkit::pin(0, Topology::load_cpu())?;
    fief_testkit::set_fifo(0, FIFO)?;
    println!("{}", serde_json::to_string(&come(&newcomers)).context("write down how they fared")?);
    Ok(())
}

fn come(newcomers: &Newcomers) -> Waits {
    let begin = Instant::now();
    let patience = Duration::from_secs_f64(newcomers.patience_s);
    let fared: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = newcomers
            .addresses
            .iter()
            .enumerate()
            .map(|(place, &address)| {
                let due = Duration::from_secs_f64(place as f64 / newcomers.per_second);
                scope.spawn(move || {
                    std::thread::sleep(due.saturating_sub(begin.elapsed()));
                    ask(address, newcomers.server, patience)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Fared::Refused)).collect()
    });
    let served = |fared: &Fared| match fared {
        Fared::Served(took) => Some(took.as_secs_f64()),
        Fared::Unanswered | Fared::Refused => None,
    };
    Waits {
        served_s: fared.iter().map(served).collect(),
        refused: fared.iter().filter(|fared| matches!(fared, Fared::Refused)).count(),
    }
}

#[derive(Debug)]
enum Fared {
    Served(Duration),
    Unanswered,
    Refused,
}

fn ask(from: Ipv4Addr, server: SocketAddrV4, patience: Duration) -> Fared {
    let begin = Instant::now();
    match exchange(from, server, begin + patience) {
        Ok(true) => Fared::Served(begin.elapsed()),
        // a response that is cut short, or none of the file
        Ok(false) => Fared::Refused,
        Err(_) if begin.elapsed() + Duration::from_millis(20) >= patience => Fared::Unanswered,
        Err(_) => Fared::Refused,
    }
}

/// Whether the response was whole.
fn exchange(from: Ipv4Addr, server: SocketAddrV4, end: Instant) -> std::io::Result<bool> {
    let mut stream = connect(from, server, end)?;
    stream.write_all(REQUEST)?;
    let (mut response, mut part) = (Vec::new(), [0; 4096]);
    loop {
        // a timeout of 0 would be none
        stream.set_read_timeout(Some(end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))))?;
        match stream.read(&mut part)? {
            0 => break,
            length => response.extend_from_slice(&part[..length]),
        }
    }
    let head = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| at + 4);
    let is_ok = response.split(|&byte| byte == b' ').nth(1) == Some(b"200");
    Ok(is_ok && head.is_some_and(|head| response.len() - head == BODY))
}

/// A blocking connect that ends with the patience, which SO_SNDTIMEO bounds.
fn connect(from: Ipv4Addr, server: SocketAddrV4, end: Instant) -> std::io::Result<TcpStream> {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
    };
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::from((from, 0))))?;
    let left = end.saturating_duration_since(Instant::now()).as_micros().max(1) as libc::time_t; // 0 would be no limit
    let left = libc::timeval { tv_sec: left / 1_000_000, tv_usec: left % 1_000_000 };
    setsockopt(&socket, sockopt::SendTimeout, &left.into())?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::from(server)))?;
    Ok(TcpStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_testkit::{Feature, Nginx, require};

    fn newcomers(server: &str, patience_s: f64) -> Newcomers {
        let addresses = (1..=3).map(|n| Ipv4Addr::new(10, 88, 7, n)).collect();
        Newcomers { server: server.parse().expect("an address"), addresses, per_second: 100.0, patience_s }
    }

    #[test]
    fn newcomers_that_nobody_hinders_are_all_served_at_once() {
        if !(require(Feature::NetNs) && require(Feature::Nginx)) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let _nginx = Nginx::start(&topology.server, 80).expect("nginx");
        let waits = topology.clients.run(|| come(&newcomers("10.77.0.1:80", 20.0))).expect("inside");
        assert!(waits.served_s.iter().all(Option::is_some) && waits.refused == 0, "{waits:?}");
    }

    #[test]
    fn one_without_an_answer_waits_its_patience_and_a_refused_one_does_not() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let refused = topology.clients.run(|| come(&newcomers("10.77.0.1:80", 20.0))).expect("inside");
        assert_eq!((refused.served_s, refused.refused), (vec![None; 3], 3));
        crate::command::nft(
            &topology.server,
            "table netdev t {\nchain c {\ntype filter hook ingress device sv priority 0\ndrop\n}\n}",
        )
        .expect("rules");
        let silent = topology.clients.run(|| come(&newcomers("10.77.0.1:80", 0.2))).expect("inside");
        assert_eq!((silent.served_s, silent.refused), (vec![None; 3], 0));
    }
}
