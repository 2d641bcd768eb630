// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief down`: takes down everything that is in force.

use serde::Serialize;

use crate::cli;
use crate::failure::Result;
use crate::output::Output;
use fief_control::{Down, Fief};

pub fn run(args: &cli::Down, output: &mut Output) -> Result<()> {
    let down = Fief::from_env()?.down()?;
    match args.json {
        true => output.json(&Record { units: down.units, containers: down.containers, still_held: down.still_held }),
        false => output.line(report(&down)),
    }
}

#[derive(Serialize)]
struct Record {
    units: usize,
    containers: usize,
    still_held: usize,
}

fn report(down: &Down) -> String {
    let mut line = format!("took down {} containers and {} managed units", down.containers, down.units);
    if down.still_held > 0 {
        line.push_str(&format!("; applications still hold {} of the containers", down.still_held));
    }
    line
}
