// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process as it is noted: by its number, by when it started, which tells it from one that has the number later, and by the
//! namespace that the number is of, in which alone it means that process.

use std::fmt;
use std::path::Path;

use crate::{namespace, patience};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) pid: u32,
    /// `None`: an older version noted it.
    pub(crate) started: Option<u64>,
    /// Likewise.
    numbers: Option<u64>,
}

impl Noted {
    /// A process that runs.
    pub(crate) fn of(pid: u32) -> Self {
        let started = patience::started(pid.cast_signed()).ok().flatten();
        Self { pid, started, numbers: started.and_then(|_| namespace::of_numbers().ok()) }
    }

    /// This process.
    pub(crate) fn own() -> Self {
        Self::of(std::process::id())
    }

    pub(crate) fn parse(note: &str) -> Option<Self> {
        let mut words = note.split_whitespace().map(|word| word.parse::<u64>().ok());
        let pid = words.next()??.try_into().ok()?;
        Some(Self { pid, started: words.next().flatten(), numbers: words.next().flatten() })
    }

    /// Whether it has ended, wherever it was noted. One of which nobody can tell has not.
    pub(crate) fn has_ended(self) -> bool {
        let numbers = self.numbers.unwrap_or(namespace::INITIAL_PIDS);
        if namespace::of_numbers().is_ok_and(|own| own == numbers) { !self.runs() } else { namespace::is_left(numbers) }
    }

    /// By numbers as this process sees them. One of which nobody can tell runs.
    pub(crate) fn runs(self) -> bool {
        match self.started {
            Some(_) => patience::started(self.pid.cast_signed()).map_or(true, |started| started == self.started),
            None => Path::new("/proc").join(self.pid.to_string()).exists(),
        }
    }
}

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)?;
        [self.started, self.numbers].into_iter().flatten().try_for_each(|word| write!(f, " {word}"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use fief_testkit::{Feature, require, wait_until};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn noted(note: &str) -> Noted {
        Noted::parse(note).expect("a note")
    }

    fn runs(note: &str) -> bool {
        noted(note).runs()
    }

    #[test]
    fn who_has_the_number_of_a_process_later_is_not_that_one() {
        let own = Noted::own();
        let started = own.started.expect("it runs");
        let numbers = namespace::of_numbers().expect("/proc");
        assert_eq!(own.to_string(), format!("{} {started} {numbers}", own.pid));
        assert_eq!(Noted::parse(&own.to_string()), Some(own));
        assert!(own.runs());
        assert!(!runs(&format!("{} {}", own.pid, started - 1)));
        let has_ended = |started: u64| noted(&format!("{} {started} {numbers}", own.pid)).has_ended();
        assert_eq!((own.has_ended(), has_ended(started), has_ended(started - 1)), (false, false, true));
    }

    #[test]
    fn one_of_another_namespace_has_ended_once_nobody_is_left_there() {
        if !require(Feature::Root) {
            return;
        }
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut unshare = unshare.spawn().expect("unshare starts");
        let there = format!("/proc/{}/ns/pid_for_children", unshare.id());
        let (own, mut numbers) = (namespace::of_numbers().expect("/proc"), 0);
        // which the kernel tells once somebody is there
        wait_until(SOON, || {
            numbers = fs::metadata(&there).map_or(0, |meta| meta.ino());
            ![0, own].contains(&numbers)
        })
        .expect("a namespace");
        let has_ended = || noted(&format!("1 1 {numbers}")).has_ended();
        assert!(!has_ended(), "here the number 1 is another one's");
        drop(unshare.stdin.take());
        unshare.wait().expect("it ends");
        assert_eq!(has_ended(), namespace::sees_all_processes());
    }

    #[test]
    fn one_that_an_older_version_noted_runs_while_its_number_is_somebodys() {
        assert!(runs(&std::process::id().to_string()) && runs(&format!("{}\n", std::process::id())));
        let mut ended = Command::new("true").spawn().expect("it starts");
        ended.wait().expect("it ends");
        assert!(!runs(&ended.id().to_string()) && !runs(&format!("{} 1", ended.id())));
        assert_eq!(noted(&ended.id().to_string()).has_ended(), namespace::sees_all_processes());
        assert_eq!(Noted::parse(""), None);
        assert_eq!(Noted::parse("nobody 1"), None);
    }
}
