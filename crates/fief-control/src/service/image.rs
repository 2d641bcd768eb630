// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of the image of a machine, whose links lead within it: `/etc` of a link in the image is the image's.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// Where a file of the image is, with all links followed as on the machine itself. The kernel follows them (openat2).
pub(super) fn within(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let folder = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
    let file = openat2(&folder, path, how)?;
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The same of a file that may not be there yet: below the nearest folder that is, where links lead that lead nowhere yet.
pub(super) fn to_be(root: &Path, path: &Path) -> io::Result<PathBuf> {
    followed(root, path, LINKS_MOST)
}

/// As the kernel follows.
const LINKS_MOST: u32 = 40;

fn followed(root: &Path, path: &Path, links: u32) -> io::Result<PathBuf> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return within(root, Path::new(".")) };
    match within(root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let place = followed(root, parent, links)?.join(name);
    let Ok(target) = fs::read_link(&place) else { return Ok(place) };
    if links == 0 {
        return Err(nix::errno::Errno::ELOOP.into());
    }
    // an absolute target takes the place of what is before it
    let target = Path::new("/").join(parent).join(target);
    followed(root, target.strip_prefix("/").unwrap_or(&target), links - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_leads_within_the_image_also_for_what_is_not_there_yet() {
        let image = tempfile::tempdir().expect("a folder");
        let root = image.path().canonicalize().expect("there");
        fs::create_dir_all(root.join("usr/etc")).expect("made");
        symlink("/usr/etc", root.join("etc")).expect("linked");
        symlink("../../../..", root.join("up")).expect("linked");
        assert_eq!(within(&root, Path::new("etc")).ok(), Some(root.join("usr/etc")));
        assert_eq!(within(&root, Path::new("up/usr")).ok(), Some(root.join("usr")));
        assert_eq!(to_be(&root, Path::new("etc/systemd/x.conf")).ok(), Some(root.join("usr/etc/systemd/x.conf")));
        assert!(within(&root, Path::new("etc/systemd")).is_err());
        symlink("/srv/later", root.join("usr/etc/systemd")).expect("linked");
        assert_eq!(to_be(&root, Path::new("etc/systemd/x")).ok(), Some(root.join("srv/later/x")));
        symlink("loop", root.join("loop")).expect("linked");
        assert!(to_be(&root, Path::new("loop/x")).is_err());
        assert!(to_be(Path::new("/nonexistent"), Path::new("etc")).is_err());
    }
}
