// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab's own event-driven HTTP server, with the application's own preference for one class of clients.
//!
//! It is what a careful programmer can do on an unmodified kernel: one listener, and of all events that are ready the
//! high-priority connections come first, then one of the others, then it looks again. What it cannot change is the
//! order in which the kernel hands it connections, nor the time the kernel spends on packets of the others.

use crate::error::{Context, Error, Kind, Result};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

/// Watched in one epoll per class, so that "is anything high ready" is one cheap question.
struct Server {
    listener: TcpListener,
    high: Epoll,
    low: Epoll,
    /// Both of them and the listener, to sleep on.
    all: Epoll,
    connections: HashMap<RawFd, TcpStream>,
    response: Vec<u8>,
}

const LISTENER: u64 = 0;
const CLASSES: u64 = 1;

/// The child's main: the port. The high class is the testbed's.
pub fn server_main(arguments: &[String]) -> Result<()> {
    let port: u16 = arguments
        .first()
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| Error::new(Kind::Usage, "a server takes its port"))?;
    Server::new(port)?.serve()
}

fn is_high(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if address.octets()[..3] == [10, 77, 1])
}

impl Server {
    fn new(port: u16) -> Result<Server> {
        let listener = TcpListener::bind(("0.0.0.0", port)).context(format!("listen on port {port}"))?;
        listener.set_nonblocking(true).context("make the listener non-blocking")?;
        // std listens with a backlog of 128; the other servers of the lab have 4096.
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(4096).context("a backlog")?)
            .context("listen")?;
        let epoll = || Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an epoll");
        let (high, low, all) = (epoll()?, epoll()?, epoll()?);
        all.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER)).context("watch the listener")?;
        all.add(&high.0, EpollEvent::new(EpollFlags::EPOLLIN, CLASSES)).context("watch a class")?;
        all.add(&low.0, EpollEvent::new(EpollFlags::EPOLLIN, CLASSES)).context("watch a class")?;
        let mut response = b"HTTP/1.0 200 OK\r\nContent-Length: 1024\r\n\r\n".to_vec();
        response.extend([b'x'; 1024]);
        Ok(Server { listener, high, low, all, connections: HashMap::new(), response })
    }

    fn serve(mut self) -> Result<()> {
        loop {
            self.accept_all()?;
            // All that is high, then one of the others, then look again.
            let did_high = self.handle(true, 64)?;
            let did_low = self.handle(false, 1)?;
            if did_high + did_low == 0 {
                let mut events = [EpollEvent::empty(); 4];
                ignore_interrupt(self.all.wait(&mut events, EpollTimeout::NONE)).context("wait for events")?;
            }
        }
    }

    fn accept_all(&mut self) -> Result<()> {
        loop {
            let (connection, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error).context("accept"),
            };
            connection.set_nonblocking(true).context("make a connection non-blocking")?;
            let class = if is_high(peer.ip()) { &self.high } else { &self.low };
            let key = connection.as_raw_fd();
            class.add(&connection, EpollEvent::new(EpollFlags::EPOLLIN, key as u64)).context("watch a connection")?;
            self.connections.insert(key, connection);
        }
    }

    /// Handles up to `most` ready connections of one class; how many there were.
    fn handle(&mut self, high: bool, most: usize) -> Result<usize> {
        let class = if high { &self.high } else { &self.low };
        let mut events = [EpollEvent::empty(); 64];
        let count = ignore_interrupt(class.wait(&mut events[..most], EpollTimeout::ZERO)).context("look for events")?;
        let mut request = [0; 2048];
        for event in &events[..count] {
            let key = event.data() as RawFd;
            let Some(connection) = self.connections.get_mut(&key) else {
                continue;
            };
            match connection.read(&mut request) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Ok(length) if length > 0 => {
                    // A kilobyte always fits into an empty socket buffer.
                    let _ = connection.write(&self.response);
                }
                _ => {}
            }
            // Closing takes it out of its epoll.
            self.connections.remove(&key);
        }
        Ok(count)
    }
}

fn ignore_interrupt(result: nix::Result<usize>) -> nix::Result<usize> {
    match result {
        Err(Errno::EINTR) => Ok(0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_testkit::{Family, Feature, Topology, answers, get, require};

    #[test]
    fn answers_with_a_kilobyte() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let server = topology.server.run(|| Server::new(80)).expect("inside").expect("listens");
        // It serves until the process ends; its socket keeps the namespace that long.
        std::thread::spawn(|| server.serve());
        let address = Topology::server_address(Family::V4, 80);
        assert!(answers(&topology.clients, address));
        let response = get(&topology.clients, address, "/").expect("a response");
        assert_eq!(response.split("\r\n\r\n").nth(1).map(str::len), Some(1024));
    }

    #[test]
    fn only_the_testbeds_first_class_is_high() {
        assert!(is_high("10.77.1.9".parse().expect("an address")));
        assert!(!is_high("10.77.2.1".parse().expect("an address")));
    }
}
