// SPDX-License-Identifier: Apache-2.0 OR MIT
//! lighttpd with a CGI program on the server's core, by one way, and what it and its programs do in a window.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Instant;

use fief_testkit::{Client, Process, Topology, lives, pin_command, wait_ready, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};

use super::{Measured, Way};
use crate::command::{DOWN, PolicyFile, own};
use crate::cpu_time::cpu_seconds;
use crate::error::{Context, Error, Result};
use crate::load::Load;
use crate::noise::Snapshot;

const PORT: u16 = 80;
/// Of each program.
const PROGRAM_MS: u64 = 2000;
/// Who ask for the static file, one request each.
const STATIC_CLIENTS: usize = 16;

/// Ends with its guard.
#[derive(Debug)]
pub struct Site<'a> {
    topology: &'a Topology,
    way: Way,
    process: Option<Process>,
    /// Its first process.
    server: u32,
    policy: Option<PolicyFile>,
    _folder: tempfile::TempDir,
}

impl<'a> Site<'a> {
    pub fn start(topology: &'a Topology, way: Way) -> Result<Site<'a>> {
        let folder = tempfile::Builder::new().prefix("ff-server-").tempdir().context("make a folder for lighttpd")?;
        let root = folder.path().display().to_string();
        let write = |name: &str, text: String, mode: u32| {
            let file = folder.path().join(name);
            fs::write(&file, text).context(format!("write {}", file.display()))?;
            fs::set_permissions(&file, Permissions::from_mode(mode)).context("open a file to the server")
        };
        write("1k", "x".repeat(1024), 0o644)?;
        write("spend.cgi", format!("#!/bin/sh\nexec '{}' lab-cgi {PROGRAM_MS}\n", own()?.display()), 0o755)?;
        write("lighttpd.conf", LIGHTTPD.replace("@ROOT@", &root), 0o644)?;
        let policy = policy(way)?.map(|text| PolicyFile::new(&text)).transpose()?;
        let words = ["-D".into(), "-f".into(), folder.path().join("lighttpd.conf").into()];
        let mut command = match &policy {
            Some(policy) => policy.run(&topology.server, "lighttpd", words.to_vec())?,
            None => {
                let mut command = topology.server.command("lighttpd");
                command.args(words);
                command
            }
        };
        let log = folder.path().join("said");
        let said = File::create(&log).context("make a file for what lighttpd says")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        pin_command(&mut command, Topology::server_cpu());
        let mut process = Process::start(command)?;
        process.ask_first(DOWN);
        wait_ready(&topology.server, &mut process, PORT, Some(&log))?;
        let server = by_name(topology, "lighttpd").into_iter().min();
        let server = server.ok_or_else(|| Error::failed("lighttpd answers, and is not there"))?;
        Ok(Site { topology, way, process: Some(process), server, policy, _folder: folder })
    }

    /// So many programs at a time, and as many static requests as it does meanwhile.
    pub fn measure(&self, programs: usize, round: usize, seconds: f64, warm_up: f64) -> Result<Measured> {
        let rest = 1.0; // the programs are there before the window and behind it
        let load = |path: &str, class, clients, seconds, warm_up| Load {
            path: path.to_owned(),
            seconds,
            warm_up,
            ..Load::of(class, 10, clients)
        };
        let cgi = load("/spend.cgi", Client::Low, programs, warm_up + seconds + rest, 0.0);
        let cgi = (programs > 0).then(|| cgi.start(&self.topology.clients)).transpose()?;
        let files = load("/1k", Client::High, STATIC_CLIENTS, warm_up + seconds + rest, warm_up);
        let files = files.start(&self.topology.clients)?;
        std::thread::sleep(std::time::Duration::from_secs_f64(warm_up));
        let (noise, begin, before) = (Snapshot::take(), Instant::now(), self.program_seconds()?);
        std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
        let (used, passed) = (self.program_seconds()? - before, begin.elapsed().as_secs_f64());
        let noise = noise.until_now();
        let seen = files.finish()?;
        cgi.map(|cgi| cgi.finish()).transpose()?;
        self.end_programs()?;
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

    /// CPU time of all programs up to now: of those that run, and of those that the server has buried.
    fn program_seconds(&self) -> Result<f64> {
        let stat = format!("/proc/{}/stat", self.server);
        let text = fs::read_to_string(&stat).context(format!("read {stat}"))?;
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64;
        let buried = buried_ticks(&text).ok_or_else(|| Error::failed(format!("{stat} has another form")))?;
        Ok(buried as f64 / ticks + cpu_seconds(&self.programs()))
    }

    fn programs(&self) -> Vec<u32> {
        // the script before it has become the program
        ["fief-lab", "spend.cgi"].into_iter().flat_map(|name| by_name(self.topology, name)).collect()
    }

    /// Their clients have gone.
    fn end_programs(&self) -> Result<()> {
        let all = self.programs();
        for pid in &all {
            // one that has ended is as good
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        Ok(wait_until(DOWN, || all.iter().all(|pid| !lives(*pid)))?)
    }

    /// Ends it; an error if Fief did not come down in order.
    pub fn stop(mut self) -> Result<()> {
        let ended = self.process.take().and_then(|process| process.stop(DOWN));
        match (&self.policy, ended) {
            (Some(_), None) => Err(Error::failed(format!("fief run did not end within {DOWN:?}"))),
            _ => Ok(()),
        }
    }
}

/// The loads are in the other namespace.
fn by_name(topology: &Topology, name: &str) -> Vec<u32> {
    let is_it = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
    topology.server.pids().into_iter().filter(is_it).collect()
}

/// Of a process's children that it has waited for: user and system time, the 16th and 17th field.
fn buried_ticks(stat: &str) -> Option<u64> {
    // the name is in parentheses and may hold anything; the third field follows it
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(field(16)? + field(17)?)
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

const LIGHTTPD: &str = "
server.document-root = \"@ROOT@\"
server.port = 80
server.bind = \"0.0.0.0\"
server.listen-backlog = 4096
server.modules = (\"mod_cgi\")
server.errorlog = \"@ROOT@/error.log\"
cgi.assign = (\".cgi\" => \"\")
mimetype.assign = (\"\" => \"text/plain\")
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_buried_children_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 130 14 20 0 1 0 500 1000 50";
        assert_eq!(buried_ticks(stat), Some(144));
        assert_eq!(buried_ticks("7 (a) S 1"), None);
    }

    #[test]
    fn a_limit_of_the_core_is_a_part_of_the_machine_in_the_policy() {
        assert_eq!(policy(super::super::WAYS[0]).expect("none"), None);
        let cpus = std::thread::available_parallelism().expect("a number").get() as f64;
        let text = policy(super::super::WAYS[1]).expect("a policy").expect("with a limit");
        assert!(text.contains(&format!("cpu.limit = \"{:.4}%\"", 30.0 / cpus)), "{text}");
    }
}
