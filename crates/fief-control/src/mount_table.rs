// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's table of mounts (/proc/PID/mountinfo). It is bytes: a folder that something is mounted on may have any name, and one that
//! is no text must not hide the others.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) id: u32,
    pub(crate) folder: PathBuf,
    /// Type of the file system.
    pub(crate) kind: String,
    pub(crate) source: String,
    /// Of the file system.
    pub(crate) options: String,
}

/// The mounts of a table, in its order.
pub(crate) fn mounts(table: &[u8]) -> impl DoubleEndedIterator<Item = Mount> {
    table.split(|byte| *byte == b'\n').filter_map(mount)
}

/// Fields: id parent major:minor root MOUNT options [optional..] - TYPE SOURCE OPTIONS.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let folder = PathBuf::from(OsString::from_vec(unescaped(fields.nth(3)?)));
    fields.find(|field| *field == b"-")?;
    let mut text = || fields.next().map(|field| String::from_utf8_lossy(&unescaped(field)).into_owned());
    Some(Mount { id, folder, kind: text()?, source: text()?, options: text()? })
}

/// The table has blanks, tabs, ends of lines and backslashes as `\` and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn fields_are_read_as_the_kernel_writes_them() {
        let line = br"612 29 0:57 / /a\134b\011c\012\040d rw shared:9 master:1 - fuse.x a\040source rw,name=\134 ";
        let mount = mounts(line).next().expect("a mount");
        assert_eq!((mount.id, mount.folder.as_path()), (612, Path::new("/a\\b\tc\n d")));
        assert_eq!(
            (mount.kind.as_str(), mount.source.as_str(), mount.options.as_str()),
            ("fuse.x", "a source", r"rw,name=\")
        );
        assert_eq!(unescaped(br"/odd\9"), br"/odd\9");
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_other_mount() {
        let table = b"33 20 0:30 / /before rw - tmpfs none rw\n34 20 0:31 / /\xff rw - tmpfs \xfe rw\n\
                      35 20 0:32 / /after rw - cgroup2 cgroup2 rw\nhalf a line\n";
        let folders: Vec<_> = mounts(table).map(|mount| mount.folder.into_os_string().into_vec()).collect();
        assert_eq!(folders, [&b"/before"[..], b"/\xff", b"/after"]);
        assert_eq!(mounts(table).next_back().map(|mount| mount.kind).as_deref(), Some("cgroup2"));
    }
}
