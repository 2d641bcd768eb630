// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that isolates by itself, without privilege and without a word in a policy (Resource Containers, section 5.7).
//!
//! ```text
//! fief run POLICY -- target/debug/examples/isolating 0.0.0.0:8080 [PREFIX]
//! ```
//!
//! It asks after each turn what was dropped before its listening socket. A network from which much is dropped gets a
//! listening socket of its own, of a container with priority 0, and connections of that socket are served when no others
//! wait. One thread serves one connection at a time, so its own order of accept is the order of service.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use fief::{Container, Filter, bind_filtered, drops};

/// Drops that a notice stands for, above which their network is isolated.
const MANY: u32 = 20;
/// Of an IPv4 and of an IPv6 address, unless the second argument says otherwise: one machine of a network is rarely alone.
const NETWORK: [u8; 2] = [24, 64];
/// Isolated networks at once; a source can be invented, so their number must be bounded.
const MOST: usize = 64;

struct Server {
    address: SocketAddr,
    everybody: TcpListener,
    /// Of isolated networks.
    last: Container,
    /// Lengths of the networks that are isolated, of IPv4 and of IPv6.
    network: [u8; 2],
    isolated: Vec<(IpAddr, TcpListener)>,
    /// The last notice that was looked at.
    told: Option<Duration>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("name the address to listen on, as 0.0.0.0:8080")?.parse()?;
    let length = std::env::args().nth(2).map(|word| word.parse()).transpose()?;
    isolating(address, length.map_or(NETWORK, |length| [length; 2]))
}

/// Serves until it fails.
pub fn isolating(address: SocketAddr, network: [u8; 2]) -> Result<(), Box<dyn std::error::Error>> {
    let (first, last) = (Container::create()?, Container::create()?);
    last.set_priority(0)?;
    let everybody = listen(address, Filter::any(), &first)?;
    let mut server = Server { address, everybody, last, network, isolated: Vec::new(), told: None };
    loop {
        server.wait()?;
        while let Some(stream) = server.next()? {
            // a client that goes away is no reason to end
            let _ = serve(stream);
            server.look()?;
        }
        server.look()?;
    }
}

fn listen(
    address: SocketAddr,
    filter: Filter,
    container: &Container,
) -> Result<TcpListener, Box<dyn std::error::Error>> {
    let listener = bind_filtered(address, filter, container)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Server {
    /// Until somebody connects, or it is time to look what was dropped.
    fn wait(&self) -> io::Result<()> {
        let listeners = std::iter::once(&self.everybody).chain(self.isolated.iter().map(|(_, listener)| listener));
        let poll = |listener: &TcpListener| libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut fds: Vec<_> = listeners.map(poll).collect();
        // SAFETY: the array has so many entries.
        match unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as _, 10) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// The next connection; those of isolated networks when nobody else waits.
    fn next(&self) -> io::Result<Option<TcpStream>> {
        for listener in std::iter::once(&self.everybody).chain(self.isolated.iter().map(|(_, listener)| listener)) {
            match listener.accept() {
                Ok((stream, _)) => return Ok(Some(stream)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Isolates the network that much was dropped from since the last look.
    fn look(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let Some(notice) = drops(&self.everybody)?.last.filter(|notice| self.told != Some(notice.time)) else {
            return Ok(());
        };
        self.told = Some(notice.time);
        let length = self.network[usize::from(notice.source.is_ipv6())];
        let network = network(notice.source, length);
        if notice.count < MANY
            || self.isolated.len() >= MOST
            || self.isolated.iter().any(|(other, _)| *other == network)
        {
            return Ok(());
        }
        let listener = listen(self.address, Filter::network(network, length)?, &self.last)?;
        println!("isolated {network}/{length}: {}, {} at once", notice.reason, notice.count);
        self.isolated.push((network, listener));
        Ok(())
    }
}

/// The first address of the network around one.
fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4((u32::from(v4) & (u32::MAX << (32 - length))).into()),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) & (u128::MAX << (128 - length))).into()),
    }
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let _ = stream.read(&mut [0; 4096])?;
    stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
}
