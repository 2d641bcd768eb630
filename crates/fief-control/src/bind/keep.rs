// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keep: a unit that is managed over its restarts. Each restart gives it a new cgroup in the old one's place, which nobody has told
//! anybody of.
//!
//! How: the kernel tells of folders that are made and removed (inotify), in the nearest folder above the unit's that is there.
//! Between two of these nothing runs.
//! Limits: what a new process does before it is found is charged to nobody, and the sockets that it makes then have no classes of
//! their own; this lasts for milliseconds. It ends with the process that keeps, so a drop-in (`fief unit`) is better where one can
//! be had.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use fief_bpf::{Context, Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::{ManageOptions, Managed, Target};
use crate::{Fief, cgroup};

impl Fief {
    /// Manages a unit or a cgroup, and whatever takes its place, until `stop` can be read. `each` is told of each time.
    ///
    /// Errors: as for [`manage`](Self::manage), and [`ErrorKind::NotFound`] once the policy is taken down.
    pub fn keep<E: From<Error>>(
        &self,
        target: &Target,
        options: &ManageOptions,
        stop: BorrowedFd<'_>,
        mut each: impl FnMut(&Managed) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if let Target::Process(pid) = target {
            let what = format!("process {pid} has no name that would outlive it");
            return Err(Error::new(ErrorKind::Other, what)
                .remedy("name its unit, or its cgroup by the full path")
                .into());
        }
        let (path, name) = self.cgroup_of(target)?;
        let watch = Watch::new()?;
        let mut known = None;
        loop {
            // watched before it is looked at, so that nothing is missed in between
            watch.add(&path, self.pins().map("units").parent().unwrap_or(Path::new("/")))?;
            self.require_installed()?;
            let found = cgroup::id(&path).ok();
            if found.is_some() && found != known {
                match self.manage_again(&path, &name, options) {
                    Ok(managed) => {
                        each(&managed)?;
                        known = found;
                    }
                    // it ended meanwhile, and the next one is told of
                    Err(_) if cgroup::id(&path).ok() != found => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            if watch.wait(stop)? {
                return Ok(());
            }
        }
    }

    fn manage_again(&self, path: &Path, name: &str, options: &ManageOptions) -> Result<Managed> {
        let _lock = self.lock()?;
        self.manage_as(path.to_owned(), name, options)
    }
}

/// Folders whose changes are told.
struct Watch {
    inotify: Inotify,
}

impl Watch {
    fn new() -> Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        Ok(Self { inotify: inotify.context(|| "cannot watch folders".into())? })
    }

    /// Watches the nearest folder above a cgroup's that is there, and the one of the installation. One that is watched already
    /// stays.
    fn add(&self, cgroup: &Path, installation: &Path) -> Result<()> {
        let changes = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_DELETE_SELF;
        let flags = changes | AddWatchFlags::IN_MOVE | AddWatchFlags::IN_ONLYDIR;
        let above: Vec<PathBuf> = cgroup.ancestors().skip(1).map(Path::to_owned).collect();
        for folder in &above {
            match self.inotify.add_watch(folder, flags) {
                Err(Errno::ENOENT) => continue,
                done => done.map(drop).context(|| format!("cannot watch {}", folder.display()))?,
            }
            break;
        }
        match self.inotify.add_watch(installation, flags) {
            Err(Errno::ENOENT) => Ok(()), // it was taken down, which the next look tells
            done => done.map(drop).context(|| format!("cannot watch {}", installation.display())),
        }
    }

    /// Waits for a change; true: it is to end.
    fn wait(&self, stop: BorrowedFd<'_>) -> Result<bool> {
        let mut sources = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN), PollFd::new(stop, PollFlags::POLLIN)];
        match poll(&mut sources, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            done => done.map(drop).context(|| "cannot wait for a change".into())?,
        }
        if sources[1].any().unwrap_or(false) {
            return Ok(true);
        }
        // what they say is found out by looking
        while self.inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
        Ok(false)
    }
}
