// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a lab leaves that is killed: a guard beside it waits for its end and removes namespaces with all who live in them,
//! the installation, cgroups, files, and gives the session its precedence back. Where the guard was killed too, the next
//! lab removes them.

use crate::command::{child, is_left, scope};
use crate::error::{Context, Error, Kind, Result};
use crate::precedence;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

/// By then those have ended, too, whom the end of a lab ends.
const AFTER_LAB: Duration = Duration::from_millis(200);

/// The guard of a running lab, and the folder for its files, which goes with this.
#[derive(Debug)]
pub struct Remains {
    guard: Child,
    _files: tempfile::TempDir,
}

impl Remains {
    /// Before the lab makes anything; files that it makes from now on lie in its folder.
    pub fn watch() -> Result<Remains> {
        let files = tempfile::Builder::new()
            .prefix(&scope())
            .rand_bytes(0)
            // servers that gave up root read what lies in it
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir()
            .context("make a folder for the lab's files")?;
        // one that is there already is that of an earlier experiment of this process
        let _ = tempfile::env::override_temp_dir(files.path());
        let mut guard = child("lab-guard")?;
        guard.arg(std::process::id().to_string()).args(precedence::session().map(|nice| nice.to_string()));
        guard.stdin(Stdio::null()).stdout(Stdio::null());
        let guard = guard.process_group(0).spawn().context("start the guard")?;
        Ok(Remains { guard, _files: files })
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        // it has nothing left to do
        let _ = self.guard.kill();
        let _ = self.guard.wait();
    }
}

/// Removes what labs left that have ended; how many things.
pub fn sweep() -> usize {
    // Namespaces first: the `fief run` inside takes its own programs down.
    fief_testkit::sweep() + crate::command::sweep() + fief_testkit::sweep_cgroups() + sweep_files()
}

fn sweep_files() -> usize {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let left = entries.filter(|entry| is_left(&entry.file_name().to_string_lossy()));
    left.filter(|entry| std::fs::remove_dir_all(entry.path()).is_ok()).count()
}

/// The child's main: the number of the lab, and the nice value of its session before.
pub fn guard_main(arguments: &[String]) -> Result<()> {
    let numbers: std::result::Result<Vec<i32>, _> = arguments.iter().map(|word| word.parse()).collect();
    let (lab, nice) = match numbers.as_deref() {
        Ok([lab]) => (*lab, None),
        Ok([lab, nice]) => (*lab, Some(*nice)),
        _ => return Err(Error::new(Kind::Usage, "a guard takes the number of its lab and a nice value")),
    };
    fief_bpf::process::wait_end(lab).context(format!("wait for process {lab}"))?;
    if let Some(nice) = nice {
        precedence::set_session(nice);
    }
    std::thread::sleep(AFTER_LAB);
    sweep();
    Ok(())
}
