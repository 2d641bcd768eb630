// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sites and the background on the server's core, by one way, and what each does in a window.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

use fief_testkit::Client;

use super::background::Background;
use super::policy::{BACKGROUND, SITES, Site, policy};
use super::{Done, Measured, Step, Way};
use crate::bench::Bench;
use crate::cgi_server::{CgiServer, PROGRAM, Settings, TEXT};
use crate::command::{DOWN, PolicyFile, fief};
use crate::error::{Error, Kind, Result};
use crate::installation::{Installation, cpu_enforced_by};
use crate::load::{Load, Running};
use crate::noise::Snapshot;
use crate::vm;

/// About half a millisecond of compression on one core of today, beside which receive work is little.
const TEXT_BYTES: usize = 32 * 1024;
/// A request must not last so long on an emulated CPU that few are counted.
const TEXT_BYTES_EMULATED: usize = 8 * 1024;
/// Of each program.
const PROGRAM_MS: u64 = 1000;
/// Everything that is wanted is there before the window, and so long behind it.
const REST: f64 = 1.0;
/// Ends with its guard.
#[derive(Debug)]
pub struct Host<'a> {
    bench: &'a Bench,
    way: Way,
    // before the installation, so that they end first
    servers: Vec<CgiServer>,
    background: Background,
    installation: Option<Installation>,
    holder: Option<String>,
}

impl<'a> Host<'a> {
    pub fn start(bench: &'a Bench, way: Way) -> Result<Host<'a>> {
        let installation = match way {
            Way::Fief => Some(Installation::apply_in(&PolicyFile::new(&policy())?, bench.servers())?),
            _ => None,
        };
        let start = |site: &Site| {
            let settings = Settings {
                port: site.port,
                program_ms: PROGRAM_MS,
                text: if vm::is_inside() { TEXT_BYTES_EMULATED } else { TEXT_BYTES },
                most_connections: (way == Way::OwnLimits).then_some(site.most_connections),
            };
            CgiServer::start(bench.servers(), &settings, |words| {
                let words = std::iter::once("lighttpd".into()).chain(words).collect();
                match way {
                    Way::Fief => exec(bench, &["--container", site.name, "--listener", site.name], words),
                    _ => Ok(bare(bench, words)),
                }
            })
        };
        let servers = SITES.iter().map(start).collect::<Result<_>>()?;
        let background = Background::start(|words| match way {
            Way::Fief => exec(bench, &["--container", BACKGROUND, "--no-follow"], words),
            _ => Ok(bare(bench, words)),
        })?;
        let holder = match way {
            Way::Fief => Some(cpu_enforced_by(SITES[0].name)?),
            _ => None,
        };
        Ok(Host { bench, way, servers, background, installation, holder })
    }

    /// The enforcer of the shares; `None`: there is none.
    pub fn holder(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    pub fn measure(&mut self, step: Step, round: usize, seconds: f64, warm_up: f64) -> Result<Measured> {
        let _first = self.bench.first()?;
        let length = seconds + REST;
        let mut texts = Vec::new();
        let mut programs = Vec::new();
        // A's first: its clients count until the others have gone
        for (at, site) in SITES.iter().enumerate() {
            let wants = step.at(at);
            texts.push(self.load(site, TEXT, wants.texts, length, warm_up)?);
            programs.push(self.load(site, PROGRAM, wants.programs, warm_up + length, 0.0)?);
        }
        self.background.compute(step.background)?;
        std::thread::sleep(Duration::from_secs_f64(warm_up));
        let (noise, begin, before) = (Snapshot::take(), Instant::now(), self.used()?);
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (after, passed) = (self.used()?, begin.elapsed().as_secs_f64());
        let noise = noise.until_now();
        let mut sites = [Done::default(); SITES.len()];
        let percent = |after: f64, before: f64| 100.0 * (after - before) / passed;
        for (at, site) in sites.iter_mut().enumerate() {
            let ([server, programs], [server_before, programs_before]) = (after.sites[at], before.sites[at]);
            site.server = percent(server, server_before);
            site.programs = percent(programs, programs_before);
        }
        for (site, load) in sites.iter_mut().zip(texts) {
            let Some(seen) = load.map(Running::finish).transpose()? else { continue };
            if seen.errors > 0 {
                return Err(Error::failed(format!("{} static requests failed", seen.errors)));
            }
            site.texts = seen.per_second();
        }
        self.background.compute(0)?;
        programs.into_iter().flatten().try_for_each(|load| load.finish().map(drop))?;
        self.servers.iter().try_for_each(CgiServer::end_programs)?;
        Ok(Measured {
            way: self.way,
            step,
            round,
            sites,
            background: percent(after.background, before.background),
            is_disturbed: noise.is_disturbed(),
        })
    }

    /// `None`: nobody asks.
    fn load(&self, site: &Site, path: &str, clients: usize, seconds: f64, warm_up: f64) -> Result<Option<Running>> {
        let load = Load { seconds, warm_up, ..self.bench.load(Client::Low, clients, site.port, path) };
        (clients > 0).then(|| load.start(self.bench.clients())).transpose()
    }

    fn used(&self) -> Result<Used> {
        let of = |server: &CgiServer| Ok([server.server_seconds(), server.program_seconds()?]);
        let sites = self.servers.iter().map(of).collect::<Result<_>>()?;
        Ok(Used { sites, background: self.background.seconds() })
    }

    /// Ends all; an error if Fief did not come down in order.
    pub fn stop(self) -> Result<()> {
        let is_fief = self.installation.is_some();
        for server in self.servers {
            if server.stop().is_none() && is_fief {
                return Err(Error::new(Kind::Failed, format!("fief exec did not end within {DOWN:?}")));
            }
        }
        self.background.stop()?;
        self.installation.map_or(Ok(()), Installation::down)
    }
}

/// CPU seconds up to now.
#[derive(Debug)]
struct Used {
    /// Of the server and of its programs.
    sites: Vec<[f64; 2]>,
    background: f64,
}

fn exec(bench: &Bench, options: &[&str], words: Vec<OsString>) -> Result<Command> {
    let mut command = fief()?;
    bench.servers().enter(&mut command);
    command.arg("exec").args(options).arg("--").args(words);
    Ok(command)
}

fn bare(bench: &Bench, words: Vec<OsString>) -> Command {
    let mut words = words.into_iter();
    let mut command = bench.servers().command(words.next().expect("the first word is the program"));
    command.args(words);
    command
}
