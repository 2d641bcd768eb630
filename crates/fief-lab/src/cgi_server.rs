// SPDX-License-Identifier: Apache-2.0 OR MIT
//! lighttpd with a CGI program on the server's core, and what it and its programs had of the CPU.
//!
//! The kernel's clocks of processes tell: the server's own, those of its programs that run, and of those that it has buried.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use fief_testkit::{NetNs, Process, Topology, lives, pin_command, wait_ready, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::command::{DOWN, own};
use crate::cpu_time::cpu_seconds;
use crate::error::{Context, Error, Result};
use crate::experiments::overload::text;

/// A file of 1 kB.
pub const FILE: &str = "/1k";
/// A text that is compressed for each request, if the site has one.
pub const TEXT: &str = "/text.txt";
/// A program that computes.
pub const PROGRAM: &str = "/spend.cgi";

/// A package of its own.
const DEFLATE: &str = "/usr/lib/lighttpd/mod_deflate.so";

/// Whether lighttpd can compress here.
pub fn can_compress() -> bool {
    Path::new(DEFLATE).exists()
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub port: u16,
    /// CPU time of each program.
    pub program_ms: u64,
    /// Bytes of the text; 0: the site has none, and the server no compression.
    pub text: usize,
    /// The server's own limit; the others wait in its listen queue. `None`: more than ever ask.
    pub most_connections: Option<usize>,
}

/// Ends with its guard.
#[derive(Debug)]
pub struct CgiServer {
    process: Process,
    /// Its first process.
    server: u32,
    _folder: tempfile::TempDir,
}

impl CgiServer {
    /// `command` makes the command of the server's arguments.
    pub fn start(
        namespace: &NetNs,
        settings: &Settings,
        command: impl FnOnce(Vec<OsString>) -> Result<Command>,
    ) -> Result<CgiServer> {
        let folder = tempfile::Builder::new().prefix("ff-server-").tempdir().context("make a folder for lighttpd")?;
        let root = folder.path().display().to_string();
        let write = |name: &str, text: String, mode: u32| {
            let file = folder.path().join(name.trim_start_matches('/'));
            fs::write(&file, text).context(format!("write {}", file.display()))?;
            fs::set_permissions(&file, Permissions::from_mode(mode)).context("open a file to the server")
        };
        write(FILE, "x".repeat(1024), 0o644)?;
        write(PROGRAM, format!("#!/bin/sh\nexec '{}' lab-cgi {}\n", own()?.display(), settings.program_ms), 0o755)?;
        if settings.text > 0 {
            write(TEXT, text(settings.text), 0o644)?;
        }
        write("lighttpd.conf", configuration(&root, settings), 0o644)?;
        let file = folder.path().join("lighttpd.conf");
        let mut command = command(["-D".into(), "-f".into(), file.clone().into()].to_vec())?;
        let log = folder.path().join("said");
        let said = File::create(&log).context("make a file for what lighttpd says")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        pin_command(&mut command, Topology::server_cpu());
        let mut process = Process::start(command)?;
        process.ask_first(DOWN);
        wait_ready(namespace, &mut process, settings.port, Some(&log))?;
        let file = file.display().to_string();
        let server = namespace.pids().into_iter().filter(|pid| is_lighttpd(*pid, &file)).min();
        let server = server.ok_or_else(|| Error::failed("lighttpd answers, and is not there"))?;
        Ok(CgiServer { process, server, _folder: folder })
    }

    /// CPU time of the server itself up to now.
    pub fn server_seconds(&self) -> f64 {
        cpu_seconds(&[self.server])
    }

    /// CPU time of all programs up to now: of those that run, and of those that the server has buried.
    pub fn program_seconds(&self) -> Result<f64> {
        let stat = format!("/proc/{}/stat", self.server);
        let buried = || {
            let text = fs::read_to_string(&stat).context(format!("read {stat}"))?;
            buried_ticks(&text).ok_or_else(|| Error::failed(format!("{stat} has another form")))
        };
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64;
        let mut before = buried()?;
        loop {
            let running = cpu_seconds(&self.programs());
            let after = buried()?;
            // one that was buried meanwhile counts twice or not at all
            if after == before {
                return Ok(after as f64 / ticks + running);
            }
            before = after;
        }
    }

    fn programs(&self) -> Vec<u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_child = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            parent(&stat) == Some(self.server)
        };
        processes.filter(is_child).collect()
    }

    /// Ends those whose clients have gone.
    pub fn end_programs(&self) -> Result<()> {
        let all = self.programs();
        for pid in &all {
            // one that has ended is as good
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        Ok(wait_until(DOWN, || all.iter().all(|pid| !lives(*pid)))?)
    }

    /// `None`: it did not end in time.
    pub fn stop(self) -> Option<ExitStatus> {
        self.process.stop(DOWN)
    }
}

/// The command that has started it names the same file.
fn is_lighttpd(pid: u32, file: &str) -> bool {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    read("comm").trim_ascii() == b"lighttpd"
        && read("cmdline").split(|byte| *byte == 0).any(|word| word == file.as_bytes())
}

/// A field of a process's stat by its number in proc(5), from the third on.
fn field<T: std::str::FromStr>(stat: &str, number: usize) -> Option<T> {
    // the name is in parentheses and may hold anything; the third field follows it
    stat.rsplit_once(") ")?.1.split(' ').nth(number.checked_sub(3)?)?.trim().parse().ok()
}

fn parent(stat: &str) -> Option<u32> {
    field(stat, 4)
}

/// Of a process's children that it has waited for: user and system time.
fn buried_ticks(stat: &str) -> Option<u64> {
    Some(field::<u64>(stat, 16)? + field::<u64>(stat, 17)?)
}

fn configuration(root: &str, settings: &Settings) -> String {
    let mut text = format!(
        "server.document-root = \"{root}\"\nserver.errorlog = \"{root}/error.log\"\nserver.port = {}\nserver.bind = \"0.0.0.0\"\n\
         server.listen-backlog = 4096\ncgi.assign = (\".cgi\" => \"\")\nmimetype.assign = (\"\" => \"text/plain\")\n",
        settings.port
    );
    text += match settings.text {
        0 => "server.modules = (\"mod_cgi\")\n",
        _ => {
            "server.modules = (\"mod_cgi\", \"mod_deflate\")\ndeflate.mimetypes = (\"text/plain\")\n\
             deflate.allowed-encodings = (\"gzip\")\n"
        }
    };
    if let Some(most) = settings.most_connections {
        text += &format!("server.max-connections = {most}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_buried_children_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 130 14 20 0 1 0 500 1000 50";
        assert_eq!((buried_ticks(stat), parent(stat)), (Some(144), Some(1)));
        assert_eq!((buried_ticks("7 (a) S 1"), parent("")), (None, None));
    }

    #[test]
    fn a_limit_of_the_servers_own_and_compression_are_there_only_where_asked_for() {
        let plain = Settings { port: 80, program_ms: 1, text: 0, most_connections: None };
        let more = Settings { text: 1, most_connections: Some(7), ..plain };
        assert!(
            !configuration("/", &plain).contains("max-connections") && !configuration("/", &plain).contains("deflate")
        );
        assert!(configuration("/", &more).contains("server.max-connections = 7\n"));
        assert!(configuration("/", &more).contains("\"mod_deflate\""));
    }
}
