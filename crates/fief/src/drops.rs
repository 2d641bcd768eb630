// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What never reached a listening socket: connection requests that the kernel dropped because a queue was full, and what
//! the policy refused before it (Resource Containers, section 5.7).

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::abi;
use crate::error::{Error, Result};
use crate::option;
use crate::reason::Reason;

/// What was dropped before a listening socket since it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drops {
    /// By the kernel, because a queue of the socket was full.
    pub overflowed: u64,
    /// By the policy, connection requests and requests, at any listener of the address; 0 where no policy names it, and where no class
    /// of its clients is below the home of the server's unit.
    pub refused: u64,
    /// The last notice; it changes at most once in 10 ms. The policy's are told of classes below the home of the server's unit.
    pub last: Option<Notice>,
}

/// Some drops, and whom one of them came from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Notice {
    /// When, by `CLOCK_MONOTONIC`: another notice has another time.
    pub time: Duration,
    /// Of the last one. Anybody can write any source into a connection request: take it for a reason to serve that
    /// network last, and not for a proof of who it was.
    pub source: IpAddr,
    /// Why; [`Reason::SynQueue`] is the kernel's, the others are the policy's.
    pub reason: Reason,
    /// How many it stands for.
    pub count: u32,
}

/// What was dropped before `listener`, a listening TCP socket of this process. One system call, cheap enough for each
/// turn of an event loop.
///
/// A server that is flooded can put the flood behind everything else, without privilege. The network gets a listening
/// socket of its own, and the server accepts from that one when no other has a connection: that order is the server's
/// doing. The priority orders the CPU time of threads while Fief's scheduler is on, and nothing else. `examples/isolating.rs` is
/// such a server as a whole.
///
/// ```no_run
/// use std::net::{IpAddr, SocketAddr, TcpListener};
/// use fief::{Container, Filter, bind_filtered, drops};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let address: SocketAddr = "0.0.0.0:8080".parse()?;
/// let (everybody, flood) = (Container::create()?, Container::create()?);
/// flood.set_priority(0)?;
/// let listener = bind_filtered(address, Filter::any(), &everybody)?;
/// let mut isolated: Vec<(IpAddr, TcpListener)> = Vec::new();
/// loop {
///     // ... accept from `listener` and serve; when it has nobody, from those in `isolated` ...
///     if let Some(notice) = drops(&listener)?.last
///         && notice.count > 100
///         && isolated.len() < 64 // sources can be invented
///         && !isolated.iter().any(|(source, _)| *source == notice.source)
///     {
///         // that address's connections have a queue of their own from here on
///         let length = if notice.source.is_ipv4() { 32 } else { 128 };
///         let filter = Filter::network(notice.source, length)?;
///         isolated.push((notice.source, bind_filtered(address, filter, &flood)?));
///     }
///     # break;
/// }
/// # Ok(())
/// # }
/// ```
///
/// Errors: not managed; invalid for a socket that does not listen.
pub fn drops(listener: &impl AsFd) -> Result<Drops> {
    let record: abi::fief_drops =
        option::get(listener.as_fd(), abi::FIEF_DROPS).map_err(|e| Error::new("cannot ask what was dropped", e))?;
    Ok(Drops { overflowed: record.dropped, refused: record.refused, last: notice(&record) })
}

/// A reason of a newer kernel side is none that could be told.
fn notice(record: &abi::fief_drops) -> Option<Notice> {
    let reason = Reason::from_number(record.reason)?;
    Some(Notice {
        time: Duration::from_nanos(record.time_ns),
        source: IpAddr::V6(Ipv6Addr::from(record.source)).to_canonical(),
        reason,
        count: record.count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_without_a_notice_has_none() {
        assert_eq!(notice(&abi::fief_drops::default()), None);
    }

    #[test]
    fn a_source_is_written_in_its_own_family() {
        let source = "10.1.2.3".parse::<std::net::Ipv4Addr>().expect("an address").to_ipv6_mapped().octets();
        let record =
            abi::fief_drops { source, reason: abi::FIEF_SYN_QUEUE, count: 3, time_ns: 7, ..Default::default() };
        let notice = notice(&record).expect("a notice");
        assert_eq!(notice.source.to_string(), "10.1.2.3");
        assert_eq!((notice.reason, notice.count, notice.time), (Reason::SynQueue, 3, Duration::from_nanos(7)));
    }
}
