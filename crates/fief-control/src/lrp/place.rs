// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which network namespaces may hold lanes. Written down before the first is made; a command in another namespace, or
//! after a kill, finds them there.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fief_bpf::{Context, Result};
use nix::sched::{CloneFlags, setns};

use crate::Fief;

impl Fief {
    fn lane_places(&self) -> PathBuf {
        self.run_dir().join("lanes")
    }

    /// Remembers that a network namespace may hold lanes.
    pub(super) fn remember_place(&self, netns: u64) -> Result<()> {
        let mut places = self.places();
        if !places.contains(&netns) {
            places.push(netns);
        }
        self.write_places(&places)
    }

    /// Forgets every network namespace but these.
    pub(super) fn write_places(&self, places: &[u64]) -> Result<()> {
        let path = self.lane_places();
        let what = || format!("cannot write {}", path.display());
        if places.is_empty() {
            return match fs::remove_file(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done.context(what),
            };
        }
        fs::create_dir_all(self.run_dir()).context(what)?;
        fs::write(&path, places.iter().map(|netns| format!("{netns}\n")).collect::<String>()).context(what)
    }

    /// The network namespaces that may hold lanes, by inode.
    pub(super) fn places(&self) -> Vec<u64> {
        let text = fs::read_to_string(self.lane_places()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

/// Runs `work` in a network namespace; `None`: it is gone, and what was in it too.
pub(super) fn within<T: Send>(netns: u64, work: impl FnOnce() -> Result<T> + Send) -> Result<Option<T>> {
    let is = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.ino() == netns);
    if is(Path::new("/proc/thread-self/ns/net")) {
        return work().map(Some);
    }
    let Some(path) = find(is) else { return Ok(None) };
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
    fn work_is_done_at_once_in_the_namespace_of_the_caller() {
        let own = fs::metadata("/proc/thread-self/ns/net").expect("a namespace").ino();
        assert_eq!(within(own, || Ok(1)).expect("done"), Some(1));
    }

    #[test]
    fn a_namespace_that_is_gone_needs_no_work() {
        assert_eq!(within(1, || Ok(1)).expect("nothing to do"), None);
    }
}
