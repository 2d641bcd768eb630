// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An experiment in an emulated machine (`--vm`): the same command, run by a guest of `tests/vm/run.sh`.
//!
//! The guest has one CPU whose clock counts instructions, so the figures are exact, however busy this machine is; what is about two CPUs
//! has another guest. The script is part of the source tree and builds what the guest runs; so this works below that tree only.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
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

/// Where the guest leaves its report, and what begins each line of it: the folder, packed.
const REPORT: &str = "/tmp/report";
const PACKED: &str = "report: ";

/// Whether this is the emulated machine, whose clock counts instructions.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// How often to measure, of so many times: once where the clock is exact, which leaves nothing to make up for.
pub fn rounds(times: usize) -> usize {
    if is_inside() { 1 } else { times }
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
        let (said, report) = guest.run(args)?;
        figures.extend(said);
        if let Some(folder) = &args.report {
            let folder = if guest.cpus == 1 { folder.clone() } else { folder.join(format!("{}-cpus", guest.cpus)) };
            unpack(&report, &folder)?;
            if !args.json {
                println!("Report: {}", folder.join("index.html").display());
            }
        }
    }
    if args.json {
        println!("{}", Value::from(figures));
    }
    Ok(())
}

impl Guest {
    /// Its figures, which come last, and its packed report.
    fn run(&self, args: &Lab) -> Result<(serde_json::Map<String, Value>, String)> {
        let mut order = tempfile::NamedTempFile::new().context("make a script for the guest")?;
        order.write_all(script_of(args).as_bytes()).context("write a script for the guest")?;
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
        let (mut failed, mut last, mut report) = (None, None, String::new());
        for line in BufReader::new(guest.stdout.take().expect("piped")).lines() {
            let line = line.context("read what the guest says")?;
            if let Some(packed) = line.strip_prefix(PACKED) {
                report += packed;
                continue;
            }
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
        failed.map_or(Ok((last.unwrap_or_default(), report)), |line| Err(Error::failed(line)))
    }
}

/// The lines that the guest runs.
fn script_of(args: &Lab) -> String {
    let given = |given: bool, word: &str| if given { format!(" {word}") } else { String::new() };
    let name = args.experiment.name();
    let (quick, json) = (given(args.quick, "--quick"), given(args.json, "--json"));
    let report = given(args.report.is_some(), &format!("--report {REPORT}"));
    let packs = format!("[ ! -d {REPORT} ] || tar -cz -C {REPORT} . | base64 | sed 's/^/{PACKED}/'\n");
    let packs = if args.report.is_some() { packs.as_str() } else { "" };
    format!("{INSIDE}=1 fief lab {name}{quick}{json}{report} || ended=$?\n{packs}")
}

/// Makes the folder that the guest packed.
fn unpack(packed: &str, folder: &Path) -> Result<()> {
    let what = format!("unpack the guest's report into {}", folder.display());
    std::fs::create_dir_all(folder).context(what.clone())?;
    let mut tar = Command::new("sh");
    tar.args(["-c", "base64 -d | tar -xz -C \"$0\""]).arg(folder).stdin(Stdio::piped());
    let mut tar = tar.spawn().context(what.clone())?;
    tar.stdin.take().expect("piped").write_all(packed.as_bytes()).context(what.clone())?;
    let ended = tar.wait().context(what.clone())?;
    if ended.success() { Ok(()) } else { Err(Error::failed(format!("{what}: {ended}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(report: Option<&str>) -> Lab {
        Lab { experiment: Experiment::CpuLimits, quick: true, json: false, vm: true, report: report.map(PathBuf::from) }
    }

    #[test]
    fn the_guest_is_asked_for_a_report_where_one_is_wanted() {
        assert_eq!(script_of(&args(None)), "FIEF_LAB_EMULATED=1 fief lab cpu-limits --quick || ended=$?\n");
        let script = script_of(&args(Some("/a/b")));
        assert!(
            script.starts_with("FIEF_LAB_EMULATED=1 fief lab cpu-limits --quick --report /tmp/report ||"),
            "{script}"
        );
    }

    #[test]
    fn a_report_comes_out_as_it_was_packed() {
        let folder = tempfile::tempdir().expect("a folder");
        let from = folder.path().join("from");
        std::fs::create_dir(&from).expect("a folder");
        std::fs::write(from.join("index.html"), "a page").expect("written");
        let packs = format!("tar -cz -C {} . | base64", from.display());
        let packed = Command::new("sh").args(["-c", &packs]).output().expect("packed").stdout;
        let packed = String::from_utf8(packed).expect("text").replace('\n', "");
        let to = folder.path().join("to/there");
        unpack(&packed, &to).expect("unpacked");
        assert_eq!(std::fs::read_to_string(to.join("index.html")).expect("a page"), "a page");
        unpack("", &to).expect_err("nothing was packed");
    }
}
