// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which process has a socket open, and by which descriptor: by the links in /proc/PID/fd.
//!
//! Problem: how many links there are is for others to say. Each process has as many descriptors as its user's hard limit lets it, and those
//! that share one table of descriptors have all of them each; a link takes some two microseconds.
//! How: who has few descriptors is looked through first, so that who has many hides nobody else; the end comes with the last socket, or
//! after so many links. Who holds up the look is passed over ([`patience`]). Nothing is opened: to close a file of a tenant's may take
//! for ever.
//! Limits: whose the sockets are that are not found by then is not known. Tables that are shared are not told apart: kcmp(2) would, and waits
//! for both processes.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::patience;

/// Links that are read for one answer, for a second or so.
pub(crate) const MOST: usize = 500_000;

/// Who has fewer descriptors has few.
const FEW: u64 = 512;
/// So many times as many are more.
const STEP: u64 = 8;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Open {
    /// A process and its descriptor, by the inode of the socket.
    pub(crate) by: HashMap<u32, (i32, i32)>,
    /// Others may have those that are missing: there were more links, or processes that held the look up.
    pub(crate) is_cut: bool,
}

/// What is told on the way.
enum News {
    /// Inode, process and descriptor.
    Socket(u32, i32, i32),
    /// No more links are read.
    Enough,
}

/// Looks for sockets in processes. Of those with about as many descriptors it is the one with the lowest number, from which the others were
/// forked; the first process, which keeps the sockets that it hands to units, only where there is no other. `most`: links that are read.
pub(crate) fn find(mut processes: Vec<i32>, wanted: &HashSet<u32>, most: usize) -> Open {
    let mut open = Open::default();
    if wanted.is_empty() {
        return open;
    }
    processes.sort_by_cached_key(|pid| (*pid == 1, size(*pid), *pid));
    let links = Arc::new(AtomicUsize::new(0));
    let (read, looked_for) = (Arc::clone(&links), wanted.clone());
    let mut is_cut = false;
    let all = patience::each(
        processes,
        move |pid, tell| {
            // a process that ended meanwhile has none
            for entry in fs::read_dir(folder(pid)).into_iter().flatten().flatten() {
                if read.fetch_add(1, Ordering::Relaxed) >= most {
                    tell(News::Enough);
                    return;
                }
                let link = fs::read_link(entry.path()).ok();
                let inode = link.and_then(|link| inode(&link)).filter(|inode| looked_for.contains(inode));
                let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
                if let (Some(inode), Some(descriptor)) = (inode, descriptor) {
                    tell(News::Socket(inode, pid, descriptor));
                }
            }
        },
        |news| match news {
            News::Socket(inode, pid, descriptor) => {
                open.by.entry(inode).or_insert((pid, descriptor));
                open.by.len() < wanted.len()
            }
            News::Enough => {
                is_cut = true;
                false
            }
        },
    );
    // who still reads stops
    links.store(most, Ordering::Relaxed);
    Open { is_cut: is_cut || !all, ..open }
}

fn folder(pid: i32) -> String {
    format!("/proc/{pid}/fd")
}

/// How many descriptors a process has, roughly. The kernel tells it as the size of the folder.
fn size(pid: i32) -> u32 {
    let descriptors = fs::metadata(folder(pid)).map_or(0, |folder| folder.len());
    descriptors.max(FEW - 1).ilog(STEP)
}

fn inode(link: &Path) -> Option<u32> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::TcpListener;
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
    use std::process::{Command, Stdio};

    use super::*;

    fn listener() -> (TcpListener, u32) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let inode = nix::sys::stat::fstat(listener.as_fd()).expect("open").st_ino;
        (listener, u32::try_from(inode).expect("as the kernel numbers sockets"))
    }

    #[test]
    fn who_has_many_descriptors_hides_nobody_and_what_only_it_has_is_told_to_be_missing() {
        let ((shared, of_both), (alone, of_one)) = (listener(), listener());
        let _many: Vec<File> = (0..FEW).map(|_| File::open("/dev/null").expect("it is there")).collect();
        let inherited = Stdio::from(OwnedFd::from(shared.try_clone().expect("a copy")));
        let mut few = Command::new("sleep").arg("1000").stdin(inherited).stdout(Stdio::null()).spawn().expect("sleep");
        let (own, child) = (std::process::id().cast_signed(), few.id().cast_signed());
        // spawn returns before the kernel closes in the child what an exec closes
        while size(child) >= size(own) {
            std::thread::yield_now();
        }
        let find =
            |pids: &[i32], wanted: &[u32], most: usize| find(pids.to_vec(), &wanted.iter().copied().collect(), most);
        let links_of_few = fs::read_dir(folder(child)).expect("it runs").count();
        let both = find(&[own, child], &[of_both, of_one], links_of_few);
        let all = find(&[own, child], &[of_both, of_one], MOST);
        let last = find(&[child], &[of_both, of_one], MOST);
        few.kill().expect("a child");
        few.wait().expect("it ends");
        assert_eq!(both, Open { by: HashMap::from([(of_both, (child, 0))]), is_cut: true });
        assert_eq!(all.by, HashMap::from([(of_both, (child, 0)), (of_one, (own, alone.as_raw_fd()))]));
        assert!(!all.is_cut);
        assert_eq!(last, Open { by: both.by, is_cut: false }, "there is nobody else");
    }

    #[test]
    fn it_ends_once_all_are_found() {
        let own = std::process::id().cast_signed();
        assert_eq!(find(vec![own], &HashSet::new(), 0), Open::default());
        let (listener, inode) = listener();
        // as many as there are at most up to it
        let up_to = usize::try_from(listener.as_raw_fd()).expect("a descriptor") + 1;
        let found = find(vec![own], &HashSet::from([inode]), up_to);
        assert_eq!(found, Open { by: HashMap::from([(inode, (own, listener.as_raw_fd()))]), is_cut: false });
    }
}
