// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes that `fief run` and `fief exec` started as servers, noted for each of their cgroups.
//!
//! What a server leaves in its cgroup, a detached `sleep`, say, is its user's to start, and can stay for ever. By the note it is told
//! from the server. Limits: a server that goes into the background by itself, or hands over to another process, leaves the one that
//! was started, and is taken for a remain too.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use fief_bpf::process;

use crate::{Fief, cgroup, namespace, patience};

impl Fief {
    /// A file for each cgroup, by its number.
    fn servers_dir(&self) -> PathBuf {
        self.run_dir().join("servers")
    }

    /// Notes a process that this one has just started, and has not waited for. Without a note all who are in the cgroup count.
    pub(crate) fn note_server(&self, folder: &Path, pid: i32) {
        if self.make_run_dir().is_ok() {
            let _ = note(&self.servers_dir(), folder, pid);
        }
    }

    /// Whether every process has ended that was started as a server in this cgroup. What is not noted has not.
    pub(crate) fn servers_have_ended(&self, folder: &Path) -> bool {
        have_ended(&self.servers_dir(), folder)
    }

    /// Forgets the servers of cgroups that are gone. The state is locked.
    pub(crate) fn forget_servers(&self) {
        let notes = fs::read_dir(self.servers_dir()).into_iter().flatten().flatten();
        let ids = notes.filter_map(|note| note.file_name().to_str()?.parse().ok()).collect();
        for id in cgroup::gone(ids).unwrap_or_default() {
            // a number that comes back is noted anew
            let _ = fs::remove_file(self.servers_dir().join(id.to_string()));
        }
    }
}

fn note(notes: &Path, folder: &Path, pid: i32) -> std::io::Result<()> {
    let Some((id, started)) = cgroup::id(folder).ok().zip(process::started(pid)?) else { return Ok(()) };
    let numbers = namespace::of_numbers()?;
    fs::create_dir_all(notes)?;
    let mut file = fs::OpenOptions::new().create(true).append(true).open(notes.join(id.to_string()))?;
    file.write_all(format!("{numbers} {pid} {started}\n").as_bytes())
}

fn have_ended(notes: &Path, folder: &Path) -> bool {
    let note = cgroup::id(folder).ok().and_then(|id| fs::read_to_string(notes.join(id.to_string())).ok());
    let numbers = namespace::of_numbers().ok();
    let has_ended = |line: &str| {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().ok());
        // elsewhere the number is another process's, or nobody's, while it runs
        words.next().filter(|of| numbers.is_some() && *of == numbers)?;
        let pid = i32::try_from(words.next()??).ok()?;
        Some(patience::started(pid).ok()? != Some(words.next()??))
    };
    note.is_some_and(|note| note.lines().all(|line| has_ended(line).unwrap_or(false)))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Runs until its standard input ends.
    fn cat() -> Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat starts")
    }

    #[test]
    fn a_cgroup_has_a_server_as_long_as_one_that_was_started_there_runs() {
        // any folder has a number
        let (notes, folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (notes, folder) = (&notes.path().join("servers"), folder.path());
        assert!(!have_ended(notes, folder), "nobody knows");
        let mut servers = [cat(), cat()];
        for server in &servers {
            note(notes, folder, server.id().cast_signed()).expect("noted");
        }
        assert!(!have_ended(notes, folder));
        drop(servers[0].stdin.take());
        servers[0].wait().expect("it ends");
        assert!(!have_ended(notes, folder), "one runs");
        let pid = servers[1].id().cast_signed();
        drop(servers[1].stdin.take());
        fief_testkit::wait_until(std::time::Duration::from_secs(20), || process::has_ended(pid)).expect("it ends");
        assert!(have_ended(notes, folder), "nobody has waited for it yet");
        servers[1].wait().expect("it ends");
        assert!(have_ended(notes, folder));
    }

    #[test]
    fn who_has_the_number_of_a_server_later_is_not_the_server() {
        let (notes, folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let own = std::process::id().cast_signed();
        let id = cgroup::id(folder.path()).expect("it is there");
        let has_ended = |numbers: u64, started: u64| {
            let note = format!("{numbers} {own} {started}\n");
            fs::write(notes.path().join(id.to_string()), note).expect("written");
            have_ended(notes.path(), folder.path())
        };
        let (here, started) =
            (namespace::of_numbers().expect("/proc"), process::started(own).expect("known").expect("it runs"));
        assert_eq!((has_ended(here, started), has_ended(here, started - 1)), (false, true));
        assert!(!has_ended(here + 1, started - 1), "by numbers of another namespace nobody can tell");
    }
}
