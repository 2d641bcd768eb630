// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One who asks every few milliseconds for what the policy refuses. An answer by the server tells of a time without the policy.

use super::PORT;
use super::policy::REFUSED;
use crate::error::{Context, Result};
use fief_testkit::{Client, Family, Topology, pin, set_fifo};
use nix::libc;
use nix::sys::socket::sockopt::{IpBindAddressNoPort, Linger, ReceiveTimeout, SendTimeout};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket};
use nix::sys::time::TimeVal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(3);
/// What is not answered so long is neither refused nor served.
const PATIENCE_S: i64 = 2;
/// Behind those of the load.
const ADDRESS: u8 = 200;
/// The load's core is never idle, and the prober must not wait for it.
const PRIORITY: i32 = 45;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Refused,
    Served,
    None,
}

/// When the answer was there, and which.
pub type Probe = (Instant, Answer);

/// Asks until it is told to end; in the network namespace of the clients.
pub fn until(ended: &AtomicBool) -> Result<Vec<Probe>> {
    pin(0, Topology::load_cpu())?;
    set_fifo(0, PRIORITY)?;
    let mut probes = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let answer = ask().unwrap_or(Answer::None);
        probes.push((Instant::now(), answer));
        std::thread::sleep(EVERY.saturating_sub(begun.elapsed()));
    }
    Ok(probes)
}

fn ask() -> Result<Answer> {
    let what = "ask for what is refused";
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).context(what)?;
    let patience = TimeVal::new(PATIENCE_S, 0);
    setsockopt(&socket, SendTimeout, &patience).context(what)?;
    setsockopt(&socket, ReceiveTimeout, &patience).context(what)?;
    setsockopt(&socket, IpBindAddressNoPort, &true).context(what)?;
    let from = SocketAddr::new(Client::Middle.address(Family::V4, ADDRESS), 0);
    bind(socket.as_raw_fd(), &SockaddrStorage::from(from)).context(what)?;
    let server = SockaddrStorage::from(Topology::server_address(Family::V4, PORT));
    connect(socket.as_raw_fd(), &server).context(what)?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(format!("GET /{REFUSED} HTTP/1.0\r\nHost: server\r\n\r\n").as_bytes()).context(what)?;
    let mut head = [0; "HTTP/1.1 503".len()];
    stream.read_exact(&mut head).context(what)?;
    // without TIME_WAIT
    setsockopt(&stream, Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).context(what)?;
    Ok(if head.ends_with(b" 503") { Answer::Refused } else { Answer::Served })
}

/// The longest time without the policy, ms: from the last refusal before what was served to the first one after it.
pub fn gap_ms(probes: &[Probe]) -> f64 {
    let mut refused = probes.first().map(|probe| probe.0);
    let (mut is_served, mut longest) = (false, Duration::ZERO);
    for (place, &(at, answer)) in probes.iter().enumerate() {
        is_served |= answer == Answer::Served;
        let is_last = place + 1 == probes.len();
        if answer == Answer::Refused || is_last {
            if is_served {
                longest = longest.max(refused.map_or(Duration::ZERO, |before| at - before));
            }
            (refused, is_served) = (Some(at), false);
        }
    }
    longest.as_secs_f64() * 1e3
}

pub fn count(probes: &[Probe], wanted: Answer) -> usize {
    probes.iter().filter(|probe| probe.1 == wanted).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Answer::{None, Refused, Served};

    fn gap(probes: &[(u64, Answer)]) -> f64 {
        let begin = Instant::now();
        let probes: Vec<Probe> =
            probes.iter().map(|(ms, answer)| (begin + Duration::from_millis(*ms), *answer)).collect();
        gap_ms(&probes)
    }

    #[test]
    fn a_gap_lasts_from_refusal_to_refusal_round_what_was_served() {
        assert_eq!(gap(&[(0, Refused), (3, Refused), (500, Refused)]), 0.0, "nobody asked in between");
        assert_eq!(gap(&[(0, Refused), (3, Served), (6, Refused), (9, Served), (12, Served), (15, Refused)]), 9.0);
        assert_eq!(gap(&[(0, Refused), (3, None), (6, Refused)]), 0.0);
        assert_eq!(gap(&[(0, Refused), (3, None), (6, Served), (9, None), (12, Refused)]), 12.0);
    }

    #[test]
    fn a_gap_at_the_end_lasts_to_the_end() {
        assert_eq!(gap(&[(0, Refused), (3, Served), (8, Served)]), 8.0);
        assert_eq!(gap(&[(0, Served), (3, Served), (7, Refused)]), 7.0);
        assert_eq!(gap(&[]), 0.0);
    }
}
