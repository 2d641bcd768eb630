// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may read and who may ask for a change, as the modes of the files say it and the kernel holds it.
//!
//! Root reads, and the members of one group, as at the agent's socket. A folder that can be somebody's home lets the group in: whether
//! it is the home of who asks, no mode can say, and the kernel side decides. It is sticky, since of what users made there each ends
//! its own. What a user made is the user's.

use std::time::SystemTime;

use fief_control::Holder;
use fuser::{FileAttr, FileType};
use nix::unistd::Group;

use super::inode::{File, Inode};

#[derive(Clone, Copy, Debug)]
pub struct Readers {
    group: Option<u32>,
    since: SystemTime,
}

impl Readers {
    pub fn of(group: Option<Group>) -> Self {
        Self { group: group.map(|group| group.gid.as_raw()), since: SystemTime::now() }
    }

    /// Whether members of this group read.
    pub fn has(&self, group: u32) -> bool {
        self.group == Some(group)
    }

    /// `holder`: of the container that it is of; the top's is Fief.
    pub fn attributes(self, inode: Inode, holder: Holder) -> FileAttr {
        let (kind, (uid, mode)) = match inode {
            Inode::Top | Inode::Of(_, File::Folder) => (FileType::Directory, folder(holder)),
            Inode::Of(_, File::Cmd) => (FileType::RegularFile, cmd(holder)),
            Inode::Of(..) => (FileType::RegularFile, (0, 0o440)),
        };
        FileAttr {
            ino: inode.number(),
            // as in /proc: how much there is to read, only reading tells
            size: 0,
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind,
            perm: if self.group.is_some() { mode } else { mode & !0o070 },
            nlink: 1,
            uid,
            gid: self.group.unwrap_or(0),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// Its owner and its mode.
fn folder(holder: Holder) -> (u32, u16) {
    match holder {
        Holder::Fief | Holder::Root | Holder::Application(None) => (0, 0o750),
        Holder::Users | Holder::Operator => (0, 0o1770),
        Holder::Place(user) | Holder::Folder(user) => (user, 0o750),
        // by its descriptor alone
        Holder::Application(Some(user)) => (user, 0o550),
    }
}

fn cmd(holder: Holder) -> (u32, u16) {
    match holder {
        Holder::Root | Holder::Operator => (0, 0o220), // to come home
        Holder::Folder(user) => (user, 0o200),
        Holder::Fief | Holder::Users | Holder::Place(_) | Holder::Application(_) => (0, 0o200),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_control::Reference;

    fn shown(group: Option<u32>, file: File, holder: Holder) -> (u32, u32, u16) {
        let readers = Readers { group, since: SystemTime::now() };
        let of = readers.attributes(Inode::Of(Reference { id: 9, generation: 1 }, file), holder);
        (of.uid, of.gid, of.perm)
    }

    #[test]
    fn what_a_user_made_is_the_users() {
        assert_eq!(shown(Some(60), File::Folder, Holder::Folder(1000)), (1000, 60, 0o750));
        assert_eq!(shown(Some(60), File::Cmd, Holder::Folder(1000)), (1000, 60, 0o200));
        assert_eq!(shown(Some(60), File::Usage, Holder::Folder(1000)), (0, 60, 0o440));
        assert_eq!(shown(Some(60), File::Cmd, Holder::Place(1000)), (0, 60, 0o200));
    }

    #[test]
    fn without_a_group_nobody_but_root_gets_in() {
        for holder in [Holder::Fief, Holder::Root, Holder::Users, Holder::Operator, Holder::Application(None)] {
            for file in [File::Folder, File::Status, File::Usage, File::Cmd] {
                let (uid, gid, mode) = shown(None, file, holder);
                assert_eq!((uid, gid, mode & 0o077), (0, 0, 0), "{holder:?} {file:?}");
            }
        }
    }
}
