// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a server waits for Fief before it starts: under `fief run`, which first puts a policy in force, and under `fief exec` beside
//! it. A server that is at once there says so; what it takes by itself is the floor.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use fief_testkit::{NetNs, Process};
use serde_json::{Value, json};

use crate::command::{DOWN, PolicyFile, fief};
use crate::error::{Context, Error, Result};
use crate::figures::Figures;
use crate::plot::Plot;
use crate::progress::Progress;
use crate::statistics::median;

/// Two classes and rules of requests: the front door is loaded and attached.
const POLICY: &str = "version = 1\n\n[container.lab]\n[container.\"lab/gold\"]\ncpu.priority = 200\n\n\
                      [listener.web]\naddress = \"0.0.0.0:8080\"\n\
                      [[listener.web.client]]\nfrom = [\"10.77.1.0/24\"]\ncontainer = \"lab/gold\"\n\
                      [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"lab\"\n\
                      [[listener.web.request]]\npath = \"/secret/*\"\nrefuse = \"503\"\n";
/// Says that it is there, and ends with its input.
const SERVER: [&str; 3] = ["sh", "-c", "echo here; read -r end"];

/// ms until a server was there, a value a round.
#[derive(Debug, Default)]
pub struct Started {
    alone: Vec<f64>,
    run: Vec<f64>,
    exec: Vec<f64>,
}

/// One step a round.
pub fn measure(rounds: usize, namespace: &NetNs, progress: &mut Progress) -> Result<Started> {
    let policy = PolicyFile::new(POLICY)?;
    let mut started = Started::default();
    for round in 0..rounds {
        progress.step(&format!("a server starts, {}", round + 1))?;
        let mut alone = Command::new(SERVER[0]);
        alone.args(&SERVER[1..]);
        namespace.enter(&mut alone);
        let (alone_ms, alone) = start(alone)?;
        end(alone)?;
        let (run_ms, run) = start(policy.run(namespace, SERVER[0], SERVER[1..].iter().map(Into::into).collect())?)?;
        let mut exec = fief()?;
        namespace.enter(&mut exec);
        exec.args(["exec", "--"]).args(SERVER);
        let (exec_ms, exec) = start(exec)?;
        end(exec)?;
        end(run)?;
        started.alone.push(alone_ms);
        started.run.push(run_ms);
        started.exec.push(exec_ms);
    }
    Ok(started)
}

fn start(mut command: Command) -> Result<(f64, Process)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let begun = Instant::now();
    let mut process = Process::start(command)?;
    let mut line = String::new();
    let mut said = BufReader::new(process.child().stdout.take().expect("it was piped"));
    said.read_line(&mut line).context("hear a server that was started")?;
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    match line.as_str() {
        "here\n" => Ok((ms, process)),
        _ => Err(Error::failed("a server that was started ended at once; its own words are above")),
    }
}

fn end(mut process: Process) -> Result<()> {
    drop(process.child().stdin.take());
    process.finish(DOWN).map(drop).map_err(Error::from)
}

impl Started {
    pub fn add_figures(&self, figures: &mut Figures) {
        let load =
            "a policy with two classes and a rule of requests; a shell as the server, which says that it is there";
        for (name, ms, metric) in [
            (
                "start_ms",
                &self.run,
                "from `fief run` until its server is there, with the policy put in force before it",
            ),
            ("start_exec_ms", &self.exec, "the same by `fief exec`, under the policy that is in force"),
            ("start_alone_ms", &self.alone, "the same of the server by itself"),
        ] {
            figures.add(name, median(ms)).of(metric, "ms", load);
        }
    }

    pub fn plot(&self) -> Plot {
        let of = |name: &str, ms: &Vec<f64>| (name.to_owned(), ms.clone());
        let series = [of("alone", &self.alone), of("fief exec", &self.exec), of("fief run", &self.run)];
        Plot::of_rounds("starts", "Until a server is there", "ms", series)
    }

    pub fn measurements(&self) -> impl Iterator<Item = Value> {
        let rounds = self.alone.iter().zip(&self.run).zip(&self.exec).enumerate();
        rounds.map(|(round, ((alone, run), exec))| {
            json!({
                "experiment": "metrics", "part": "start", "round": round, "start_ms": run, "start_exec_ms": exec,
                "start_alone_ms": alone,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_the_median_of_the_rounds_beside_what_the_server_takes_itself() {
        let started = Started { alone: vec![2.0, 1.0, 3.0], run: vec![900.0, 90.0, 80.0], exec: vec![9.0, 8.0, 7.0] };
        let mut figures = Figures::default();
        started.add_figures(&mut figures);
        let named = ["start_ms", "start_exec_ms", "start_alone_ms"].map(|name| figures.get(name));
        assert_eq!(named, [Some(90.0), Some(8.0), Some(2.0)]);
        assert_eq!(started.measurements().count(), 3);
    }
}
