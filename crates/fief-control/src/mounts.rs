// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mounts of containers as files, which `fief mount` serves: where they are, whether anybody still serves them, and their end.
//!
//! The kernel's table of mounts is the only note of them, so one whose server was killed is found all the same. Only root's count:
//! others can give a file system of theirs any name.
//! Limits: a mount in another mount namespace is not seen from here. Its server sees the end of what is in force by itself.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use fief_bpf::{Context, Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::Fief;

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
        let is_there = |table: &str| table.lines().any(|line| mount_of(line).as_ref() == Some(self));
        let seen = table()?;
        if !is_there(&seen) {
            return Ok(());
        }
        let top = seen.lines().rev().find(|line| folder_of(line).as_ref() == Some(&self.folder));
        if top.is_some_and(|line| mount_of(line).as_ref() != Some(self)) {
            return Err(Errno::EBUSY).context(what).map_err(|error| error.remedy("unmount what is mounted over it"));
        }
        let how = MntFlags::MNT_FORCE | MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
        match umount2(&self.folder, how) {
            Err(_) if !is_there(&table()?) => Ok(()),
            ended => ended.context(what),
        }
    }
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
        let folder = fs::canonicalize(folder).context(|| format!("cannot find {}", folder.display()))?;
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
        mount(Some(source.as_str()), &folder, Some(TYPE), flags, Some(options.as_str()))
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
    Ok(table()?.lines().filter_map(mount_of).collect())
}

fn table() -> Result<String> {
    fs::read_to_string("/proc/self/mountinfo").context(|| "cannot read the table of mounts".into())
}

fn folder_of(line: &str) -> Option<PathBuf> {
    line.split(' ').nth(4).map(unescaped)
}

/// Fields: id parent major:minor root MOUNT options [optional..] - TYPE SOURCE OPTIONS.
fn mount_of(line: &str) -> Option<Mounted> {
    let (_, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (name, source, options) = (kind.next()?, kind.next()?, kind.next()?);
    let scope = source.strip_prefix(SOURCE).filter(|_| name == TYPE)?;
    let of_root = options.split(',').any(|option| option == "user_id=0");
    of_root.then_some(Mounted { folder: folder_of(line)?, scope: scope.to_owned() })
}

/// The table has blanks, tabs, ends of lines and backslashes as `\` and three octal digits.
fn unescaped(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = r"612 29 0:57 / /mnt/my\040tenants rw,nosuid,nodev,noexec shared:9 - fuse.fief fief:stage rw,user_id=0,group_id=0,default_permissions,allow_other";

    #[test]
    fn a_mount_is_known_by_its_source() {
        let expected = Mounted { folder: "/mnt/my tenants".into(), scope: "stage".into() };
        assert_eq!(mount_of(OWN), Some(expected));
    }

    #[test]
    fn what_others_mount_under_our_name_is_not_ours() {
        for (from, to) in [("user_id=0", "user_id=1000"), ("fuse.fief", "fuse.sshfs"), ("fief:", "sshfs:")] {
            assert_eq!(mount_of(&OWN.replace(from, to)), None, "{to}");
        }
    }

    #[test]
    fn paths_are_read_as_the_kernel_writes_them() {
        assert_eq!(unescaped(r"/a\134b\011c\012"), PathBuf::from("/a\\b\tc\n"));
        assert_eq!(unescaped(r"/odd\9"), PathBuf::from(r"/odd\9"));
    }
}
