// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mounts of containers as files, which `fief mount` serves: where they are, whether anybody still serves them, and their end.
//!
//! The kernel's table of mounts is the only note of them, so one whose server was killed is found all the same. Only root's count:
//! others can give a file system of theirs any name. A folder is found once, and then held: whoever owns a folder above it can lead its
//! path elsewhere at any moment.
//! Limits: a mount in another mount namespace is not seen from here. Its server sees the end of what is in force by itself.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use fief_bpf::{Context, Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::stat::Mode;

use crate::Fief;
use crate::mount_table::{self, Mount};

/// What the source of a mount begins with; the scope follows.
const SOURCE: &str = "fief:";

const TYPE: &str = "fuse.fief";

const DEVICE: &str = "/dev/fuse";

/// A server that lives answers sooner.
const ANSWERS: Duration = Duration::from_secs(2);

/// A mount of containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub folder: PathBuf,
    pub scope: String,
}

impl Mounted {
    fn of(mount: &Mount) -> Option<Self> {
        let scope = mount.source.strip_prefix(SOURCE).filter(|_| mount.kind == TYPE)?;
        let of_root = mount.options.split(',').any(|option| option == "user_id=0");
        of_root.then(|| Self { folder: mount.folder.clone(), scope: scope.to_owned() })
    }

    /// Whether nobody serves it any more, as after a kill -9. One that does not answer, as a stopped process, serves it.
    pub fn is_stale(&self) -> bool {
        let (tell, told) = mpsc::channel();
        let folder = self.folder.clone();
        std::thread::spawn(move || {
            let dead = |error: io::Error| error.raw_os_error() == Some(Errno::ENOTCONN as i32);
            // who waits no longer does not hear it
            let _ = tell.send(fs::metadata(folder).is_err_and(dead));
        });
        told.recv_timeout(ANSWERS).unwrap_or(false)
    }

    /// That nothing of ours is at this folder.
    pub fn none(folder: &Path) -> Error {
        let what = format!("no containers are mounted at {}", folder.display());
        Error::new(ErrorKind::NotFound, what).remedy("`findmnt -t fuse.fief` shows what is")
    }

    /// Ends it, whoever is in it: what is under way there fails. One that somebody else ends meanwhile has ended.
    pub fn unmount(&self) -> Result<()> {
        let what = || format!("cannot unmount {}", self.folder.display());
        // the kernel takes away whatever is on top
        let is_there = |table: &[Mount]| table.iter().any(|mount| Self::of(mount).as_ref() == Some(self));
        let seen = table()?;
        if !is_there(&seen) {
            return Ok(());
        }
        let top = seen.iter().rev().find(|mount| mount.folder == self.folder);
        if top.is_some_and(|mount| Self::of(mount).as_ref() != Some(self)) {
            return Err(Errno::EBUSY).context(what).map_err(|error| error.remedy("unmount what is mounted over it"));
        }
        let ended = hold(&self.folder, OFlag::O_NOFOLLOW).and_then(|held| match self.is_at(&held) {
            true => umount2(&way(&held), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH),
            false => Err(Errno::EINVAL),
        });
        match ended {
            Err(_) if !is_there(&table()?) => Ok(()),
            ended => ended.context(what),
        }
    }

    /// Whether what is held is in this mount.
    fn is_at(&self, held: &OwnedFd) -> bool {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", held.as_raw_fd())).unwrap_or_default();
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u32>().ok());
        let table = table().unwrap_or_default();
        let its = table.iter().find(|mount| Some(mount.id) == id);
        its.and_then(Self::of).as_ref() == Some(self)
    }
}

/// A folder as it is found now.
fn hold(folder: &Path, how: OFlag) -> nix::Result<OwnedFd> {
    open(folder, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | how, Mode::empty())
}

/// Leads to what is held.
fn way(held: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()))
}

/// The topmost mount of containers at a folder.
pub fn mounted_at(folder: &Path) -> Result<Option<Mounted>> {
    let what = || format!("cannot find {}", folder.display());
    let mounts = all()?;
    let at = |folder: &Path| mounts.iter().rev().find(|mounted| mounted.folder == folder).cloned();
    // by the folder above it first: a folder that nobody serves cannot be asked
    if let (Some(above), Some(name)) = (folder.parent(), folder.file_name()) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        if let Some(mounted) = at(&fs::canonicalize(above).context(what)?.join(name)) {
            return Ok(Some(mounted));
        }
    }
    Ok(at(&fs::canonicalize(folder).context(what)?))
}

impl Fief {
    /// Mounts a file system at a folder, for whoever serves what the kernel asks for by the descriptor that is returned. The kernel holds
    /// the modes of the files, for all users.
    ///
    /// Errors: [`ErrorKind::NotFound`] no such folder; the kernel has no FUSE.
    pub fn mount(&self, folder: &Path) -> Result<(OwnedFd, Mounted)> {
        let what = || format!("cannot find {}", folder.display());
        let held = hold(folder, OFlag::empty()).context(what)?;
        let folder = fs::read_link(way(&held)).context(what)?;
        let device = OpenOptions::new().read(true).write(true).open(DEVICE);
        let device = device.context(|| format!("cannot open {DEVICE}")).map_err(|error| match error.kind() {
            ErrorKind::NotFound => error.remedy("have the kernel load FUSE: modprobe fuse"),
            _ => error,
        })?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_NOATIME;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
            device.as_fd().as_raw_fd()
        );
        let source = format!("{SOURCE}{}", self.pins().scope());
        mount(Some(source.as_str()), &way(&held), Some(TYPE), flags, Some(options.as_str()))
            .context(|| format!("cannot mount containers at {}", folder.display()))?;
        Ok((device.into(), Mounted { folder, scope: self.pins().scope().to_owned() }))
    }

    /// Ends all mounts of this installation that can be seen from here; returns where they were.
    pub(crate) fn unmount_all(&self) -> Vec<PathBuf> {
        let own = all().unwrap_or_default().into_iter().filter(|mounted| mounted.scope == self.pins().scope());
        // the topmost first; a failure must not keep the rest up
        own.rev().filter(|mounted| mounted.unmount().is_ok()).map(|mounted| mounted.folder).collect()
    }

    /// Waits until nothing is in force any more, or until `stop` can be read. Nothing runs meanwhile.
    pub fn wait_down(&self, stop: BorrowedFd<'_>) -> Result<()> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        let inotify = inotify.context(|| "cannot watch what is in force".into())?;
        let changes = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF;
        loop {
            let maps = self.pins().map("units");
            // watched before it is looked at, so that nothing is missed in between; one that is watched already stays
            let watched = inotify.add_watch(maps.parent().unwrap_or(Path::new("/")), changes);
            if !self.installed() {
                return Ok(());
            }
            watched.context(|| "cannot watch what is in force".into())?;
            let mut sources = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN), PollFd::new(stop, PollFlags::POLLIN)];
            match poll(&mut sources, PollTimeout::NONE) {
                Err(Errno::EINTR) => {}
                done => done.map(drop).context(|| "cannot wait for a change".into())?,
            }
            if sources[1].any().unwrap_or(false) {
                return Ok(());
            }
            while inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
        }
    }
}

fn all() -> Result<Vec<Mounted>> {
    Ok(table()?.iter().filter_map(Mounted::of).collect())
}

fn table() -> Result<Vec<Mount>> {
    let table = fs::read("/proc/self/mountinfo").context(|| "cannot read the table of mounts".into())?;
    Ok(mount_table::mounts(&table).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = r"612 29 0:57 / /mnt/my\040tenants rw,nosuid,nodev,noexec shared:9 - fuse.fief fief:stage rw,user_id=0,group_id=0,default_permissions,allow_other";

    fn mount_of(line: &str) -> Option<Mounted> {
        mount_table::mounts(line.as_bytes()).next().as_ref().and_then(Mounted::of)
    }

    #[test]
    fn a_mount_is_known_by_its_source() {
        let expected = Mounted { folder: "/mnt/my tenants".into(), scope: "stage".into() };
        assert_eq!(mount_of(OWN), Some(expected));
    }

    #[test]
    fn a_folder_that_is_held_is_the_one_that_was_found_wherever_its_path_leads() {
        let top = tempfile::tempdir().expect("a folder");
        let [above, moved, elsewhere] = ["above", "moved", "elsewhere"].map(|name| top.path().join(name));
        for folder in [above.join("fief"), elsewhere.join("fief")] {
            fs::create_dir_all(folder).expect("made");
        }
        let held = hold(&above.join("fief"), OFlag::empty()).expect("it is there");
        fs::rename(&above, &moved).expect("renamed");
        std::os::unix::fs::symlink(&elsewhere, &above).expect("linked");
        assert_eq!(fs::read_link(way(&held)).expect("it is there"), moved.join("fief"));
        // nothing of ours is mounted there
        let mounted = Mounted { folder: above.join("fief"), scope: "fief".to_owned() };
        assert!(!mounted.is_at(&held));
    }

    #[test]
    fn what_others_mount_under_our_name_is_not_ours() {
        for (from, to) in [("user_id=0", "user_id=1000"), ("fuse.fief", "fuse.sshfs"), ("fief:", "sshfs:")] {
            assert_eq!(mount_of(&OWN.replace(from, to)), None, "{to}");
        }
    }
}
