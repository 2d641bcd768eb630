// SPDX-License-Identifier: Apache-2.0 OR MIT
//! lighttpd with a CGI program on the server's core, by one way, and what it and its programs do in a window.

use std::time::Instant;

use fief_testkit::Client;

use super::{Measured, Way};
use crate::bench::Bench;
use crate::cgi_server::{CgiServer, FILE, PROGRAM, Settings};
use crate::command::{DOWN, PolicyFile};
use crate::error::{Context, Error, Result};
use crate::load::Load;
use crate::noise::Snapshot;

const PORT: u16 = 80;
const SETTINGS: Settings = Settings { port: PORT, program_ms: 2000, text: 0, most_connections: None };
/// Who ask for the static file, one request each.
const STATIC_CLIENTS: usize = 16;

/// Ends with its guard.
#[derive(Debug)]
pub struct Site<'a> {
    bench: &'a Bench,
    way: Way,
    server: CgiServer,
    policy: Option<PolicyFile>,
}

impl<'a> Site<'a> {
    pub fn start(bench: &'a Bench, way: Way) -> Result<Site<'a>> {
        let policy = policy(way)?.map(|text| PolicyFile::new(&text)).transpose()?;
        let server = CgiServer::start(bench.servers(), &SETTINGS, |words| match &policy {
            Some(policy) => policy.run(bench.servers(), "lighttpd", words),
            None => {
                let mut command = bench.servers().command("lighttpd");
                command.args(words);
                Ok(command)
            }
        })?;
        Ok(Site { bench, way, server, policy })
    }

    /// So many programs at a time, and as many static requests as it does meanwhile.
    pub fn measure(&self, programs: usize, round: usize, seconds: f64, warm_up: f64) -> Result<Measured> {
        let _first = self.bench.first()?;
        let rest = 1.0; // the programs are there before the window and behind it
        let load = |path: &str, class, clients, seconds, warm_up| Load {
            seconds,
            warm_up,
            ..self.bench.load(class, clients, PORT, path)
        };
        let cgi = load(PROGRAM, Client::Low, programs, warm_up + seconds + rest, 0.0);
        let cgi = (programs > 0).then(|| cgi.start(self.bench.clients())).transpose()?;
        let files = load(FILE, Client::High, STATIC_CLIENTS, warm_up + seconds + rest, warm_up);
        let files = files.start(self.bench.clients())?;
        std::thread::sleep(std::time::Duration::from_secs_f64(warm_up));
        let (noise, begin, before) = (Snapshot::take(), Instant::now(), self.server.program_seconds()?);
        std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
        let (used, passed) = (self.server.program_seconds()? - before, begin.elapsed().as_secs_f64());
        let noise = noise.until_now();
        let seen = files.finish()?;
        cgi.map(|cgi| cgi.finish()).transpose()?;
        self.server.end_programs()?;
        if seen.errors > 0 {
            return Err(Error::failed(format!("{} static requests failed", seen.errors)));
        }
        Ok(Measured {
            way: self.way,
            programs,
            round,
            throughput: seen.per_second(),
            share: 100.0 * used / passed,
            is_disturbed: noise.is_disturbed(),
        })
    }

    /// Ends it; an error if Fief did not come down in order.
    pub fn stop(self) -> Result<()> {
        match (&self.policy, self.server.stop()) {
            (Some(_), None) => Err(Error::failed(format!("fief run did not end within {DOWN:?}"))),
            _ => Ok(()),
        }
    }
}

/// The programs' limit is of the whole machine in the policy. The site has a share against whatever else runs, as the nice value of
/// the lab gives it without Fief; and the programs have more weight than the server, so that it is their limit that keeps them from
/// more and not the receive work for the server.
fn policy(way: Way) -> Result<Option<String>> {
    let Some(limit) = way.limit else { return Ok(None) };
    let cpus = std::thread::available_parallelism().context("count the CPUs")?.get() as f64;
    Ok(Some(format!(
        "version = 1\nschedule = \"auto\"\n[container.site]\ncpu.share = \"90%\"\nprograms = \"site/cgi\"\n[container.\"site/cgi\"]\n\
         cpu.limit = \"{:.4}%\"\ncpu.weight = 300\n[listener.web]\naddress = \"0.0.0.0:{PORT}\"\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"site\"\n",
        limit / cpus
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_core_is_a_part_of_the_machine_in_the_policy() {
        assert_eq!(policy(super::super::WAYS[0]).expect("none"), None);
        let cpus = std::thread::available_parallelism().expect("a number").get() as f64;
        let text = policy(super::super::WAYS[1]).expect("a policy").expect("with a limit");
        assert!(text.contains(&format!("cpu.limit = \"{:.4}%\"", 30.0 / cpus)), "{text}");
    }
}
