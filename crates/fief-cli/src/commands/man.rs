// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief man`: writes the man pages, made of the command line's own description. Hidden: it is for packages.

use clap::CommandFactory;

use crate::cli::{Cli, Man};
use crate::failure::{Failure, Result};

pub fn run(args: &Man) -> Result<()> {
    let folder = &args.folder;
    let made = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    made.map_err(|error| Failure::new(format!("cannot write the man pages into {}: {error}", folder.display())))
}
