// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab as a user has it: `fief lab`, which becomes `fief-lab`, which starts `fief`.
//!
//! That there are tests here makes cargo build `fief-lab` before the tests of the workspace run, as those of fief-cli do for `fief`.

mod experiments;
mod killed;
mod page;

use std::path::Path;
use std::process::{Command, Stdio};

/// `fief lab NAME --quick`
fn lab(name: &str) -> Command {
    let fief = Path::new(env!("CARGO_BIN_EXE_fief-lab")).with_file_name("fief");
    assert!(fief.exists(), "{} is not there: cargo build -p fief-cli", fief.display());
    let mut command = Command::new(fief);
    command.args(["lab", name, "--quick"]).stdin(Stdio::null());
    command
}
