// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a policy from a file or, for `-`, from standard input.

use std::io::Read;
use std::path::{Path, PathBuf};

use fief_policy::Policy;

use crate::failure::{Failure, Result};

/// Twice what a million filters and a million request patterns take; a file beyond this is something else, and must not
/// fill the memory.
const LARGEST: u64 = 96 << 20;

/// A checked policy and its text, which the kernel's side keeps beside it.
pub struct PolicyFile {
    pub policy: Policy,
    pub text: String,
    /// Absolute; none: standard input.
    pub path: Option<PathBuf>,
}

/// Reads and checks; all errors of the policy at once.
pub fn load(path: &Path) -> Result<PolicyFile> {
    let text = read(path)?;
    let policy = fief_policy::parse(&text, &name(path))?;
    // a folder that was removed has no path, and is no reason to fail
    let absolute = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Ok(PolicyFile { policy, text, path: (!is_standard_input(path)).then(absolute) })
}

/// What the policy is called in messages.
pub fn name(path: &Path) -> String {
    match is_standard_input(path) {
        true => "<standard input>".to_owned(),
        false => path.display().to_string(),
    }
}

pub fn read(path: &Path) -> Result<String> {
    let source: std::io::Result<Box<dyn Read>> = match is_standard_input(path) {
        true => Ok(Box::new(std::io::stdin().lock())),
        false => std::fs::File::open(path).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let mut text = String::new();
    let read = source.and_then(|source| source.take(LARGEST + 1).read_to_string(&mut text));
    let length = read.map_err(|error| Failure::read(&name(path), &error))?;
    if length as u64 > LARGEST {
        let what = format!("cannot read the policy {}: it is larger than {} MiB", name(path), LARGEST >> 20);
        return Err(Failure::new(what));
    }
    Ok(text)
}

fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}
