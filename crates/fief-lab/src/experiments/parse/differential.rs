// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether Fief reads what servers read: mutated heads and ClientHellos, sent through Fief and without to real servers.
//!
//! The differential test's own program does it (`fief-fuzz`, which `make fuzz` runs). It is no part of an installed fief, so
//! it is looked for beside the running one, where cargo puts both.

use crate::command::beside;
use crate::error::{Context, Error, Result};
use fief_testkit::Process;
use serde::Deserialize;
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = "fief-fuzz";
/// Of a hundred thousand cases for seven servers; a bound, and no measure.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

/// How often they disagreed.
#[derive(Clone, Debug, Default)]
pub struct Difference {
    pub tallies: Vec<Tally>,
}

/// Of one server and one kind of speech: a line of the program.
#[derive(Clone, Debug, Deserialize)]
pub struct Tally {
    pub server: String,
    /// Heads, or hellos.
    #[serde(default = "heads")]
    pub speech: String,
    pub cases: u64,
    /// Requests that the server served as the refused resource and Fief let pass.
    pub let_round: u64,
    /// Valid and allowed requests that the server served and Fief refused each time.
    pub refused_wrongly: u64,
    /// As these, but another of the servers reads the refused resource in them, or a request where none is: no failures.
    #[serde(default)]
    pub read_otherwise: u64,
    /// As these, but served when they were tried again: no failures.
    #[serde(default)]
    pub unsteady: u64,
    /// Some of both, as the program tells them.
    #[serde(default)]
    pub failures: Vec<String>,
}

fn heads() -> String {
    "heads".to_owned()
}

impl Difference {
    pub fn total(&self, of: fn(&Tally) -> u64) -> u64 {
        self.tallies.iter().map(of).sum()
    }

    /// Each once.
    pub fn servers(&self) -> Vec<&str> {
        let mut servers: Vec<&str> = self.tallies.iter().map(|tally| tally.server.as_str()).collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    /// Of the server that had the fewest.
    pub fn least_cases(&self) -> u64 {
        let of = |server: &str| self.tallies.iter().filter(|one| one.server == server).map(|one| one.cases).sum();
        self.servers().into_iter().map(of).min().unwrap_or(0)
    }

    pub fn to_json(&self) -> Vec<Value> {
        let line = |one: &Tally| {
            json!({
                "experiment": "parse", "part": "differential", "server": one.server, "speech": one.speech,
                "cases": one.cases, "let_round": one.let_round, "refused_wrongly": one.refused_wrongly,
                "read_otherwise": one.read_otherwise, "unsteady": one.unsteady, "failures": one.failures,
            })
        };
        self.tallies.iter().map(line).collect()
    }
}

/// So many cases for each server; an error of the kind `Missing` where the program is not there.
pub fn measure(cases: usize) -> Result<Difference> {
    let program = beside(PROGRAM, "fief-tests-differential")?;
    // in a group of its own no signal to the lab's reaches it
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).arg(&program);
    // a scope of its own; and some are made smaller, so that they can be told
    command.args(["--json", "--shrink", "20", "--seed", "1", "--cases"]).arg(cases.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let output = Process::start(command)?.finish(LONGEST)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let tallies: Vec<Tally> = text
        .lines()
        .map(|line| serde_json::from_str(line).context("read a line of the differential test"))
        .collect::<Result<_>>()?;
    // it ends with failure where it found something, which the tallies say
    if tallies.is_empty() {
        return Err(Error::failed(format!("{} ended with {} and told nothing", program.display(), output.status)));
    }
    Ok(Difference { tallies })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_lines_are_read_and_summed() {
        let line = r#"{"server":"nginx","speech":"heads","seed":1,"cases":7,"let_round":1,"refused_wrongly":2,
            "read_otherwise":3,"unsteady":4,"failures":["one"],"held":0}"#;
        let tally: Tally = serde_json::from_str(line).expect("a line");
        assert_eq!(
            (tally.failures.as_slice(), tally.read_otherwise, tally.unsteady),
            (["one".to_owned()].as_slice(), 3, 4)
        );
        let hellos = Tally { speech: "hellos".into(), cases: 3, ..tally.clone() };
        let other = Tally { server: "go".into(), ..tally.clone() };
        let difference = Difference { tallies: vec![tally, hellos, other] };
        assert_eq!((difference.total(|one| one.let_round), difference.total(|one| one.refused_wrongly)), (3, 6));
        assert_eq!((difference.servers(), difference.least_cases()), (vec!["go", "nginx"], 7));
        assert_eq!(
            (&difference.to_json()[0]["read_otherwise"], &difference.to_json()[0]["unsteady"]),
            (&json!(3), &json!(4))
        );
    }
}
