// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits for the servers of `fief run` and `fief exec`: passes signals on, says once who serves the listeners, or that nobody does,
//! and notices that the policy was taken down. Nobody's `fief down` ends a server: it goes on without a policy, and this waits for it as before.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;

use fief_bpf::{Context, Result};
use fief_policy::Listener;
use nix::errno::Errno;
use nix::libc::SI_KERNEL;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp};

use super::Tell;
use super::starting::Starting;
use crate::{Fief, Status, cgroup};

/// Which command waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The policy is its own.
    Run,
    /// The policy was there before.
    Exec,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Run => "fief run",
            By::Exec => "fief exec",
        }
    }
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
    pub(crate) fn new(child: Child, cgroup: PathBuf) -> Self {
        Self { child, cgroup, code: None }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

/// Children tell their end; whoever leaves the cgroup otherwise, or takes the policy down, is looked for as often as this, in ms.
const LOOK_MS: u16 = 1000;

/// A signal to pass on.
#[derive(Debug, Clone, Copy)]
struct Passed {
    signal: Signal,
    /// All processes of the process group of this process have had it.
    had_by_group: bool,
}

impl Passed {
    fn to_all(signal: Signal) -> Self {
        Self { signal, had_by_group: false }
    }

    /// `code`: who sent it, as the kernel tells.
    fn of(signal: Signal, code: i32) -> Self {
        // of the keyboard and of another size a terminal tells its whole foreground group, of its own end the session's leader alone
        let to_group = matches!(signal, Signal::SIGINT | Signal::SIGQUIT | Signal::SIGWINCH);
        Self { signal, had_by_group: to_group && code == SI_KERNEL }
    }

    /// Sends it to a process that does not have it: a second one makes some servers end at once.
    fn send(self, pid: i32) {
        let pid = Pid::from_raw(pid);
        if !self.had_by_group || getpgid(Some(pid)) != Ok(getpgrp()) {
            // one that ended meanwhile is reaped later
            let _ = kill(pid, self.signal);
        }
    }
}

/// What is looked at while servers run.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    fief: &'a Fief,
    by: By,
    signals: &'a SignalFd,
    tell: Option<Tell>,
    started: Option<fn(&Status)>,
    /// Children of this process that nobody has left behind: the servers, and the guard.
    own: Vec<i32>,
    /// While listeners are not served yet, or nobody was told that they are.
    starting: Option<Starting<'a>>,
    told_start: bool,
    /// Notes of the policy.
    told: Vec<String>,
    is_in_force: bool,
    told_background: bool,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(fief: &'a Fief, by: By, signals: &'a SignalFd, tell: Option<Tell>) -> Self {
        Self {
            fief,
            by,
            signals,
            tell,
            started: None,
            own: Vec::new(),
            starting: None,
            told_start: false,
            told: Vec::new(),
            is_in_force: true,
            told_background: false,
        }
    }

    /// Tells who serves these listeners, once all are served, or it takes long.
    pub(crate) fn telling(self, listeners: Vec<&'a Listener>, started: Option<fn(&Status)>) -> Self {
        Self { started, starting: Some(Starting::new(self.fief, listeners)), ..self }
    }

    /// These notes were told already.
    pub(crate) fn told(self, told: Vec<String>) -> Self {
        Self { told, ..self }
    }

    fn tell(&self, note: &str) {
        if let Some(tell) = self.tell {
            tell(note);
        }
    }

    /// Whether what the server was started under is in force: what came in its place since has no cgroup of the server's.
    fn is_force_there(&self, server: &Running) -> bool {
        match self.by {
            By::Run => self.fief.is_in_force_for(std::process::id()),
            By::Exec => self.fief.installed() && server.cgroup.exists(),
        }
    }

    /// Passes signals on until every server has ended; the first failure is the code.
    pub(crate) fn wait_all(mut self, mut servers: Vec<Running>, guard: Option<&Child>) -> Result<i32> {
        self.own = servers.iter().map(Running::pid).chain(guard.map(|guard| guard.id().cast_signed())).collect();
        let mut code = 0;
        while !servers.is_empty() {
            if let Some(passed) = next_signal(self.signals, self.pause_ms())? {
                servers.iter().for_each(|server| self.signal(server, passed));
            }
            self.notice_down(&servers);
            let mut running = Vec::new();
            let mut ended = false;
            for mut server in servers {
                match self.poll(&mut server)? {
                    None => running.push(server),
                    Some(own) => {
                        ended = true;
                        self.tell_left(&server, own);
                        code = if code == 0 { own } else { code };
                    }
                }
            }
            if ended {
                // one copy of a server is not the server
                running.iter().for_each(|server| self.signal(server, Passed::to_all(Signal::SIGTERM)));
            } else {
                self.look_at_start();
            }
            if !self.told_background && running.iter().any(|server| self.is_in_background(server)) {
                let by = self.by.name();
                self.tell(&format!("the server went into the background, and is waited for: `{by}` ends with it"));
                self.told_background = true;
            }
            reap_adopted(&running);
            servers = running;
        }
        Ok(code)
    }

    fn pause_ms(&mut self) -> u16 {
        self.starting.as_mut().filter(|_| !self.told_start).map_or(LOOK_MS, Starting::pause_ms)
    }

    /// Tells once all listen, or it takes long. A run goes on to look until all do: a server may listen with multipath TCP.
    fn look_at_start(&mut self) {
        let Some(starting) = self.starting.take() else { return };
        let (are_served, is_late) = (starting.are_served(), starting.is_late());
        if self.by == By::Run {
            self.answer_for_multipath();
        }
        if !self.told_start && (are_served || is_late) {
            self.told_start = true;
            self.tell_start(&starting);
        }
        let is_done = are_served || self.told_start && self.by == By::Exec;
        self.starting = Some(starting).filter(|_| !is_done);
    }

    fn answer_for_multipath(&mut self) {
        let failed = |error| vec![format!("cannot let the kernel answer for a server of multipath TCP: {error}")];
        let notes = self.fief.answer_for_multipath().unwrap_or_else(failed);
        let new: Vec<_> = notes.into_iter().filter(|note| !self.told.contains(note)).collect();
        new.iter().for_each(|note| self.tell(note));
        self.told.extend(new);
    }

    fn tell_start(&self, starting: &Starting<'_>) {
        if self.by == By::Exec && !starting.is_late() {
            return; // the policy is not its own to tell of
        }
        match (self.fief.status(), self.started) {
            (Ok(status), Some(started)) => started(&status),
            (Ok(status), None) => {
                let names = || starting.listeners.iter().map(|listener| &listener.name);
                let is_its = |problem: &&String| names().any(|name| problem.starts_with(&format!("{name}: ")));
                status.problems.iter().filter(is_its).for_each(|problem| self.tell(problem));
            }
            (Err(error), _) if self.is_in_force => {
                self.tell(&format!("cannot tell whether the policy works: {error}"));
            }
            (Err(_), _) => {}
        }
    }

    fn notice_down(&mut self, servers: &[Running]) {
        if self.is_in_force && !servers.iter().all(|server| self.is_force_there(server)) {
            self.tell(&format!(
                "the policy was taken down by another command: the server goes on without it, unmanaged, and `{}` ends \
                 with it",
                self.by.name()
            ));
            self.is_in_force = false;
            self.starting = None;
        }
    }

    /// Its exit code, 128 and the number of the signal that ended it; `None`: it runs.
    fn poll(&self, server: &mut Running) -> Result<Option<i32>> {
        if server.code.is_none() {
            let status = server.child.try_wait().context(|| "cannot wait for the server".into())?;
            server.code = status.map(|status| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
        Ok(server.code.filter(|code| *code != 0 || !self.is_in_background(server)))
    }

    /// Tells of processes that go on after the one that was started has failed or was killed: workers without their master, say.
    fn tell_left(&self, server: &Running, code: i32) {
        let left: Vec<String> = self.left(server).iter().map(ToString::to_string).collect();
        if code != 0 && !left.is_empty() {
            let go_on = match self.by {
                By::Exec if self.is_in_force => "go on in its container",
                _ => "go on without a policy",
            };
            self.tell(&format!(
                "the server's process has ended ({code}), and others of it {go_on}: {}; end them by `kill {}`",
                left.join(", "),
                left.join(" ")
            ));
        }
    }

    fn is_in_background(&self, server: &Running) -> bool {
        server.code == Some(0) && !self.left(server).is_empty()
    }

    /// To the child, or to those that it left and that became children of this process.
    fn signal(&self, server: &Running, passed: Passed) {
        let to = match server.code {
            None => vec![server.pid()],
            Some(_) => self.left(server).into_iter().filter(|pid| is_child(*pid)).collect(),
        };
        to.into_iter().for_each(|pid| passed.send(pid));
    }

    /// Who is in its cgroup. `fief down` takes the state away before it empties the cgroups: then it is whoever became a child
    /// of this process.
    fn left(&self, server: &Running) -> Vec<i32> {
        let there = cgroup::processes(&server.cgroup);
        if !there.is_empty() || self.is_force_there(server) {
            return there;
        }
        cgroup::children_of_process(std::process::id().cast_signed())
            .into_iter()
            .filter(|pid| !self.own.contains(pid))
            .collect()
    }
}

fn is_child(pid: i32) -> bool {
    fief_bpf::process::parent(pid) == Some(std::process::id().cast_signed())
}

/// Buries what became a child of this process and has ended.
fn reap_adopted(servers: &[Running]) {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Some(pid) = waitid(Id::All, peek).ok().and_then(|status| status.pid()) {
        let is_server = |server: &Running| server.code.is_none() && server.pid() == pid.as_raw();
        if servers.iter().any(is_server) || waitpid(pid, None).is_err() {
            return; // its code is asked for with the next signal, which it has sent
        }
    }
}

/// `None`: a child ended, or none came for a while.
fn next_signal(signals: &SignalFd, pause_ms: u16) -> Result<Option<Passed>> {
    let failed = || "cannot read signals".into();
    match poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], pause_ms) {
        Ok(0) | Err(Errno::EINTR) => return Ok(None),
        polled => polled.context(failed)?,
    };
    let info = signals.read_signal().context(failed)?;
    let passed = info.and_then(|info| {
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok()?;
        Some(Passed::of(signal, info.ssi_code))
    });
    Ok(passed.filter(|passed| passed.signal != Signal::SIGCHLD))
}

#[cfg(test)]
mod tests {
    use nix::libc::SI_USER;

    use super::*;

    #[test]
    fn what_a_terminal_sends_to_a_group_its_processes_have() {
        let had = |signal, code| Passed::of(signal, code).had_by_group;
        assert!(had(Signal::SIGINT, SI_KERNEL) && had(Signal::SIGQUIT, SI_KERNEL) && had(Signal::SIGWINCH, SI_KERNEL));
        assert!(!had(Signal::SIGHUP, SI_KERNEL), "the leader of a session has it alone");
        assert!(!had(Signal::SIGINT, SI_USER) && !had(Signal::SIGTERM, SI_USER));
    }
}
