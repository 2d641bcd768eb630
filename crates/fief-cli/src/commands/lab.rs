// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief lab`: hands over to the crate fief-lab, which also starts this program as its load generators and servers.

use crate::cli::Lab;
use crate::failure::{Failure, Result};

pub fn run(args: &Lab) -> Result<()> {
    let experiment = fief_lab::Experiment::from_name(&args.experiment)
        .ok_or_else(|| Failure::usage(format!("no experiment is called {}", args.experiment)))?;
    let args = fief_lab::Args { experiment, quick: args.quick, json: args.json, report: args.report.clone() };
    fief_lab::run(&args)?;
    Ok(())
}
