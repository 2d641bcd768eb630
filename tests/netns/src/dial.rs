// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP clients at an address of one's choice.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
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

/// As [`connect_from`], but the first bytes end the handshake, if they are sent within 0.2 s.
pub fn connect_with_bytes(
    namespace: &NetNs,
    from: SocketAddr,
    server: SocketAddr,
    bytes: &[u8],
) -> nix::Result<TcpStream> {
    let mut stream = namespace.run(|| dial_slowly(from, server)).unwrap()?;
    stream.write_all(bytes).expect("there is room");
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
    let fd = bound(from)?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(server))?;
    Ok(TcpStream::from(fd))
}

/// The kernel leaves the acknowledgement of the server's answer to the bytes that follow.
fn dial_slowly(from: SocketAddr, server: SocketAddr) -> nix::Result<TcpStream> {
    let fd = bound(from)?;
    let off: libc::c_int = 0;
    // SAFETY: the value and its length describe memory that lives until the call returns.
    let set = unsafe {
        let length = size_of_val(&off) as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_QUICKACK, (&raw const off).cast(), length)
    };
    nix::errno::Errno::result(set)?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(server))?;
    Ok(TcpStream::from(fd))
}

fn bound(from: SocketAddr) -> nix::Result<OwnedFd> {
    let family = if from.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(from))?;
    Ok(fd)
}
