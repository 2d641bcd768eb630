// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers as children of `fief run` and `fief exec`: each is started in its cgroup, signals are passed on to it that it does not have
//! (as Ctrl-C of the terminal), and it is waited for.
//!
//! `fief run-exec` puts itself into the cgroup before it becomes the server, so that not one instruction of the server runs
//! unmanaged. A server that goes into the background, or hands over to another binary, becomes a child of the one that waits (a
//! subreaper), and runs until its cgroup is empty.

mod starting;
mod wait;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use fief_bpf::abi;
use fief_bpf::{Context, Error, ErrorKind, Result};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::SignalFd;
use nix::unistd::getppid;

use crate::bind::home_of;
use crate::plan::Start;
use crate::run_folder::RUN;
use crate::steer::Shim;
use crate::tree::Tree;
use crate::{Fief, cgroup};

pub(crate) use wait::{By, Running, Waiting};

/// Gets what the operator should know, a sentence at a time.
pub type Tell = fn(&str);

pub(crate) fn tell_all(tell: Option<Tell>, notes: &[String]) {
    if let Some(tell) = tell {
        notes.iter().for_each(|note| tell(note));
    }
}

/// Home of a server whose classes have no container in common.
pub(crate) const ROOT: &str = "root";

const FORWARDED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCHLD,
];

impl Fief {
    /// Starts every process of a plan in its cgroup, which is made and managed.
    pub(crate) fn start_all(
        &self,
        starts: Vec<Start>,
        tree: &Tree,
        server: &[OsString],
        tell: Option<Tell>,
    ) -> Result<Vec<Running>> {
        nix::sys::prctl::set_child_subreaper(true).context(|| "cannot adopt what goes into the background".into())?;
        let shim = if starts.iter().any(|start| start.shim) { Some(Shim::write(Path::new(RUN))?) } else { None };
        let mut servers = Vec::new();
        for start in &starts {
            let home = home_of(tree, start.home.as_deref().unwrap_or(ROOT))?;
            cgroup::create(&start.cgroup)?;
            self.manage_cgroup(&start.cgroup, home, if start.follow { abi::FIEF_TASK_FOLLOW } else { 0 })?;
        }
        let mut notes = Vec::new();
        self.refresh_groups(&mut notes);
        tell_all(tell, &notes);
        for start in starts {
            let mut command = own_command("run-exec")?;
            let beside = self.group_beside(start.home.as_deref()).unwrap_or_default();
            command.arg(std::process::id().to_string()).arg(&start.cgroup).arg(beside);
            command.arg(start.nice.to_string()).args(server);
            if let Some(shim) = shim.as_ref().filter(|_| start.shim) {
                let (name, value) = shim.environment();
                // set by run-exec, so that run-exec itself is not interposed
                command.env("FIEF_PRELOAD", value).env("FIEF_PRELOAD_NAME", name);
            }
            let child = command.spawn().context(|| "cannot start the server".into())?;
            self.note_server(&start.cgroup, child.id().cast_signed());
            servers.push(Running::new(child, start.cgroup));
        }
        Ok(servers)
    }
}

/// This program again, for a part of its own.
pub(crate) fn own_command(verb: &str) -> Result<Command> {
    let exe = std::env::current_exe().context(|| "cannot find this program".into())?;
    let mut command = Command::new(exe);
    command.arg(verb);
    Ok(command)
}

/// What could not be done with the server, which is named.
pub(crate) fn cannot_run(server: &[OsString], error: &Error) -> Error {
    let program = server.first().map(Path::new).unwrap_or(Path::new("")).display();
    Error::new(error.kind(), format!("cannot run {program}: {error}"))
}

/// Blocks what is passed on to servers; it is read instead.
pub(crate) fn block_signals() -> Result<SignalFd> {
    let set: SigSet = FORWARDED.into_iter().collect();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None).context(|| "cannot block signals".into())?;
    SignalFd::new(&set).context(|| "cannot watch signals".into())
}

/// `fief run-exec PARENT CGROUP GROUP NICE SERVER ARGS...`: becomes the server inside the cgroup, and inside a group of another
/// hierarchy if that is named, while the process PARENT waits for it. Returns only on failure.
pub fn exec_main(args: &[OsString]) -> Error {
    let [parent, cgroup, beside, nice, program, rest @ ..] = args else {
        return Error::new(ErrorKind::Other, "run-exec is started by `fief run` and `fief exec` alone");
    };
    match tie_to(parent).and_then(|()| enter(Path::new(cgroup), Path::new(beside), nice)) {
        Err(e) => e,
        Ok(()) => {
            let mut command = Command::new(program);
            command.args(rest).env_remove("FIEF_PRELOAD").env_remove("FIEF_PRELOAD_NAME");
            if let (Some(name), Some(value)) = (std::env::var_os("FIEF_PRELOAD_NAME"), std::env::var_os("FIEF_PRELOAD"))
            {
                command.env(name, value);
            }
            let failed: std::io::Result<()> = Err(command.exec());
            failed
                .context(|| format!("cannot start {}", Path::new(program).display()))
                .err()
                .unwrap_or_else(|| Error::new(ErrorKind::Other, "the server could not be started"))
        }
    }
}

/// The server ends with the one that waits for it, also when that is killed.
fn tie_to(parent: &OsStr) -> Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).context(|| "cannot tie the server to this command".into())?;
    // for a parent that ended before that the kernel sends nothing, and this is another one's child by now
    if parent.to_str().and_then(|pid| pid.parse().ok()) == Some(getppid().as_raw()) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Other, "the server is not started, since the command that waits for it has ended"))
}

fn enter(path: &Path, beside: &Path, nice: &OsStr) -> Result<()> {
    cgroup::join(path, 0)?;
    if !beside.as_os_str().is_empty() {
        cgroup::join(beside, 0)?;
    }
    let nice: i32 = nice.to_str().and_then(|n| n.parse().ok()).unwrap_or(0);
    if nice != 0 {
        set_nice(nice)?;
    }
    let set: SigSet = FORWARDED.into_iter().collect();
    sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&set), None).context(|| "cannot unblock signals".into())
}

fn set_nice(nice: i32) -> Result<()> {
    fief_bpf::process::set_nice(nice).context(|| format!("cannot set the nice value {nice}"))
}
