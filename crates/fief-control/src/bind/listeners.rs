// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listening sockets of a running process.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fief_bpf::{Context, process};
use nix::sys::socket::{SockaddrStorage, getsockname, getsockopt, sockopt};

use crate::{cgroup, listening, namespace};

/// A copy of a listening socket, with its address.
pub(super) type Listener = (OwnedFd, SocketAddr);

/// All of them; none if the process has ended.
pub(super) fn of_process(pid: i32) -> Vec<Listener> {
    let Ok(process) = process::open(pid) else { return Vec::new() };
    let copies = cgroup::descriptors(pid).into_iter().filter_map(|fd| process::take_fd(process.as_fd(), fd).ok());
    copies.filter_map(|copy| address(&copy).map(|address| (copy, address))).collect()
}

/// Where it listens by those of its sockets that were made neither in this cgroup nor below, whose hooks therefore do not
/// see them; nowhere, if the kernel does not list sockets (its modules inet_diag and tcp_diag).
pub(super) fn unseen(pid: i32, own: &[Listener], path: &Path) -> Vec<SocketAddr> {
    let Ok(netns) = fs::metadata(format!("/proc/{pid}/ns/net")) else { return Vec::new() }; // it has ended
    if own.is_empty() {
        return Vec::new();
    }
    let list = || listening::find().context(|| "cannot list what listens".into());
    let Ok(all) = namespace::within(netns.ino(), list) else { return Vec::new() };
    let seen = cgroup::ids(path);
    let unseen = all.into_iter().flatten().filter(|socket| socket.cgroup.is_some_and(|id| !seen.contains(&id)));
    unseen.map(|socket| socket.address).filter(|address| own.iter().any(|(_, one)| one == address)).collect()
}

/// The address of a socket that listens.
fn address(socket: &OwnedFd) -> Option<SocketAddr> {
    if !getsockopt(socket, sockopt::AcceptConn).ok()? {
        return None;
    }
    let name: SockaddrStorage = getsockname(socket.as_raw_fd()).ok()?;
    if let Some(v4) = name.as_sockaddr_in() {
        return Some(SocketAddr::from((v4.ip(), v4.port())));
    }
    name.as_sockaddr_in6().map(|v6| SocketAddr::from((v6.ip(), v6.port())))
}

/// Every address of the same family.
pub(super) fn any_of(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port())),
    }
}
