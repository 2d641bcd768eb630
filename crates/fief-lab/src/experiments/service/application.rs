// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The application that holds containers, as the experiment sees it: in a cgroup of its own, asked after each change.

use super::holder::Look;
use super::policy;
use crate::command::{Used, own};
use crate::error::{Context, Result};
use crate::installation::Installation;
use fief_testkit::{Cgroup, Process};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

const ENTER: &str = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";

/// Ends with its guard.
#[derive(Debug)]
pub struct Application {
    answers: Lines<BufReader<ChildStdout>>,
    questions: ChildStdin,
    // before the cgroup
    _process: Process,
    _cgroup: Cgroup,
    told: Look,
}

impl Application {
    /// It holds all its containers once this returns.
    pub fn start(installation: &Installation) -> Result<Self> {
        let cgroup = Cgroup::new("application")?;
        installation.manage(cgroup.path(), &policy::home(0), false)?;
        let mut command = Command::new("sh");
        command.args(["-c", ENTER]).arg(cgroup.path()).arg(own()?).arg("lab-holder");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        let answers = BufReader::new(process.child().stdout.take().expect("it was piped")).lines();
        let questions = process.child().stdin.take().expect("it was piped");
        let mut application = Self { answers, questions, _process: process, _cgroup: cgroup, told: Look::default() };
        application.hear()?;
        Ok(application)
    }

    /// After a change, round which `fief usage` said this: the numbers of the containers that are lost, with why.
    pub fn lost(&mut self, before: &[Used], after: &[Used]) -> Result<Vec<(usize, String)>> {
        writeln!(self.questions).context("ask the application")?;
        self.hear()?;
        let told = self.told.found.lost.iter().map(|(number, why)| (*number, why.clone()));
        let seen = shrunk(&self.told.held, before, after).into_iter();
        Ok(told.chain(seen.map(|number| (number, "fief usage does not have what it had".to_owned()))).collect())
    }

    /// Looks at its containers, and those of them that found less than it had worked.
    pub fn looks(&self) -> (u64, u64) {
        (self.told.found.looks, self.told.found.short)
    }

    fn hear(&mut self) -> Result<()> {
        let line = self.answers.next().transpose().context("hear the application")?.unwrap_or_default();
        self.told = serde_json::from_str(&line).context("read what the application holds (its own words are above)")?;
        Ok(())
    }
}

/// The numbers of those that are not there any more, or with less.
fn shrunk(held: &[(u32, u64)], before: &[Used], after: &[Used]) -> Vec<usize> {
    let of = |all: &[Used], named: (u32, u64)| {
        all.iter().find(|one| (one.id, one.generation) == named).map(|one| one.thread_ns + one.receive_ns)
    };
    let is_less = |named: (u32, u64)| of(after, named).is_none_or(|now| now < of(before, named).unwrap_or(0));
    (0..held.len()).filter(|&number| is_less(held[number])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_lost_that_is_away_another_one_or_has_less() {
        let used = |id: u32, generation: u64, thread_ns: u64| Used {
            taken_ns: 0,
            container: String::new(),
            id,
            generation,
            thread_ns,
            receive_ns: 1,
            packets_in: 0,
            accepts: 0,
        };
        let held = [(7, 1), (8, 1), (9, 1), (10, 1)];
        let before = [used(7, 1, 5), used(8, 1, 5), used(9, 1, 5), used(10, 1, 5)];
        assert_eq!(shrunk(&held, &before, &before), [0; 0]);
        let after = [used(7, 1, 6), used(8, 1, 4), used(9, 2, 6)];
        assert_eq!(shrunk(&held, &before, &after), [1, 2, 3]);
    }
}
