// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stranger: what the kernel's own calls cost a process that nobody manages.

use super::batch::Costs;
use crate::error::{Context, Result};
use fief_testkit::{Topology, pin};
use nix::sys::socket::sockopt::TcpNoDelay;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `cgroup` is empty and ours; two groups of threads are made below it.
pub fn main(cgroup: &Path) -> Result<()> {
    pin(0, Topology::load_cpu())?;
    let mut costs = Costs::default();
    costs.measure("getppid", 2000, || {
        std::hint::black_box(nix::unistd::getppid());
        Ok(())
    })?;
    costs.measure("socket", 300, bare_socket)?;
    let stream =
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).context("make a socket")?;
    // The tax on strangers is a percent or two, so this one gets more batches than the others.
    let ns = super::batch::least(300, 1000, || setsockopt(&stream, TcpNoDelay, &true).context("set TCP_NODELAY"))?;
    costs.put("setsockopt", ns);
    let groups = ["a", "b"].map(|name| Group::new(cgroup, name));
    let [first, second] = groups;
    let (first, second) = (first?, second?);
    std::fs::write(cgroup.join("cgroup.procs"), "0").context("enter the cgroup")?;
    let mut turn = false;
    costs.measure("cgroup_threads", 200, || {
        turn = !turn;
        if turn { first.enter() } else { second.enter() }
    })?;
    // A cgroup with threads inside cannot be removed.
    leave(cgroup)?;
    super::tell(&costs)
}

pub fn bare_socket() -> Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Inet, SockType::Datagram, flags, None).map(drop).context("make a socket")
}

/// A threaded cgroup and its open `cgroup.threads`.
struct Group {
    threads: File,
}

impl Group {
    fn new(parent: &Path, name: &str) -> Result<Group> {
        let path = parent.join(name);
        if !path.exists() {
            std::fs::create_dir(&path).context(format!("make {}", path.display()))?;
            std::fs::write(path.join("cgroup.type"), "threaded").context("make a cgroup of threads")?;
        }
        let file = path.join("cgroup.threads");
        let threads = OpenOptions::new().write(true).open(&file).context(format!("open {}", file.display()))?;
        Ok(Group { threads })
    }

    /// Moves the calling thread.
    fn enter(&self) -> Result<()> {
        self.threads.write_at(b"0", 0).map(drop).context("write to cgroup.threads")
    }
}

fn leave(cgroup: &Path) -> Result<()> {
    let root = fief_testkit::cgroup2_mount()?;
    std::fs::write(root.join("cgroup.procs"), "0").context("leave the cgroup")?;
    for name in ["a", "b"] {
        std::fs::remove_dir(cgroup.join(name)).context("remove a cgroup of threads")?;
    }
    Ok(())
}
