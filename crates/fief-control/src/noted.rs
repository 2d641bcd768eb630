// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process as it is noted in a file: by its number, and by when it started, which tells it from one that has the number later.

use std::fmt;
use std::path::Path;

use crate::patience;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) pid: u32,
    /// `None`: an older version noted it.
    pub(crate) started: Option<u64>,
}

impl Noted {
    /// A process that runs.
    pub(crate) fn of(pid: u32) -> Self {
        Self { pid, started: patience::started(pid.cast_signed()).ok().flatten() }
    }

    /// This process.
    pub(crate) fn own() -> Self {
        Self::of(std::process::id())
    }

    pub(crate) fn parse(note: &str) -> Option<Self> {
        let mut words = note.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        Some(Self { pid, started: words.next().and_then(|word| word.parse().ok()) })
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
        self.started.map_or(Ok(()), |started| write!(f, " {started}"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn runs(note: &str) -> bool {
        Noted::parse(note).expect("a note").runs()
    }

    #[test]
    fn who_has_the_number_of_a_process_later_is_not_that_one() {
        let own = Noted::own();
        let started = own.started.expect("it runs");
        assert_eq!(own.to_string(), format!("{} {started}", own.pid));
        assert_eq!(Noted::parse(&own.to_string()), Some(own));
        assert!(own.runs());
        assert!(!runs(&format!("{} {}", own.pid, started - 1)));
    }

    #[test]
    fn one_that_an_older_version_noted_runs_while_its_number_is_somebodys() {
        assert!(runs(&std::process::id().to_string()) && runs(&format!("{}\n", std::process::id())));
        let mut ended = Command::new("true").spawn().expect("it starts");
        ended.wait().expect("it ends");
        assert!(!runs(&ended.id().to_string()) && !runs(&format!("{} 1", ended.id())));
        assert_eq!(Noted::parse(""), None);
        assert_eq!(Noted::parse("nobody 1"), None);
    }
}
