// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server under a policy, for as long as it runs: apply, start, pass signals and exit code on, take everything down.
//!
//! There are three processes. This one waits ([`children`](crate::children)). `fief run-exec` becomes the server. `fief run-guard`
//! waits for the end of this one and takes down whatever a kill -9 would leave.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use fief_bpf::table::Table;
use fief_bpf::{Context, Error, ErrorKind, Result, process};
use fief_policy::Policy;

use crate::apply::ApplyOptions;
use crate::children::{By, Running, Tell, Waiting, block_signals, cannot_run, own_command, tell_all};
use crate::names::Names;
use crate::noted::Noted;
use crate::plan::Plan;
use crate::tree::Tree;
use crate::{Fief, Status, activation};

/// How to run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// The policy's file, absolute; `None`: its text came another way.
    pub file: Option<PathBuf>,
    /// Do not rebind the server's threads by the socket they work on.
    pub no_follow: bool,
    /// Gets what the operator should know: notes of the policy, that the server went into the background, that the policy was
    /// taken down.
    pub tell: Option<Tell>,
    /// Gets what is in force once every listener has a server, or after a few seconds.
    pub started: Option<fn(&Status)>,
}

impl Fief {
    /// Runs a server under a policy. Returns its exit code, 128 and the number of the signal that ended it.
    ///
    /// Errors: [`ErrorKind::Exists`] if a policy is in force already.
    pub fn run(&self, policy: &Policy, text: &str, server: &[OsString], options: &RunOptions) -> Result<i32> {
        activation::refuse()?;
        let lock = self.lock()?;
        if self.installed() {
            self.sweep_dead_run()?;
        }
        if self.in_force() {
            return Err(Error::new(ErrorKind::Exists, "a policy is in force already")
                .remedy("start the server under it by `fief exec`, or take it down first: fief down"));
        }
        // blocked before anything is in force, so that no signal comes between apply and the clean-up
        let signals = block_signals()?;
        // and guarded before, so that a kill -9 does not come between either
        let own = Noted::own();
        self.make_run_dir()?;
        std::fs::write(self.run_file(), own.to_string()).context(|| "cannot note the run".into())?;
        let guard = self.start_guard(own);
        let applied =
            self.apply_locked(policy, text, &ApplyOptions { file: options.file.clone(), ..ApplyOptions::default() });
        let code = applied
            .and_then(|applied| {
                tell_all(options.tell, &applied.notes);
                let servers = self.start_under(policy, server, options).map_err(|error| cannot_run(server, &error))?;
                Ok((servers, applied.notes))
            })
            .and_then(|(servers, told)| {
                drop(lock);
                let listeners = policy.listeners.iter().collect();
                let waiting = Waiting::new(self, By::Run, &signals, options.tell).telling(listeners, options.started);
                waiting.told(told).wait_all(servers, guard.as_ref().ok())
            });
        let _lock = self.lock()?;
        let down = self.run_ends(own);
        if let Ok(mut guard) = guard {
            // it has nothing left to do
            let _ = guard.kill();
            let _ = guard.wait();
        }
        let code = code?;
        down.map(|()| code)
    }

    fn start_under(&self, policy: &Policy, server: &[OsString], options: &RunOptions) -> Result<Vec<Running>> {
        let plan = Plan { policy, listeners: &[], container: None, follow: !options.no_follow };
        let starts = plan.starts(|home| self.unit_folder(home))?;
        self.start_all(starts, &Tree::read(&Table::open(self.pins())?), server, options.tell)
    }

    /// A server that listens with multipath TCP, as Go's do, is known only once it listens: then the kernel has to answer for it, and
    /// the policy that this process applied is applied again. Its notes; nothing while another command is at work.
    pub(crate) fn answer_for_multipath(&self) -> Result<Vec<String>> {
        let own = std::process::id();
        let Some(_lock) = self.lock_now()?.filter(|_| self.is_in_force_for(own)) else { return Ok(Vec::new()) };
        let table = Table::open(self.pins())?;
        let origin = self.origin(table.policy().0).filter(|origin| origin.pid == own);
        let Some((origin, text)) = origin.zip(self.policy_text()?) else { return Ok(Vec::new()) };
        if !self.kernel_should_answer(&Names::read(self, &table)?)? {
            return Ok(Vec::new());
        }
        let Ok(policy) = fief_policy::parse(&text, "policy") else { return Ok(Vec::new()) };
        let options = ApplyOptions { file: origin.file, ..ApplyOptions::default() };
        self.apply_locked(&policy, &text, &options).map(|applied| applied.notes)
    }

    fn run_file(&self) -> PathBuf {
        self.run_dir().join("run.pid")
    }

    /// Of the `fief run` that has put in force what is.
    fn runner(&self) -> Option<Noted> {
        Noted::parse(&std::fs::read_to_string(self.run_file()).ok()?)
    }

    /// The process of the `fief run` that has put in force what is, if it runs.
    pub(crate) fn running(&self) -> Option<u32> {
        self.runner().filter(|runner| runner.runs()).map(|runner| runner.pid)
    }

    /// Whether what the run of this process, which runs, has put in force was not taken down since.
    pub(crate) fn is_in_force_for(&self, pid: u32) -> bool {
        self.installed() && self.runner().is_some_and(|runner| runner.pid == pid)
    }

    /// Takes down what this run has left in force: not what somebody else has applied since it was taken down.
    fn run_ends(&self, runner: Noted) -> Result<()> {
        // also what is left when nothing is in force: the lock that this took, the note, cgroups
        if self.runner() == Some(runner) || !self.installed() {
            self.down_locked()?;
        }
        Ok(())
    }

    /// A run that was killed, and its guard with it, is taken down by the next.
    fn sweep_dead_run(&self) -> Result<()> {
        if self.is_of_dead_run() { self.down_locked().map(drop) } else { Ok(()) }
    }

    /// What is in force now is somebody else's, and the next run leaves it in force.
    pub(crate) fn forget_dead_run(&self) -> Result<()> {
        if !self.is_of_dead_run() {
            return Ok(());
        }
        std::fs::remove_file(self.run_file()).context(|| "cannot remove the note of a run that has ended".into())
    }

    fn is_of_dead_run(&self) -> bool {
        self.runner().is_some_and(Noted::has_ended)
    }

    fn start_guard(&self, own: Noted) -> Result<Child> {
        own_command("run-guard")?
            .arg(own.to_string())
            .arg(self.pins().scope())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context(|| "cannot start the guard".into())
    }
}

/// `fief run-guard RUN SCOPE`: waits for the end of the run, which is named as it is noted, and takes down what it left in force.
pub fn guard_main(args: &[OsString]) -> Result<()> {
    let refused = || Error::new(ErrorKind::Other, "run-guard is started by `fief run` alone");
    let [run, scope] = args else { return Err(refused()) };
    let run = run.to_str().and_then(Noted::parse).ok_or_else(refused)?;
    process::wait_end(run.pid.cast_signed()).context(|| format!("cannot wait for process {}", run.pid))?;
    let fief = Fief::with_scope(&scope.to_string_lossy());
    let _lock = fief.lock()?;
    fief.run_ends(run)
}
