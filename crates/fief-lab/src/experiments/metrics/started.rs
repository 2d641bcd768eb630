// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long it takes from a command until a client has its first answer: under `fief run`, which first puts a policy in force, and under
//! `fief exec` beside it. What the server takes by itself is the floor.
//!
//! A client of the same machine asks again and again from the command on; the server is the lab's own.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fief_testkit::{NetNs, Process};
use serde_json::{Value, json};

use crate::command::{DOWN, PolicyFile, fief, own};
use crate::error::{Context, Error, Result};
use crate::figures::Figures;
use crate::plot::Plot;
use crate::progress::Progress;
use crate::statistics::median;

/// Two classes and rules of requests: the front door is loaded and attached. `fief exec` serves the other listener.
const POLICY: &str = "version = 1\n\n[container.lab]\n[container.\"lab/gold\"]\ncpu.priority = 200\n\n\
                      [listener.web]\naddress = \"0.0.0.0:8080\"\nclasses = \"listeners\"\n\
                      [[listener.web.client]]\nfrom = [\"10.77.1.0/24\"]\ncontainer = \"lab/gold\"\n\
                      [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"lab\"\n\
                      [[listener.web.request]]\npath = \"/secret/*\"\nrefuse = \"503\"\n\
                      [listener.beside]\naddress = \"0.0.0.0:8081\"\nclasses = \"listeners\"\n\
                      [[listener.beside.client]]\nfrom = [\"10.77.1.0/24\"]\ncontainer = \"lab/gold\"\n\
                      [[listener.beside.client]]\nfrom = [\"any\"]\ncontainer = \"lab\"\n";
const PORT: u16 = 8080;
const PORT_BESIDE: u16 = 8081;
/// A server that has not answered by then never will.
const SOON: Duration = Duration::from_secs(30);
/// From one connection that was refused to the next: little beside what is measured, and no load.
const AGAIN: Duration = Duration::from_micros(200);

/// ms until a server had answered, a value a round.
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
    let server = own()?;
    let words = |port: u16| ["lab-server".into(), port.to_string().into()];
    for round in 0..rounds {
        progress.step(&format!("a server starts, {}", round + 1))?;
        let mut alone = Command::new(&server);
        alone.args(words(PORT));
        namespace.enter(&mut alone);
        let (alone_ms, alone) = start(alone, PORT, namespace)?;
        end(alone)?;
        let (run_ms, run) = start(policy.run(namespace, &server, words(PORT).into())?, PORT, namespace)?;
        let mut exec = fief()?;
        namespace.enter(&mut exec);
        exec.args(["exec", "--listener", "beside", "--"]).arg(&server).args(words(PORT_BESIDE));
        let (exec_ms, exec) = start(exec, PORT_BESIDE, namespace)?;
        end(exec)?;
        end(run)?;
        started.alone.push(alone_ms);
        started.run.push(run_ms);
        started.exec.push(exec_ms);
    }
    Ok(started)
}

fn start(mut command: Command, port: u16, namespace: &NetNs) -> Result<(f64, Process)> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let process = Process::start(command)?;
    let answered = namespace.run(|| first_answer(port))?.context("ask a server that was started")?;
    Ok(((answered - begun).as_secs_f64() * 1e3, process))
}

/// When the first byte of an answer came.
fn first_answer(port: u16) -> std::io::Result<Instant> {
    let ask = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        stream.read_exact(&mut [0]).map(|()| Instant::now())
    };
    let until = Instant::now() + SOON;
    loop {
        match ask() {
            // nobody listens yet
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < until => {
                std::thread::sleep(AGAIN);
            }
            answered => return answered,
        }
    }
}

fn end(process: Process) -> Result<()> {
    process.stop(DOWN).map(drop).ok_or_else(|| Error::failed("a server that was started does not end"))
}

impl Started {
    pub fn add_figures(&self, figures: &mut Figures) {
        let load = "a policy with two classes and a rule of requests; the lab's own server, and a client that asks again and again";
        for (name, ms, metric) in [
            (
                "start_ms",
                &self.run,
                "from `fief run` until a client has the first answer of its server, with the policy put in force before it",
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
        Plot::of_rounds("starts", "Until the first answer of a server", "ms", series)
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
