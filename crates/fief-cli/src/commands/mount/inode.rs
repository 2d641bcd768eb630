// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers of files: they say by themselves which container and which of its files is meant, so nothing has to be remembered.
//!
//! ```text
//!  63 55 54          23 22         2 1      0
//!  +----+--------------+------------+--------+
//!  | 0  |  generation  | slot and 1 |  file  |      1: the top
//!  +----+--------------+------------+--------+
//! ```

use fief_control::Reference;
use fuser::INodeNo;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inode {
    /// Where it is mounted.
    Top,
    /// A container's.
    Of(Reference, File),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    Folder,
    Status,
    Usage,
    Cmd,
}

impl File {
    /// What a folder has beside the folders of its children.
    pub const ALL: [(Self, &str); 3] = [(Self::Status, "status"), (Self::Usage, "usage"), (Self::Cmd, "cmd")];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, own)| *own == name).map(|(file, _)| file)
    }
}

const GENERATION: u32 = 23;
const SLOT: u32 = 2;

impl Inode {
    pub fn number(self) -> INodeNo {
        let Self::Of(container, file) = self else { return INodeNo::ROOT };
        let slot = (u64::from(container.id) + 1) << SLOT;
        INodeNo(u64::from(container.generation) << GENERATION | slot | file as u64)
    }

    /// `None`: no number of ours.
    pub fn of(number: INodeNo) -> Option<Self> {
        if number == INodeNo::ROOT {
            return Some(Self::Top);
        }
        let file = [File::Folder, File::Status, File::Usage, File::Cmd][(number.0 & 3) as usize];
        let slot = (number.0 & ((1 << GENERATION) - 1)) >> SLOT;
        let id = u32::try_from(slot.checked_sub(1)?).ok()?;
        Some(Self::Of(Reference { id, generation: u32::try_from(number.0 >> GENERATION).ok()? }, file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_what_it_is_of() {
        for id in [0, 1, 8, 1_048_575] {
            for generation in [0, 1, u32::MAX] {
                for file in [File::Folder, File::Status, File::Usage, File::Cmd] {
                    let inode = Inode::Of(Reference { id, generation }, file);
                    assert_eq!(Inode::of(inode.number()), Some(inode));
                }
            }
        }
        assert_eq!(Inode::of(Inode::Top.number()), Some(Inode::Top));
        assert_eq!(Inode::of(INodeNo(0)), None);
    }
}
