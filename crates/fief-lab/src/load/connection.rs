// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection of the load: connect from a chosen address, send a request, read its response, and again if it is kept.

use super::postgres::{self, Postgres};
use super::response::Response;
use super::tls::Tls;
use super::{Close, Load, Protocol};
use nix::errno::Errno;
use nix::sys::socket::sockopt::{IpBindAddressNoPort, Linger};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, recv, send, setsockopt, socket,
};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    pub started: Instant,
    talk: Talk,
}

/// What is said over it.
#[derive(Debug)]
enum Talk {
    Http { sent: bool, response: Response },
    Tls(Box<Tls>),
    Postgres(Postgres),
}

/// What became of the connection after an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    Waiting,
    /// The response is complete, with this status.
    Complete(u16),
    Failed,
}

impl Connection {
    pub fn open(load: &Load, client: usize, request: usize) -> Result<Connection, Errno> {
        let family = if load.server.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Stream, flags, None)?;
        // Without it the kernel picks the port before it knows the destination, and runs out of them.
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
        let place = (client + request) % usize::from(load.addresses.max(1));
        let from = SocketAddr::new(follow(load.first, place as u32), 0);
        bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
        let started = Instant::now();
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(load.server)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        let talk = match load.protocol {
            Protocol::Http => Talk::Http { sent: false, response: Response::default() },
            Protocol::Tls => Talk::Tls(Box::default()),
            Protocol::Postgres { asks_tls } => Talk::Postgres(Postgres::new(asks_tls)),
        };
        Ok(Connection { socket: socket.into(), started, talk })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Goes on after an event; `failed` if the event told of an error.
    pub fn proceed(&mut self, request: &[u8], failed: bool, buffer: &mut [u8]) -> Progress {
        match &mut self.talk {
            Talk::Http { sent, response } => http(&self.socket, (sent, response), request, failed, buffer),
            Talk::Tls(tls) => tls.proceed(&self.socket, request, failed, buffer),
            Talk::Postgres(postgres) => postgres.proceed(&self.socket, request, failed, buffer),
        }
    }

    /// After a response; the connection is for the next request, if it is kept and the server did not end it.
    pub fn end(mut self, how: Close, buffer: &mut [u8]) -> Option<Connection> {
        if how == Close::Keep {
            let is_kept = match &mut self.talk {
                Talk::Http { sent, response } => {
                    *sent = false;
                    !std::mem::take(response).closes()
                }
                Talk::Tls(tls) => tls.keep(),
                Talk::Postgres(postgres) => postgres.keep(),
            };
            return is_kept.then_some(self);
        }
        if let Talk::Postgres(_) = self.talk {
            let _ = (&self.socket).write(&postgres::END);
        }
        match how {
            Close::Rst => {
                let now = nix::libc::linger { l_onoff: 1, l_linger: 0 };
                let _ = setsockopt(&self.socket, Linger, &now);
            }
            // Usually the server's FIN came with the last bytes; read, it lets this end close without TIME_WAIT here.
            _ => {
                let _ = recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty());
            }
        }
        None
    }
}

/// Goes on with a request of HTTP, and whether it was sent.
fn http(
    socket: &TcpStream,
    (sent, response): (&mut bool, &mut Response),
    request: &[u8],
    failed: bool,
    buffer: &mut [u8],
) -> Progress {
    if !*sent {
        if failed {
            return Progress::Failed;
        }
        return match send(socket.as_raw_fd(), request, MsgFlags::MSG_NOSIGNAL) {
            Ok(length) if length == request.len() => {
                *sent = true;
                Progress::Waiting
            }
            Err(Errno::EAGAIN) => Progress::Waiting,
            _ => Progress::Failed,
        };
    }
    // An event is told of once: all that has come is read, the end too.
    loop {
        match recv(socket.as_raw_fd(), buffer, MsgFlags::empty()) {
            Ok(0) if response.ends_here() => return Progress::Complete(response.status()),
            Ok(0) => return Progress::Failed,
            Ok(length) if response.take(&buffer[..length]) => {
                return Progress::Complete(response.status());
            }
            Ok(_) => {}
            Err(Errno::EAGAIN) => return Progress::Waiting,
            Err(_) => return Progress::Failed,
        }
    }
}

/// The n-th address after the first.
fn follow(first: IpAddr, n: u32) -> IpAddr {
    match first {
        IpAddr::V4(first) => Ipv4Addr::from(u32::from(first).wrapping_add(n)).into(),
        IpAddr::V6(first) => Ipv6Addr::from(u128::from(first).wrapping_add(n.into())).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_the_first() {
        assert_eq!(follow("10.77.2.1".parse().expect("v4"), 19), "10.77.2.20".parse::<IpAddr>().expect("v4"));
        assert_eq!(follow("fd77::2:1".parse().expect("v6"), 2), "fd77::2:3".parse::<IpAddr>().expect("v6"));
    }
}
