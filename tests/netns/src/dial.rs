// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP clients at an address of one's choice.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use fief_testkit::{NetNs, wait_until};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

use crate::SOON;

/// How long a client waits for a word.
const PATIENCE: Duration = Duration::from_secs(8);

/// A connection from an address of the namespace; port 0: any. Nobody waits for ever for what comes over it.
pub fn connect_from(namespace: &NetNs, from: SocketAddr, server: SocketAddr) -> nix::Result<TcpStream> {
    let stream = namespace.run(|| dial(from, server)).unwrap()?;
    stream.set_read_timeout(Some(PATIENCE)).expect("a time above zero");
    Ok(stream)
}

/// A connection to a server that may not listen yet.
pub fn connect_once_served(namespace: &NetNs, from: SocketAddr, server: SocketAddr) -> TcpStream {
    let mut stream = None;
    wait_until(SOON, || {
        stream = namespace.run(|| dial(from, server)).unwrap().ok();
        stream.is_some()
    })
    .unwrap_or_else(|e| panic!("nobody listens at {server}: {e}"));
    stream.expect("it waited for one")
}

fn dial(from: SocketAddr, server: SocketAddr) -> nix::Result<TcpStream> {
    let family = if from.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(from))?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(server))?;
    Ok(TcpStream::from(fd))
}
