// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Namespaces: the caller's own network namespace, how to work in another one by its number, and whether the caller sees the
//! machine's processes.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fief_bpf::{Context, Result};
use nix::sched::{CloneFlags, setns};

/// The caller's network namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) file: File,
    pub(crate) inode: u64,
}

impl Namespace {
    pub(crate) fn of_caller() -> Result<Self> {
        let file = File::open("/proc/thread-self/ns/net").context(|| "cannot open the network namespace".into())?;
        let inode = file.metadata().context(|| "cannot look at the network namespace".into())?.ino();
        Ok(Self { file, inode })
    }
}

/// The kernel gives the first PID namespace this number (include/linux/proc_ns.h).
const INITIAL_PIDS: u64 = 0xEFFF_FFFC;

/// Whether the caller's PID namespace is the machine's own, in which every thread has a number.
pub(crate) fn sees_all_processes() -> bool {
    of_numbers().is_ok_and(|inode| inode == INITIAL_PIDS)
}

/// The namespace that the numbers of processes are of, as the caller sees them.
pub(crate) fn of_numbers() -> std::io::Result<u64> {
    fs::metadata("/proc/self/ns/pid").map(|meta| meta.ino())
}

/// Runs `work` in a network namespace; `None`: it is gone, and what was in it too.
pub(crate) fn within<T: Send>(netns: u64, work: impl FnOnce() -> Result<T> + Send) -> Result<Option<T>> {
    if is(netns, Path::new("/proc/thread-self/ns/net")) {
        return work().map(Some);
    }
    let Some(path) = place(netns) else { return Ok(None) };
    let file = File::open(&path).context(|| format!("cannot open {}", path.display()))?;
    let enter = || {
        setns(file.as_fd(), CloneFlags::CLONE_NEWNET)
            .context(|| format!("cannot enter the network namespace {}", path.display()))?;
        work()
    };
    match std::thread::scope(|scope| scope.spawn(enter).join()) {
        Ok(done) => done.map(Some),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The way to a network namespace; `None`: it is gone.
pub(crate) fn place(netns: u64) -> Option<PathBuf> {
    find(|path| is(netns, path))
}

fn is(netns: u64, path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.ino() == netns)
}

/// Who has a network namespace is the only way to it: one with a name, or a process inside.
fn find(is: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let below = |folder: &str| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = below("/run/netns");
    let processes = below("/proc").map(|process| process.join("ns/net"));
    named.chain(processes).find(|path| is(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_is_found_by_its_number() {
        let own = Namespace::of_caller().expect("a namespace").inode;
        let numbered = |number| move |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.ino() == number);
        assert!(find(numbered(own)).is_some());
        assert_eq!(find(numbered(1)), None);
    }

    #[test]
    fn work_is_done_at_once_in_the_namespace_of_the_caller() {
        let own = fs::metadata("/proc/thread-self/ns/net").expect("a namespace").ino();
        assert_eq!(within(own, || Ok(1)).expect("done"), Some(1));
    }

    #[test]
    fn a_namespace_that_is_gone_needs_no_work() {
        assert_eq!(within(1, || Ok(1)).expect("nothing to do"), None);
    }
}
