// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listen shim as a file, and the server's environment variables for it.
//!
//! The shared object is part of this program. A server needs it as a file, for as long as the server may start programs that
//! inherit its sockets. So its name is made from its contents: each version is written once under its own name, and never
//! changed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fief_bpf::{Context, Result};

use crate::run_folder;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fief-shim.so"));

/// How its name begins and ends.
const NAME: [&str; 2] = ["shim-", ".so"];

/// Whether a file that a process has mapped is a shim, of whatever version.
pub(crate) fn is_shim(path: &Path) -> bool {
    let [begin, end] = NAME;
    let is_named = |name: &str| name.starts_with(begin) && name.trim_end_matches(" (deleted)").ends_with(end);
    let is_ours = path.parent().is_some_and(|folder| folder.ends_with("fief"));
    is_ours && path.file_name().and_then(OsStr::to_str).is_some_and(is_named)
}

/// The shim, written out.
#[derive(Clone, Debug)]
pub struct Shim {
    path: PathBuf,
}

impl Shim {
    /// Writes it below `folder` (root's own, for example `/run/fief`), unless this version is there.
    pub fn write(folder: &Path) -> Result<Self> {
        let mut hasher = DefaultHasher::new();
        OBJECT.hash(&mut hasher);
        let path = folder.join(format!("{}{:016x}{}", NAME[0], hasher.finish(), NAME[1]));
        run_folder::ensure(folder)?;
        if fs::read(&path).is_ok_and(|there| there == OBJECT) {
            return Ok(Self { path });
        }
        let what = || format!("cannot write the listen shim to {}", path.display());
        // Built aside and renamed, so that no server ever maps half of it.
        let aside = folder.join(format!(".shim-{}", std::process::id()));
        let mut file = fs::File::create(&aside).context(what)?;
        file.write_all(OBJECT).context(what)?;
        // Read by servers of every user, written by nobody.
        file.set_permissions(fs::Permissions::from_mode(0o555)).context(what)?;
        fs::rename(&aside, &path).context(what)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What to set in the server's environment: the name and the value, in front of what is preloaded already.
    pub fn environment(&self) -> (&'static str, OsString) {
        environment(&self.path, std::env::var_os("LD_PRELOAD").as_deref())
    }
}

/// `LD_PRELOAD` with the shim first: other interposers then see its calls as the server's.
pub fn environment(shim: &Path, before: Option<&OsStr>) -> (&'static str, OsString) {
    let mut value = shim.as_os_str().to_owned();
    if let Some(others) = before.filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    ("LD_PRELOAD", value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_once_for_every_user_to_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Shim::write(folder.path()).expect("written");
        let before = fs::metadata(first.path()).expect("there").modified().expect("a time");
        let second = Shim::write(folder.path()).expect("found");
        let metadata = fs::metadata(second.path()).expect("there");
        assert_eq!(first.path(), second.path());
        assert_eq!(metadata.modified().expect("a time"), before);
        assert_eq!(metadata.permissions().mode() & 0o777, 0o555);
        assert!(OBJECT.starts_with(b"\x7fELF"));
    }

    #[test]
    fn a_mapped_shim_is_known_by_its_place_and_name() {
        for path in ["run/fief/shim-0a.so", "run/fief/shim-0a.so (deleted)"] {
            assert!(is_shim(Path::new(path)), "{path}");
        }
        for path in ["usr/lib/shim-0a.so", "run/fief/other.so", "run/fief/shim-0a.so.1"] {
            assert!(!is_shim(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn what_was_preloaded_stays() {
        let (name, value) = environment(Path::new("/run/fief/shim.so"), Some(OsStr::new("other.so")));
        assert_eq!((name, value.as_os_str()), ("LD_PRELOAD", OsStr::new("/run/fief/shim.so:other.so")));
    }
}
