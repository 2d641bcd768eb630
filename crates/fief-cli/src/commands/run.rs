// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief run`: a server under a policy. Its exit code becomes ours; those of env(1) tell our own failures apart from it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::brief;
use crate::cli::Run;
use crate::failure::{Failure, RUN_FAILED, RUN_NOT_FOUND, RUN_REFUSED, Result};
use crate::output::printable;
use crate::policy_file;
use fief_control::{Fief, RunOptions, Status};

pub fn run(args: &Run) -> Result<ExitCode> {
    serve(args).map_err(|failure| match failure.code() {
        RUN_REFUSED | RUN_NOT_FOUND => failure,
        _ => failure.with_code(RUN_FAILED),
    })
}

fn serve(args: &Run) -> Result<ExitCode> {
    let file = policy_file::load(&args.policy)?;
    // Before anything is put in force for it.
    let program = args.server.first().expect("clap requires the server's program");
    find(program, std::env::var_os("PATH").as_deref())?;
    let options = RunOptions { no_follow: args.no_follow, tell: Some(tell), started: Some(started) };
    let code = Fief::from_env()?.run(&file.policy, &file.text, &args.server, &options)?;
    // Codes are bytes, as the kernel has them.
    Ok(ExitCode::from(code as u8))
}

/// On standard error: standard output is the server's.
fn tell(note: &str) {
    eprintln!("fief: note: {}", printable(note));
}

/// Likewise.
fn started(status: &Status) {
    brief::lines(status).iter().for_each(|line| eprintln!("fief: {line}"));
}

/// Where the kernel would find the program.
fn find(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf> {
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
        assert!(find(OsStr::new("env"), path).is_ok());
        assert!(find(OsStr::new("/usr/bin/env"), None).is_ok());
    }

    #[test]
    fn what_cannot_be_run_has_the_codes_of_env() {
        let code = |program: &str| find(OsStr::new(program), Some(OsStr::new("/usr/bin"))).map_err(|f| f.code());
        assert_eq!(code("no-such-program-here"), Err(RUN_NOT_FOUND));
        assert_eq!(code("/nonexistent/nginx"), Err(RUN_NOT_FOUND));
        assert_eq!(code("/etc/passwd"), Err(RUN_REFUSED));
        assert_eq!(code("/usr/bin"), Err(RUN_REFUSED));
    }
}
