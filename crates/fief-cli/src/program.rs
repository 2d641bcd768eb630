// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server's program, for the commands that start one: whether it is there, what goes beside its output, and exit codes. Those of
//! env(1) tell our own failures apart from the server's.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::failure::{Failure, RUN_FAILED, RUN_NOT_FOUND, RUN_REFUSED, Result};
use crate::output::{printable, say};

/// A failure of ours has no code that a server's could be taken for.
pub fn with_codes_of_env<T>(done: Result<T>) -> Result<T> {
    done.map_err(|failure| match failure.code() {
        RUN_REFUSED | RUN_NOT_FOUND => failure,
        _ => failure.with_code(RUN_FAILED),
    })
}

/// Codes are bytes, as the kernel has them.
pub fn ended(code: i32) -> ExitCode {
    ExitCode::from(code as u8)
}

/// On standard error: standard output is the server's.
pub fn tell(note: &str) {
    say(format_args!("note: {}", printable(note)));
}

/// Where the kernel would find the program of a server.
pub fn find(server: &[OsString]) -> Result<PathBuf> {
    let program = server.first().expect("clap requires the server's program");
    find_in(program, std::env::var_os("PATH").as_deref())
}

fn find_in(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf> {
    let shown = program.to_string_lossy();
    let candidates: Vec<PathBuf> = match Path::new(program).components().count() > 1 || shown.contains('/') {
        true => vec![PathBuf::from(program)],
        false => std::env::split_paths(path.unwrap_or_default()).map(|folder| folder.join(program)).collect(),
    };
    let is_program = |candidate: &PathBuf| candidate.is_file() && is_executable(candidate);
    if let Some(found) = candidates.iter().find(|candidate| is_program(candidate)) {
        return Ok(found.clone());
    }
    match candidates.iter().find(|candidate| candidate.exists()) {
        Some(there) => {
            let what = format!("cannot run {}: it is no executable file; name the server's program", there.display());
            Err(Failure::new(what).with_code(RUN_REFUSED))
        }
        None => {
            let what = format!("cannot run {shown}: no such program; install it or give its path");
            Err(Failure::new(what).with_code(RUN_NOT_FOUND))
        }
    }
}

fn is_executable(file: &Path) -> bool {
    nix::unistd::access(file, nix::unistd::AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_path_or_by_name() {
        let path = Some(OsStr::new("/nonexistent:/usr/bin:/bin"));
        assert!(find_in(OsStr::new("env"), path).is_ok());
        assert!(find_in(OsStr::new("/usr/bin/env"), None).is_ok());
    }

    #[test]
    fn what_cannot_be_run_has_the_codes_of_env() {
        let code = |program: &str| find_in(OsStr::new(program), Some(OsStr::new("/usr/bin"))).map_err(|f| f.code());
        assert_eq!(code("no-such-program-here"), Err(RUN_NOT_FOUND));
        assert_eq!(code("/nonexistent/nginx"), Err(RUN_NOT_FOUND));
        assert_eq!(code("/etc/passwd"), Err(RUN_REFUSED));
        assert_eq!(code("/usr/bin"), Err(RUN_REFUSED));
    }
}
