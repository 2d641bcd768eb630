// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An experiment in an emulated machine (`--vm`): the same command, run by a guest of `tests/vm/run.sh`.
//!
//! The guest has one CPU whose clock counts instructions, so the figures are exact, however busy this machine is; what is about two CPUs
//! has another guest. The script is part of the source tree and builds what the guest runs; so this works below that tree only.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use fief_lab_args::{Experiment, Lab};
use serde_json::Value;

use crate::error::{Context, Error, Kind, Result};

/// The kernel that has the scheduler's part.
const KERNEL: &str = "7.0";
/// A full run takes some minutes of an emulated CPU.
const LONGEST_SECONDS: &str = "1500";

/// Tells the lab in the guest that it is there.
const INSIDE: &str = "FIEF_LAB_EMULATED";

/// Whether this is the emulated machine, whose clock counts instructions.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn script() -> Result<PathBuf> {
    let here = std::env::current_dir().context("find the working directory")?;
    let found = here.ancestors().map(|folder| folder.join("tests/vm/run.sh")).find(|path| path.exists());
    found.ok_or_else(|| Error::new(Kind::Missing, "tests/vm/run.sh is not here; run this in Fief's source tree"))
}

/// A guest that an experiment, or a part of it, has.
struct Guest {
    cpus: u32,
    /// Its clock: `instructions` counts them, `host` is this machine's, and the CPUs run at the same time.
    clock: &'static str,
}

/// By their number of CPUs the experiment knows which part is theirs.
fn guests(experiment: Experiment) -> &'static [Guest] {
    const EXACT: Guest = Guest { cpus: 1, clock: "instructions" };
    const PARALLEL: Guest = Guest { cpus: 2, clock: "host" };
    match experiment {
        Experiment::CpuShares => &[EXACT, PARALLEL],
        _ => &[EXACT],
    }
}

/// Runs the experiment in its guests one after another, and prints what they printed; with `--json` the figures of all as one object.
pub fn run(args: &Lab) -> Result<()> {
    let mut figures = serde_json::Map::new();
    for guest in guests(args.experiment) {
        figures.extend(guest.run(args)?);
    }
    if args.json {
        println!("{}", Value::from(figures));
    }
    Ok(())
}

impl Guest {
    /// Its figures, which come last.
    fn run(&self, args: &Lab) -> Result<serde_json::Map<String, Value>> {
        let mut order = tempfile::NamedTempFile::new().context("make a script for the guest")?;
        let quick = if args.quick { " --quick" } else { "" };
        let json = if args.json { " --json" } else { "" };
        writeln!(order, "{INSIDE}=1 fief lab {}{quick}{json} || ended=$?", args.experiment.name())
            .context("write a script for the guest")?;
        let mut guest = Command::new(script()?)
            .arg("-s")
            .arg(order.path())
            .arg(KERNEL)
            .env("VM_CPUS", self.cpus.to_string())
            .env("VM_CLOCK", self.clock)
            .env("VM_SECONDS", LONGEST_SECONDS)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the guest")?;
        let (mut failed, mut last) = (None, None);
        for line in BufReader::new(guest.stdout.take().expect("piped")).lines() {
            let line = line.context("read what the guest says")?;
            if line.starts_with("FAILED") || line.starts_with("skipped") {
                failed = Some(line.clone());
            }
            match serde_json::from_str(&line) {
                Ok(Value::Object(object)) if args.json => {
                    if let Some(before) = last.replace(object) {
                        println!("{}", Value::from(before));
                    }
                }
                _ if args.json => eprintln!("{line}"),
                _ => println!("{line}"),
            }
        }
        let ended = guest.wait().context("wait for the guest")?;
        if !ended.success() && failed.is_none() {
            failed = Some(format!("the guest failed: {ended}"));
        }
        failed.map_or(Ok(last.unwrap_or_default()), |line| Err(Error::failed(line)))
    }
}
