// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of what packages are made with: completions, man pages, bindings.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub struct Completions {
    pub shell: clap_complete::Shell,
}

/// Write the man pages into a folder, one for each command
#[derive(Debug, Args)]
pub struct Man {
    /// The folder, made if it is not there
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}

/// Write what programs in C and Python call Fief by: fief.h, fief.pc, fief.py
#[derive(Debug, Args)]
pub struct Interface {
    /// Folder, made if it is not there
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// Where it will be installed, for pkg-config
    #[arg(long, default_value = "/usr/local")]
    pub prefix: String,
}
