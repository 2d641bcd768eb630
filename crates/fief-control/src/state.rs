// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files next to the kernel's state: the lock of the commands that change it, and the text of the policies by slot.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fief_bpf::{Context, Error, ErrorKind, Result, table};
use nix::fcntl::{Flock, FlockArg};

use crate::Fief;
use crate::run_folder::{self, RUN};

/// Held while state is changed; a second changer waits.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

impl Fief {
    /// `/run/fief/<scope>`: gone with a reboot, as the kernel's state is.
    pub(crate) fn run_dir(&self) -> PathBuf {
        PathBuf::from(RUN).join(self.pins().scope())
    }

    /// Has it be there, and root's alone, before something is written into it.
    pub(crate) fn make_run_dir(&self) -> Result<()> {
        run_folder::ensure(RUN.as_ref())?;
        run_folder::ensure_own(&self.run_dir())
    }

    /// Waits for who changes state now. The lock file goes with `fief down`, so one that was removed while we waited
    /// for it locks nothing any more.
    pub(crate) fn lock(&self) -> Result<Lock> {
        let path = self.lock_file();
        loop {
            run_folder::ensure(RUN.as_ref()).map_err(needs_root)?;
            let file = run_folder::open_lock(&path).map_err(needs_root)?;
            let locked = Flock::lock(file, FlockArg::LockExclusive)
                .map_err(|(_, e)| e)
                .context(|| format!("cannot lock {}", path.display()))?;
            let own = locked.metadata().map(|meta| meta.ino()).ok();
            if own.is_some() && own == fs::metadata(&path).map(|meta| meta.ino()).ok() {
                return Ok(Lock { _file: locked });
            }
        }
    }

    /// The same, if no other command has it.
    pub(crate) fn lock_now(&self) -> Result<Option<Lock>> {
        let locked = run_folder::lock_now(&self.lock_file()).map_err(needs_root)?;
        Ok(locked.map(|file| Lock { _file: file }))
    }

    fn lock_file(&self) -> PathBuf {
        PathBuf::from(RUN).join(format!("{}.lock", self.pins().scope()))
    }

    /// Where the text of a slot's policy is kept.
    pub(crate) fn policy_file(&self, slot: u32) -> PathBuf {
        self.run_dir().join(format!("policy.{slot}.toml"))
    }

    /// Keeps the text of a policy for the slot that it is built in.
    pub(crate) fn keep_policy(&self, slot: u32, text: &str) -> Result<()> {
        self.make_run_dir()?;
        let path = self.policy_file(slot);
        fs::write(&path, text).context(|| format!("cannot write {}", path.display()))
    }

    /// The text of the policy in force.
    pub fn policy_text(&self) -> Result<Option<String>> {
        self.policy_text_of(table::policy_slot(self.pins())?)
    }

    /// The text of the policy in a slot.
    pub(crate) fn policy_text_of(&self, slot: u32) -> Result<Option<String>> {
        let path = self.policy_file(slot);
        match fs::read_to_string(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).context(|| format!("cannot read {}", path.display())),
        }
    }

    /// But for the notes of sysctls that could not be given back, and of where lanes are that could not be removed.
    pub(crate) fn forget(&self) -> Result<()> {
        let (dir, kept) = (self.run_dir(), [self.sysctl_file(), self.lane_places()]);
        let is_left = kept.iter().any(|note| note.exists());
        let removed = if is_left { remove_beside(&kept, &dir) } else { fs::remove_dir_all(&dir) };
        match removed {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done.context(|| format!("cannot remove {}", dir.display())),
        }?;
        match fs::remove_file(self.lock_file()) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done.context(|| format!("cannot remove {}", self.lock_file().display())),
        }
    }
}

/// What is in a folder, but for some files.
fn remove_beside(kept: &[PathBuf], folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        match entry.file_type()?.is_dir() {
            _ if kept.contains(&path) => {}
            true => fs::remove_dir_all(path)?,
            false => fs::remove_file(path)?,
        }
    }
    Ok(())
}

fn needs_root(error: Error) -> Error {
    if error.kind() == ErrorKind::Permission { error.remedy("run as root") } else { error }
}
