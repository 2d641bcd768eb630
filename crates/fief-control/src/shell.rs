// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words of commands that are suggested, as a shell takes them. An operator pastes these commands, and other users choose the names of
//! folders in the parts of the hierarchy that are theirs.
//!
//! What systemd reads is quoted otherwise (`service`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Characters that a shell takes as they are.
const PLAIN: &str = "-_,./:@";

/// As one word, on one line, of printable characters.
pub(crate) fn word(text: impl AsRef<OsStr>) -> String {
    let bytes = text.as_ref().as_bytes();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || PLAIN.contains(c);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && text.chars().all(is_plain) => text.to_owned(),
        Ok(text) if !text.chars().any(char::is_control) => format!("'{}'", text.replace('\'', "'\\''")),
        // dash knows no such quotes; who has that finds the name spelt out
        _ => format!("$'{}'", bytes.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_a_shell_takes_as_it_is_stays() {
        for plain in ["/sys/fs/cgroup/user.slice/user@1000.service", "shop/gold", "ff-1_2", "a:b,c"] {
            assert_eq!(word(plain), plain);
        }
        assert_eq!(word(""), "''");
    }

    #[test]
    fn no_name_begins_another_command() {
        assert_eq!(word("/sys/fs/cgroup/x;id>y"), "'/sys/fs/cgroup/x;id>y'");
        assert_eq!(word("it's $(id) `id`"), "'it'\\''s $(id) `id`'");
        assert_eq!(word("a\nb\u{1b}[2J'"), "$'a\\nb\\x1b[2J\\''");
        assert_eq!(word(OsStr::from_bytes(b"\xff")), "$'\\xff'");
        assert_eq!(word("ü"), "'ü'");
    }

    #[test]
    fn a_shell_reads_the_same_name_again() {
        let names: [&[u8]; 8] = [
            b"x;id>y",
            b"it's $(id) `id` \"$HOME\" \\n !!",
            b"#a ~ * ? [b]",
            b"-n",
            b"",
            b"a\nb\t\x1b[2J'\\\x7f0",
            b"\xff\xc3\xbc\n'",
            "ü 語".as_bytes(),
        ];
        for name in names {
            let script = format!("printf %s {}", word(OsStr::from_bytes(name)));
            let read = Command::new("bash").args(["-c", &script]).output().expect("bash starts");
            assert_eq!(read.stdout, name, "{script}");
        }
    }
}
