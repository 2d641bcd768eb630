// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this program does when it was started by itself: `fief run` makes the server of a child and leaves a guard, and
//! where cgroups divide the CPU a process moves programs. None of them is part of the command line.

use std::ffi::OsString;
use std::process::ExitCode;

use fief_control::{Error, ErrorKind};

use crate::failure::{Failure, RUN_NOT_FOUND, RUN_REFUSED};

/// None: a person or a script started us.
pub fn main() -> Option<ExitCode> {
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let word = words.first()?.to_str()?;
    match word {
        "run-exec" => {
            words.remove(0);
            Some(not_started(fief_control::exec_main(&words)).report())
        }
        "run-guard" => {
            words.remove(0);
            Some(
                fief_control::guard_main(&words)
                    .map_or_else(|error| Failure::from(error).report(), |()| ExitCode::SUCCESS),
            )
        }
        "run-move" => {
            words.remove(0);
            Some(
                fief_control::move_main(&words)
                    .map_or_else(|error| Failure::from(error).report(), |()| ExitCode::SUCCESS),
            )
        }
        _ => None,
    }
}

/// This process was to become the server: its exit code is what `fief run` ends with.
fn not_started(error: Error) -> Failure {
    let code = match error.kind() {
        ErrorKind::NotFound => RUN_NOT_FOUND,
        _ => RUN_REFUSED,
    };
    Failure::from(error).with_code(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_be_started_has_the_codes_of_env() {
        assert_eq!(not_started(Error::new(ErrorKind::NotFound, "cannot start x")).code(), RUN_NOT_FOUND);
        assert_eq!(not_started(Error::new(ErrorKind::Other, "cannot start x")).code(), RUN_REFUSED);
    }
}
