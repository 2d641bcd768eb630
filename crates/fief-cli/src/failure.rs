// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the command fails: the one place that prints errors and decides on the exit code.
//!
//! A message says what was tried, on what, why it failed and what to do; lower case, no full stop. What it was tried on may be named by
//! other users.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use fief_control::ErrorKind;
use fief_policy::Diagnostics;

use crate::output::printable;

pub type Result<T> = std::result::Result<T, Failure>;

/// Wrong usage, or errors in a policy.
pub const USAGE: u8 = 2;
/// `fief run`: Fief itself failed. This code and the next two are those of env(1).
pub const RUN_FAILED: u8 = 125;
/// `fief run`: the server's program is there and cannot be run.
pub const RUN_REFUSED: u8 = 126;
/// `fief run`: the server's program was not found.
pub const RUN_NOT_FOUND: u8 = 127;

/// Why the command ends without having done what it was asked for.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    said: Said,
}

#[derive(Debug)]
enum Said {
    Message(String),
    Policy(Box<Diagnostics>),
    /// All was said on standard output.
    Nothing,
    /// Whoever read standard output has gone; that is no failure.
    Closed,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: 1, said: Said::Message(message.into()) }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, said: Said::Message(message.into()) }
    }

    /// Ends with a code and no message, because standard output tells it already.
    pub fn told(code: u8) -> Self {
        Self { code, said: Said::Nothing }
    }

    /// Could not read a file.
    pub fn read(name: &str, error: &io::Error) -> Self {
        Self::new(format!("cannot read the policy {name}: {error}"))
    }

    /// Could not write to standard output.
    pub fn write(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self { code: 0, said: Said::Closed },
            _ => Self::new(format!("cannot write to standard output: {error}")),
        }
    }

    #[must_use]
    pub fn with_code(mut self, code: u8) -> Self {
        if !matches!(self.said, Said::Closed) {
            self.code = code;
        }
        self
    }

    pub fn code(&self) -> u8 {
        self.code
    }

    /// Prints it; the exit code is what remains.
    pub fn report(&self) -> ExitCode {
        // With standard error gone there is nobody left to tell.
        let _ = io::stderr().lock().write_all(self.page().as_bytes());
        ExitCode::from(self.code)
    }

    fn page(&self) -> String {
        match &self.said {
            Said::Message(message) => {
                let lines: Vec<String> = message.split('\n').map(printable).collect();
                format!("fief: {}\n", lines.join("\n"))
            }
            Said::Policy(diagnostics) => diagnostics.render(has_colours()),
            Said::Nothing | Said::Closed => String::new(),
        }
    }
}

/// Whether standard error is a terminal whose user has not asked for plain text.
fn has_colours() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.said {
            Said::Message(message) => f.write_str(message),
            Said::Policy(diagnostics) => diagnostics.fmt(f),
            Said::Nothing | Said::Closed => Ok(()),
        }
    }
}

impl From<Diagnostics> for Failure {
    fn from(diagnostics: Diagnostics) -> Self {
        Self { code: USAGE, said: Said::Policy(Box::new(diagnostics)) }
    }
}

impl From<fief_control::Error> for Failure {
    fn from(error: fief_control::Error) -> Self {
        match error.kind() {
            ErrorKind::Usage => Self::usage(error.to_string()),
            _ => Self::new(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_no_failure() {
        let failure = Failure::write(&io::ErrorKind::BrokenPipe.into());
        assert_eq!(failure.with_code(RUN_FAILED).code(), 0);
        assert_eq!(Failure::write(&io::ErrorKind::StorageFull.into()).code(), 1);
    }

    #[test]
    fn a_message_has_lines_and_does_nothing_else_to_the_terminal() {
        let failure = Failure::new("refused:\n  /sys/fs/cgroup/\u{1b}[2Jx\r\u{9b}1\n  /sys/fs/cgroup/ü");
        assert_eq!(failure.page(), "fief: refused:\n  /sys/fs/cgroup/\\u{1b}[2Jx\\r\\u{9b}1\n  /sys/fs/cgroup/ü\n");
        assert_eq!(Failure::told(USAGE).page(), "", "standard output has it");
    }

    #[test]
    fn an_error_in_a_policy_ends_with_two() {
        let diagnostics = fief_policy::parse("version = 7", "p.toml").expect_err("no such version");
        assert_eq!(Failure::from(diagnostics).code(), USAGE);
    }
}
