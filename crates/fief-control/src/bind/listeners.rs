// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listening sockets of running processes.
//!
//! What their descriptors are is for their users to say, and so is how long it takes to close a copy of one. So the kernel says first which
//! sockets listen, links say who has them, and only those are copied, by a child that can be left behind ([`process::take_listening`]).
//! Limits: a socket is not found that listens in a network namespace in which none of the processes is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fief_bpf::{Context, process};
use nix::sys::socket::{SockaddrStorage, getsockname, getsockopt, sockopt};

use crate::listening::Listening;
use crate::{cgroup, listening, namespace, patience, sockets};

/// So many network namespaces are looked at. Any user can make some.
const NAMESPACES: usize = 100;
/// So long processes may hold up who copies their sockets.
const PATIENCE: Duration = Duration::from_secs(5);

/// A copy of a listening socket, with its address.
pub(super) type Listener = (OwnedFd, SocketAddr);

/// Those of all processes of a cgroup.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Each once, whoever shares it.
    pub(super) own: Vec<Listener>,
    /// Where they listen by sockets that were made neither in this cgroup nor below, whose hooks therefore do not see them; nowhere, if the
    /// kernel does not list sockets (its modules inet_diag and tcp_diag).
    pub(super) unseen: BTreeSet<SocketAddr>,
    /// There may be more: not all could be looked at, or taken.
    pub(super) is_cut: bool,
}

/// Of these processes, which are in the cgroup with this folder. `most`: links of descriptors that are read.
pub(super) fn find(processes: &[i32], folder: &Path, most: usize) -> Found {
    let (all, mut is_cut) = all_in(processes);
    let open = sockets::find(processes.to_vec(), &all.iter().map(|socket| socket.inode).collect(), most);
    is_cut |= open.is_cut;
    let mut by_process: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (process, descriptor) in open.by.values() {
        by_process.entry(*process).or_default().push(*descriptor);
    }
    let until = Instant::now() + PATIENCE;
    let mut own = Vec::new();
    for (pid, descriptors) in by_process {
        let Ok(process) = process::open(pid) else { continue }; // it has ended
        match process::take_listening(process.as_fd(), &descriptors, until) {
            Ok(copies) => own.extend(copies.into_iter().filter_map(listener)),
            Err(_) => is_cut = true,
        }
        if Instant::now() >= until {
            is_cut = true;
            break;
        }
    }
    let seen = cgroup::ids(folder);
    let is_unseen = |socket: &&Listening| {
        open.by.contains_key(&socket.inode) && socket.cgroup.is_some_and(|id| !seen.contains(&id))
    };
    let unseen = all.iter().filter(is_unseen).map(|socket| socket.address).collect();
    Found { own, unseen, is_cut }
}

/// What listens in the network namespaces of these processes, and whether there is more than may be looked at.
fn all_in(processes: &[i32]) -> (Vec<Listening>, bool) {
    let processes = processes.to_vec();
    let looked = patience::in_time(move || of_namespaces(&processes));
    // where one holds it up, what listens here is told all the same
    looked.unwrap_or_else(|| (listening::find().unwrap_or_default(), true))
}

fn of_namespaces(processes: &[i32]) -> (Vec<Listening>, bool) {
    // one that has ended is in none
    let of = |pid: &i32| fs::metadata(format!("/proc/{pid}/ns/net")).map(|namespace| namespace.ino()).ok();
    let namespaces: BTreeSet<u64> = processes.iter().filter_map(of).collect();
    let list = || listening::find().context(|| "cannot list what listens".into());
    let within = |netns: &u64| namespace::within(*netns, list).ok().flatten().unwrap_or_default();
    (namespaces.iter().take(NAMESPACES).flat_map(within).collect(), namespaces.len() > NAMESPACES)
}

fn listener(copy: OwnedFd) -> Option<Listener> {
    let address = address(&copy)?;
    Some((copy, address))
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    use fief_testkit::{Feature, require, wait_until};

    use super::*;

    /// Has these sockets for its standard input and output, and nothing else that is open here.
    fn holder(sockets: [&TcpListener; 2]) -> Child {
        let [input, output] = sockets.map(|socket| Stdio::from(OwnedFd::from(socket.try_clone().expect("a copy"))));
        let child = Command::new("sleep").arg("1000").stdin(input).stdout(output).spawn().expect("sleep starts");
        // the kernel names it once it has closed what a program is not to have
        let name = format!("/proc/{}/comm", child.id());
        let is_named = || fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n");
        wait_until(Duration::from_secs(20), is_named).expect("sleep runs");
        child
    }

    #[test]
    fn each_socket_that_listens_is_taken_once_whoever_shares_it() {
        if !require(Feature::Root) {
            return;
        }
        let sockets = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").expect("a listener"));
        let mut addresses = sockets.each_ref().map(|socket| socket.local_addr().expect("bound"));
        let [one, two] = &sockets;
        let mut holders = [holder([one, two]), holder([two, two])];
        let pids = holders.each_ref().map(|holder| holder.id().cast_signed());
        let (inside, elsewhere) = (cgroup::mount_point(), tempfile::tempdir().expect("a folder"));
        let found = inside.map(|top| find(&pids, &top, sockets::MOST));
        let outside = find(&pids, elsewhere.path(), sockets::MOST);
        let cut = find(&pids, elsewhere.path(), 0);
        for holder in &mut holders {
            holder.kill().expect("a child");
            holder.wait().expect("it ends");
        }
        let found = found.expect("cgroup2");
        let mut taken: Vec<_> = found.own.iter().map(|(_, address)| *address).collect();
        taken.sort();
        addresses.sort();
        assert_eq!(taken, addresses);
        assert!(found.unseen.is_empty() && !found.is_cut);
        assert_eq!(outside.unseen.into_iter().collect::<Vec<_>>(), addresses);
        assert!(cut.own.is_empty() && cut.is_cut);
    }
}
