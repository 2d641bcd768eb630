// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `/run/fief`: files next to the kernel's state, and libraries that servers of every user load.
//!
//! A user with write access could replace the library that root's server loads. A server whose user has no read access starts
//! without it. So the folder's mode follows neither from the umask of the first command nor from a mode that it had before.
//!
//! What an installation keeps lies in a folder of its own below, `/run/fief/<scope>`, which only root enters: the policy's text is
//! root's, and what is noted there root's commands believe. The modes of the files in it matter to nobody.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use fief_bpf::{Context, Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// The folder of every installation.
pub(crate) const RUN: &str = "/run/fief";

/// Everybody reads, the owner writes.
const FOLDER_MODE: u32 = 0o755;

/// Of an installation's: the owner alone.
const OWN_MODE: u32 = 0o700;

/// `flock` needs no more than an open file: one that others can open is a lock that others can hold.
const LOCK_MODE: u32 = 0o600;

/// Makes the folder of every installation, or sets right the mode of the one that is there.
pub(crate) fn ensure(folder: &Path) -> Result<()> {
    ensure_mode(folder, FOLDER_MODE)
}

/// The same of the folder of one installation.
pub(crate) fn ensure_own(folder: &Path) -> Result<()> {
    ensure_mode(folder, OWN_MODE)
}

fn ensure_mode(folder: &Path, mode: u32) -> Result<()> {
    match DirBuilder::new().mode(mode).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(e).context(|| format!("cannot make {}", folder.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(folder).context(|| format!("cannot look at {}", folder.display()))?;
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
        let what = format!("{} is not a folder of this user's own", folder.display());
        return Err(Error::new(ErrorKind::Permission, what).remedy("remove it, as root"));
    }
    if found.mode() & 0o7777 != mode {
        fs::set_permissions(folder, Permissions::from_mode(mode))
            .context(|| format!("cannot set the mode of {}", folder.display()))?;
    }
    Ok(())
}

/// Opens a lock file, which nobody but its owner can open. It is no link, which could lead to any other file.
pub fn open_lock(path: &Path) -> Result<File> {
    let what = || format!("cannot open {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(LOCK_MODE).custom_flags(nix::libc::O_NOFOLLOW);
    let file = options.open(path).context(what)?;
    if file.metadata().context(what)?.mode() & 0o7777 != LOCK_MODE {
        file.set_permissions(Permissions::from_mode(LOCK_MODE)).context(what)?;
    }
    Ok(file)
}

/// Locks such a file, if nobody has it locked. It goes with its process, however that ends.
pub(crate) fn lock_now(path: &Path) -> Result<Option<Flock<File>>> {
    ensure(RUN.as_ref())?;
    loop {
        let lock = match Flock::lock(open_lock(path)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => {
                return Err(Error::new(ErrorKind::Other, format!("cannot lock {}: {errno}", path.display())));
            }
        };
        // one that its holder has removed meanwhile locks nothing
        let own = lock.metadata().map(|meta| meta.ino()).ok();
        if own.is_some() && own == fs::metadata(path).map(|meta| meta.ino()).ok() {
            return Ok(Some(lock));
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::stat::{Mode, umask};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").mode() & 0o7777
    }

    #[test]
    fn the_folder_is_everybodys_to_read_and_the_owners_to_write() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = top.path().join("fief");
        for before in [None, Some(0o777), Some(0o700), Some(0o1777)] {
            if let Some(before) = before {
                fs::set_permissions(&folder, Permissions::from_mode(before)).expect("set");
            }
            ensure(&folder).expect("made");
            assert_eq!(mode(&folder), 0o755, "{before:?}");
        }
    }

    #[test]
    fn no_umask_opens_or_closes_a_folder() {
        let made_with = |mask: u32| {
            let top = tempfile::tempdir().expect("a folder");
            let folders = [top.path().join("fief"), top.path().join("fief/scope")];
            // a umask of its thread alone: the other tests of this process have theirs
            let modes = std::thread::spawn(move || {
                unshare(CloneFlags::CLONE_FS).expect("no right is needed");
                umask(Mode::from_bits_truncate(mask));
                ensure(&folders[0]).expect("made");
                ensure_own(&folders[1]).expect("made");
                folders.map(|folder| mode(&folder))
            });
            modes.join().expect("two modes")
        };
        for mask in [0, 0o022, 0o277] {
            assert_eq!(made_with(mask), [0o755, 0o700], "{mask:03o}");
        }
    }

    #[test]
    fn an_installations_folder_that_others_could_enter_is_closed_to_them() {
        let top = tempfile::tempdir().expect("a folder");
        for before in [0o755, 0o777, 0o1777] {
            fs::set_permissions(top.path(), Permissions::from_mode(before)).expect("set");
            ensure_own(top.path()).expect("there");
            assert_eq!(mode(top.path()), 0o700, "{before:o}");
        }
    }

    #[test]
    fn a_link_in_place_of_the_folder_is_refused() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = top.path().join("fief");
        let other = tempfile::tempdir().expect("a folder");
        fs::set_permissions(other.path(), Permissions::from_mode(0o750)).expect("set");
        std::os::unix::fs::symlink(other.path(), &folder).expect("a link");
        assert!(ensure(&folder).is_err() && ensure_own(&folder).is_err());
        assert_eq!(mode(other.path()), 0o750);
    }

    #[test]
    fn a_lock_that_everybody_could_open_is_closed_to_others() {
        let top = tempfile::tempdir().expect("a folder");
        let path = top.path().join("lock");
        fs::write(&path, "").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        open_lock(&path).expect("opened");
        assert_eq!(mode(&path), 0o600);
        fs::remove_file(&path).expect("removed");
        open_lock(&path).expect("made");
        assert_eq!(mode(&path), 0o600);
    }
}
