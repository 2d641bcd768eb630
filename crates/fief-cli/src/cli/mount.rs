// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of containers as files.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Show the containers as folders and files
///
/// A folder for each container, nested as they are, with the files `status` and `usage` to read and `cmd` to write. `mkdir` makes a
/// container, `rmdir` ends one, and lines written into `cmd` are attributes as in a policy (`cpu.weight 200`, `cpu.limit 50%`,
/// `cpu.limit max`), or `bind PID`. Root changes all that no policy names. Members of the group read; in the container of the unit that
/// they are in, or else in `user/UID`, they make containers of their own, within their quota, and change those. Serves until Ctrl-C,
/// SIGTERM, `fief umount` or `fief down`; what was made stays. A mount whose server was killed is replaced.
#[derive(Debug, Args)]
pub struct Mount {
    /// The folder
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// Members of this group may read, and make containers of their own; without it those of the group fief, if there is one
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
