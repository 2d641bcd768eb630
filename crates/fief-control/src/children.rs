// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers as children of `fief run` and `fief exec`: each is started in its cgroup, signals are passed on to it, and it is
//! waited for.
//!
//! `fief run-exec` puts itself into the cgroup before it becomes the server, so that not one instruction of the server runs
//! unmanaged. A server that goes into the background, or hands over to another binary, becomes a child of the one that waits (a
//! subreaper), and runs until its cgroup is empty.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use fief_bpf::abi;
use fief_bpf::{Context, Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::Pid;

use crate::bind::home_of;
use crate::plan::Start;
use crate::run_folder::RUN;
use crate::steer::Shim;
use crate::tree::Tree;
use crate::{Fief, cgroup};

/// Gets what the operator should know, a sentence at a time.
pub type Tell = fn(&str);

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
        notes.iter().zip(tell.iter().cycle()).for_each(|(note, tell)| tell(note));
        for start in starts {
            let mut command = own_command("run-exec")?;
            let beside = self.group_beside(start.home.as_deref()).unwrap_or_default();
            command.arg(&start.cgroup).arg(beside).arg(start.nice.to_string()).args(server);
            if let Some(shim) = shim.as_ref().filter(|_| start.shim) {
                let (name, value) = shim.environment();
                // set by run-exec, so that run-exec itself is not interposed
                command.env("FIEF_PRELOAD", value).env("FIEF_PRELOAD_NAME", name);
            }
            let child = command.spawn().context(|| "cannot start the server".into())?;
            servers.push(Running { child, cgroup: start.cgroup, code: None });
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

/// A server, or a copy of it.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    cgroup: PathBuf,
    /// Of the child, once that has ended; who is left in the cgroup goes on.
    code: Option<i32>,
}

impl Running {
    /// Its exit code, 128 and the number of the signal that ended it; `None`: it runs.
    fn poll(&mut self) -> Result<Option<i32>> {
        if self.code.is_none() {
            let status = self.child.try_wait().context(|| "cannot wait for the server".into())?;
            self.code = status.map(|status| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
        Ok(self.code.filter(|code| *code != 0 || !self.is_in_background()))
    }

    fn is_in_background(&self) -> bool {
        self.code == Some(0) && !cgroup::processes(&self.cgroup).is_empty()
    }

    /// To the child, or to those of its cgroup that became children of this process.
    fn signal(&self, signal: Signal) {
        let child = Pid::from_raw(self.child.id().cast_signed());
        let adopted = || cgroup::processes(&self.cgroup).into_iter().filter(|pid| is_child(*pid)).map(Pid::from_raw);
        let to = if self.code.is_none() { vec![child] } else { adopted().collect() };
        for pid in to {
            // one that ended meanwhile is reaped later
            let _ = kill(pid, signal);
        }
    }
}

fn is_child(pid: i32) -> bool {
    fief_bpf::process::parent(pid) == Some(std::process::id().cast_signed())
}

/// Children tell their end; whoever leaves the cgroup otherwise is looked for as often as this, in ms.
const LOOK_MS: u16 = 1000;

/// Passes signals on until every server has ended; the first failure is the code.
pub(crate) fn wait_all(mut servers: Vec<Running>, signals: &SignalFd, tell: Option<Tell>) -> Result<i32> {
    let (mut code, mut told) = (0, false);
    while !servers.is_empty() {
        if let Some(signal) = next_signal(signals)? {
            servers.iter().for_each(|server| server.signal(signal));
        }
        let mut running = Vec::new();
        let mut ended = false;
        for mut server in servers {
            match server.poll()? {
                None => running.push(server),
                Some(own) => {
                    ended = true;
                    code = if code == 0 { own } else { code };
                }
            }
        }
        if ended {
            // one copy of a server is not the server
            running.iter().for_each(|server| server.signal(Signal::SIGTERM));
        }
        if let Some(tell) = tell.filter(|_| !told && running.iter().any(Running::is_in_background)) {
            tell("the server went into the background, and is waited for: fief ends with it");
            told = true;
        }
        reap_adopted(&running);
        servers = running;
    }
    Ok(code)
}

/// Buries what became a child of this process and has ended.
fn reap_adopted(servers: &[Running]) {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Some(pid) = waitid(Id::All, peek).ok().and_then(|status| status.pid()) {
        let is_server = |server: &Running| server.code.is_none() && server.child.id().cast_signed() == pid.as_raw();
        if servers.iter().any(is_server) || waitpid(pid, None).is_err() {
            return; // its code is asked for with the next signal, which it has sent
        }
    }
}

/// A signal to pass on; `None`: a child ended, or none came for a while.
fn next_signal(signals: &SignalFd) -> Result<Option<Signal>> {
    let failed = || "cannot read signals".into();
    match poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], LOOK_MS) {
        Ok(0) | Err(Errno::EINTR) => return Ok(None),
        polled => polled.context(failed)?,
    };
    let info = signals.read_signal().context(failed)?;
    let signal = info.and_then(|info| Signal::try_from(info.ssi_signo.cast_signed()).ok());
    Ok(signal.filter(|signal| *signal != Signal::SIGCHLD))
}

/// `fief run-exec CGROUP GROUP NICE SERVER ARGS...`: becomes the server inside the cgroup, and inside a group of another hierarchy
/// if that is named. Returns only on failure.
pub fn exec_main(args: &[OsString]) -> Error {
    let [cgroup, beside, nice, program, rest @ ..] = args else {
        return Error::new(ErrorKind::Other, "run-exec is started by `fief run` and `fief exec` alone");
    };
    match enter(Path::new(cgroup), Path::new(beside), nice) {
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

fn enter(path: &Path, beside: &Path, nice: &OsStr) -> Result<()> {
    // the server ends with the one that waits for it, also when that is killed
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).context(|| "cannot tie the server to this command".into())?;
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
