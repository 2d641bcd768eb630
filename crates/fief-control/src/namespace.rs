// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Namespaces: the caller's own network namespace, how to work in another one by its number, and whether the caller sees the
//! machine's processes.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use fief_bpf::{Context, Result, abi, process};
use nix::sched::{CloneFlags, setns};

use crate::patience;

/// The caller's network namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) file: File,
    pub(crate) inode: u64,
    pub(crate) known: Known,
}

/// The caller's.
const OWN: &str = "/proc/thread-self/ns/net";

/// What a note knows a network namespace by. Its number is another one's soon after it is gone, its cookie never; notes of earlier
/// versions have none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) inode: u64,
    cookie: Option<u64>,
}

/// Where something of ours in the kernel tells that it is there.
impl From<u64> for Known {
    fn from(inode: u64) -> Self {
        Self { inode, cookie: None }
    }
}

/// As the kernel side keeps it.
impl From<abi::fief_netns> for Known {
    fn from(netns: abi::fief_netns) -> Self {
        Self { inode: netns.inode, cookie: Some(netns.cookie) }
    }
}

impl Known {
    /// As it is written down.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let inode = words.next()?.parse().ok()?;
        let cookie = words.next().map(str::parse).transpose().ok()?;
        Some(Self { inode, cookie })
    }

    /// For the kernel side.
    pub(crate) fn record(self) -> abi::fief_netns {
        abi::fief_netns { cookie: self.cookie.unwrap_or_default(), inode: self.inode }
    }

    /// Whether both are the same one, as far as both tell.
    pub(crate) fn is(self, other: Self) -> bool {
        self.inode == other.inode && self.cookie.zip(other.cookie).is_none_or(|(own, other)| own == other)
    }

    /// Whether the caller is in it.
    fn is_here(self) -> Result<bool> {
        Ok(self.is(Namespace::of_caller()?.known))
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inode)?;
        self.cookie.map_or(Ok(()), |cookie| write!(f, " {cookie}"))
    }
}

impl Namespace {
    pub(crate) fn of_caller() -> Result<Self> {
        let file = File::open(OWN).context(|| "cannot open the network namespace".into())?;
        let inode = file.metadata().context(|| "cannot look at the network namespace".into())?.ino();
        let cookie = process::netns_cookie().context(|| "cannot look at the network namespace".into())?;
        Ok(Self { file, inode, known: Known { inode, cookie: Some(cookie) } })
    }
}

/// The kernel gives the first PID namespace this number (include/linux/proc_ns.h).
pub(crate) const INITIAL_PIDS: u64 = 0xEFFF_FFFC;

/// Whether the caller's PID namespace is the machine's own, in which every thread has a number.
pub(crate) fn sees_all_processes() -> bool {
    of_numbers().is_ok_and(|inode| inode == INITIAL_PIDS)
}

/// The namespace that the numbers of processes are of, as the caller sees them.
pub(crate) fn of_numbers() -> std::io::Result<u64> {
    fs::metadata("/proc/self/ns/pid").map(|meta| meta.ino())
}

/// Whether no process is in that namespace of numbers, as far as the caller can tell.
pub(crate) fn is_left(numbers: u64) -> bool {
    let mut somebody = false;
    let all_were_seen = sees_all_processes()
        && patience::each(
            patience::all(),
            move |pid, tell| {
                if fs::metadata(format!("/proc/{pid}/ns/pid")).is_ok_and(|meta| meta.ino() == numbers) {
                    tell(());
                }
            },
            |()| {
                somebody = true;
                false
            },
        );
    all_were_seen && !somebody
}

/// Runs `work` in a network namespace; `None`: it is gone, and what was in it too.
pub(crate) fn within<T: Send>(netns: impl Into<Known>, work: impl FnOnce() -> Result<T> + Send) -> Result<Option<T>> {
    let netns = netns.into();
    // another one has its number by now
    let done = move || if netns.is_here()? { work().map(Some) } else { Ok(None) };
    if Namespace::of_caller()?.inode == netns.inode {
        return done();
    }
    let Some((path, file)) = open(netns.inode) else { return Ok(None) };
    let enter = || {
        setns(file.as_fd(), CloneFlags::CLONE_NEWNET)
            .context(|| format!("cannot enter the network namespace {}", path.display()))?;
        done()
    };
    match std::thread::scope(|scope| scope.spawn(patience::counted(enter)).join()) {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The way to a network namespace; `None`: it is gone.
pub(crate) fn place(netns: u64) -> Option<PathBuf> {
    open(netns).map(|(path, _)| path)
}

/// A network namespace by its number, with the way to it; `None`: it is gone.
pub(crate) fn open(netns: u64) -> Option<(PathBuf, File)> {
    // who has it is the only way to it: one with a name, or a process inside
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|entry| entry.path());
    first(named, netns).or_else(|| of_a_process(netns))
}

fn of_a_process(netns: u64) -> Option<(PathBuf, File)> {
    let mut found = None;
    patience::each(
        patience::all(),
        move |pid, tell| {
            if let Some(way) = first(std::iter::once(PathBuf::from(format!("/proc/{pid}/ns/net"))), netns) {
                tell(way);
            }
        },
        |way| {
            found = Some(way);
            false
        },
    );
    found
}

/// The first of these that leads to it.
fn first(mut ways: impl Iterator<Item = PathBuf>, netns: u64) -> Option<(PathBuf, File)> {
    let device = fs::metadata(OWN).ok()?.dev();
    let is_it = |file: &Metadata| (file.dev(), file.ino()) == (device, netns);
    ways.find_map(|path| {
        fs::metadata(&path).ok().filter(is_it)?;
        let file = File::open(&path).ok()?;
        // a process may have gone to another one in between
        file.metadata().ok().filter(is_it)?;
        Some((path, file))
    })
}

#[cfg(test)]
mod tests {
    use fief_testkit::{Feature, NetNs, require};

    use super::*;

    #[test]
    fn the_own_namespace_is_found_by_its_number() {
        let own = Namespace::of_caller().expect("a namespace").inode;
        let (_, file) = open(own).expect("this process is in it");
        assert_eq!(file.metadata().expect("open").ino(), own);
        assert_eq!(place(1), None);
    }

    #[test]
    fn a_file_with_the_number_of_a_namespace_is_none() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let number = fs::metadata(file.path()).expect("it is there").ino();
        assert!(first(std::iter::once(file.path().to_owned()), number).is_none());
    }

    #[test]
    fn work_is_done_at_once_in_the_namespace_of_the_caller() {
        let own = Namespace::of_caller().expect("a namespace");
        assert_eq!(within(own.inode, || Ok(1)).expect("done"), Some(1));
        assert_eq!(within(own.known, || Ok(1)).expect("done"), Some(1));
    }

    #[test]
    fn a_namespace_that_is_gone_needs_no_work() {
        assert_eq!(within(1u64, || Ok(1)).expect("nothing to do"), None);
    }

    #[test]
    fn who_has_the_number_of_a_namespace_that_is_gone_is_left_alone() {
        let own = Namespace::of_caller().expect("a namespace").known;
        let gone = |known: Known| Known { cookie: known.cookie.map(|cookie| cookie + 1), ..known };
        assert_eq!(within(gone(own), || Ok(1)).expect("nothing to do"), None);
        if !(require(Feature::Root) && require(Feature::NetNs)) {
            return;
        }
        let elsewhere = NetNs::new("numbered").expect("a namespace");
        let its = elsewhere.run(|| Namespace::of_caller().expect("a namespace").known).expect("in it");
        let inode = || Ok(Namespace::of_caller()?.inode);
        assert_eq!(within(its, inode).expect("done"), Some(its.inode));
        assert_eq!(within(gone(its), inode).expect("nothing to do"), None);
    }

    #[test]
    fn a_note_of_an_earlier_version_has_the_number_alone() {
        let own = Namespace::of_caller().expect("a namespace").known;
        assert_eq!(Known::read(&own.to_string()), Some(own));
        let earlier = Known::read(&own.inode.to_string()).expect("a number");
        assert!(earlier.is(own) && earlier == Known::from(own.inode));
        assert!(!Known { cookie: Some(0), ..own }.is(own) && !Known::from(1u64).is(own));
        assert_eq!(["", "lo", "1 x"].map(Known::read), [None; 3]);
    }
}
