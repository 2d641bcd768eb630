// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of containers as files.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Show the containers as folders and files
///
/// A folder for each container, nested as they are, with the files `status` and `usage` to read and `cmd` to write. Root makes a
/// container by `mkdir`, ends one by `rmdir`, and writes lines into `cmd`: attributes as in a policy (`cpu.weight 200`,
/// `cpu.limit 50%`, `cpu.limit max`), or `bind PID`. Members of the group read. Serves until Ctrl-C, SIGTERM, `fief umount` or `fief
/// down`; what was made stays. A mount whose server was killed is replaced.
#[derive(Debug, Args)]
pub struct Mount {
    /// The folder
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// Members of this group may read; without it those of the group fief, if there is one
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
}

/// End a mount of containers
///
/// Also one whose server was killed. What was made there stays, until `rmdir` in another mount or `fief down`.
#[derive(Debug, Args)]
pub struct Umount {
    /// The folder
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
}
