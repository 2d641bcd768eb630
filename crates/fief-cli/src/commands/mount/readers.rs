// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may read: root, and the members of one group, as at the agent's socket. The modes of the files say it, and the kernel holds
//! them.

use std::time::SystemTime;

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

    pub fn attributes(self, inode: Inode) -> FileAttr {
        let (kind, perm) = match (inode, self.group) {
            (Inode::Top | Inode::Of(_, File::Folder), Some(_)) => (FileType::Directory, 0o750),
            (Inode::Top | Inode::Of(_, File::Folder), None) => (FileType::Directory, 0o700),
            (Inode::Of(_, File::Cmd), _) => (FileType::RegularFile, 0o200),
            (Inode::Of(..), Some(_)) => (FileType::RegularFile, 0o440),
            (Inode::Of(..), None) => (FileType::RegularFile, 0o400),
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
            perm,
            nlink: 1,
            uid: 0,
            gid: self.group.unwrap_or(0),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}
