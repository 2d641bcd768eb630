// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server under a policy, for as long as it runs: apply, start, pass signals and exit code on, take everything down.
//!
//! There are three processes. This one waits. `fief run-exec` puts itself into the cgroup before it becomes the server, so that
//! not one instruction of the server runs unmanaged. `fief run-guard` waits for the end of this one and takes down whatever a
//! kill -9 would leave. A server that goes into the background, or hands over to another binary, becomes a child of this one (a
//! subreaper), and runs until its cgroup is empty.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fief_bpf::abi;
use fief_bpf::table::Table;
use fief_bpf::{Context, Error, ErrorKind, Result};
use fief_policy::{Policy, Serve};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::Pid;

use crate::apply::ApplyOptions;
use crate::namespace::sees_all_processes;
use crate::run_folder::RUN;
use crate::schedule::nice_of;
use crate::steer::Shim;
use crate::tree::Tree;
use crate::{Fief, cgroup};

/// How to run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Do not rebind the server's threads by the socket they work on.
    pub no_follow: bool,
    /// Gets what the operator should know: notes of the policy, and that the server went into the background.
    pub tell: Option<fn(&str)>,
}

impl RunOptions {
    fn tell(&self, note: &str) {
        if let Some(tell) = self.tell {
            tell(note);
        }
    }
}

/// One process to start: the whole server, or its copy for one class.
#[derive(Debug)]
struct Start {
    cgroup: PathBuf,
    home: abi::fief_ref,
    /// Path of the home; `None`: the root.
    path: Option<String>,
    flags: u32,
    nice: i32,
    shim: bool,
}

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
    /// Runs a server under a policy. Returns its exit code, 128 and the number of the signal that ended it.
    ///
    /// Errors: [`ErrorKind::Exists`] if a policy is in force already.
    pub fn run(&self, policy: &Policy, text: &str, server: &[OsString], options: &RunOptions) -> Result<i32> {
        let (program, _) =
            server.split_first().ok_or_else(|| Error::new(ErrorKind::Other, "no server to run was named"))?;
        let lock = self.lock()?;
        if self.installed() {
            self.sweep_dead_run()?;
        }
        if self.installed() {
            return Err(Error::new(ErrorKind::Exists, "a policy is in force already")
                .remedy("manage the server under it with `fief manage`, or take it down first: fief down"));
        }
        // blocked before anything is in force, so that no signal comes between apply and the clean-up
        let signals = block_signals()?;
        // and guarded before, so that a kill -9 does not come between either
        std::fs::create_dir_all(self.run_dir()).context(|| "cannot note the run".into())?;
        std::fs::write(self.run_file(), std::process::id().to_string()).context(|| "cannot note the run".into())?;
        let guard = self.start_guard();
        let applied = self.apply_locked(policy, text, &ApplyOptions::default());
        let code = applied
            .and_then(|applied| {
                applied.notes.iter().for_each(|note| options.tell(note));
                self.start_all(policy, server, options)
            })
            .and_then(|servers| {
                drop(lock);
                wait_all(servers, &signals, options)
            });
        let _lock = self.lock()?;
        let down = self.run_ends(std::process::id());
        if let Ok(mut guard) = guard {
            // it has nothing left to do
            let _ = guard.kill();
            let _ = guard.wait();
        }
        let code =
            code.map_err(|e| Error::new(e.kind(), format!("cannot run {}: {e}", Path::new(program).display())))?;
        down.map(|()| code)
    }

    fn start_all(&self, policy: &Policy, server: &[OsString], options: &RunOptions) -> Result<Vec<Running>> {
        nix::sys::prctl::set_child_subreaper(true).context(|| "cannot adopt what goes into the background".into())?;
        let tree = Tree::read(&Table::open(self.pins())?);
        let starts = self.plan(policy, &tree, options)?;
        let shim = if starts.iter().any(|start| start.shim) { Some(Shim::write(Path::new(RUN))?) } else { None };
        let mut servers = Vec::new();
        for start in &starts {
            cgroup::create(&start.cgroup)?;
            self.manage_cgroup(&start.cgroup, start.home, start.flags)?;
        }
        let mut notes = Vec::new();
        self.refresh_groups(&mut notes);
        notes.iter().for_each(|note| options.tell(note));
        for start in starts {
            let mut command = own_command("run-exec")?;
            let beside = self.group_beside(start.path.as_deref()).unwrap_or_default();
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

    /// Which processes the policy wants: one, or one per class.
    fn plan(&self, policy: &Policy, tree: &Tree, options: &RunOptions) -> Result<Vec<Start>> {
        let copies: BTreeSet<&str> = policy
            .listeners
            .iter()
            .filter(|listener| listener.serve == Serve::CopiesPerClass)
            .flat_map(|listener| listener.clients.iter().map(|client| client.container.as_str()))
            .collect();
        if copies.is_empty() {
            let classes: Vec<&str> = policy
                .listeners
                .iter()
                .flat_map(|listener| listener.clients.iter().map(|client| client.container.as_str()))
                .collect();
            // a server of classes without a common parent has its home at the root, since threads follow only below it
            let path = match (common_parent(&classes), policy.containers.first()) {
                (Some(path), _) => Some(path),
                (None, Some(first)) if classes.is_empty() => Some(first.path.as_str()),
                (None, _) => None,
            };
            let home = match path {
                Some(path) => tree.require(path)?.container,
                None => abi::fief_ref { id: abi::FIEF_ROOT, generation: 0 },
            };
            return Ok(vec![Start {
                cgroup: self.unit_folder(path)?.join("server"),
                home,
                path: path.map(str::to_owned),
                flags: if options.no_follow { 0 } else { abi::FIEF_TASK_FOLLOW },
                nice: 0,
                shim: policy.listeners.iter().any(|listener| listener.serve == Serve::Shim),
            }]);
        }
        copies
            .into_iter()
            .map(|path| {
                let priority = policy.container(path).map_or(100, |container| container.cpu.priority);
                Ok(Start {
                    cgroup: self.unit_folder(Some(path))?.join(path.replace('/', "-")),
                    home: tree.require(path)?.container,
                    path: Some(path.to_owned()),
                    flags: 0,
                    nice: nice_of(priority),
                    shim: false,
                })
            })
            .collect()
    }

    fn run_file(&self) -> PathBuf {
        self.run_dir().join("run.pid")
    }

    /// Takes down what the run of this process has left in force: not what somebody else has applied since it was taken down.
    fn run_ends(&self, pid: u32) -> Result<()> {
        let noted = std::fs::read_to_string(self.run_file()).ok();
        // also what is left when nothing is in force: the lock that this took, the note, cgroups
        if noted.is_some_and(|noted| noted.trim() == pid.to_string()) || !self.installed() {
            self.down_locked()?;
        }
        Ok(())
    }

    /// A run that was killed, and its guard with it, is taken down by the next.
    fn sweep_dead_run(&self) -> Result<()> {
        let Ok(pid) = std::fs::read_to_string(self.run_file()) else { return Ok(()) };
        // elsewhere the number is another process's, or nobody's, while the run lives
        if sees_all_processes() && !Path::new("/proc").join(pid.trim()).exists() {
            self.down_locked()?;
        }
        Ok(())
    }

    fn start_guard(&self) -> Result<Child> {
        own_command("run-guard")?
            .arg(std::process::id().to_string())
            .arg(self.pins().scope())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context(|| "cannot start the guard".into())
    }
}

/// The deepest container that all classes are below; `None`: only the root.
pub(crate) fn common_parent<'a>(paths: &[&'a str]) -> Option<&'a str> {
    let (first, rest) = paths.split_first()?;
    let mut common = *first;
    loop {
        let prefix = format!("{common}/");
        if rest.iter().all(|path| *path == common || path.starts_with(&prefix)) {
            return Some(common);
        }
        common = common.rsplit_once('/')?.0;
    }
}

fn own_command(verb: &str) -> Result<Command> {
    let exe = std::env::current_exe().context(|| "cannot find this program".into())?;
    let mut command = Command::new(exe);
    command.arg(verb);
    Ok(command)
}

fn block_signals() -> Result<SignalFd> {
    let set: SigSet = FORWARDED.into_iter().collect();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None).context(|| "cannot block signals".into())?;
    SignalFd::new(&set).context(|| "cannot watch signals".into())
}

/// A server, or a copy of it.
#[derive(Debug)]
struct Running {
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
fn wait_all(mut servers: Vec<Running>, signals: &SignalFd, options: &RunOptions) -> Result<i32> {
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
        if !told && running.iter().any(Running::is_in_background) {
            options.tell("the server went into the background, and is waited for: `fief run` ends with it");
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
        return Error::new(ErrorKind::Other, "run-exec is started by `fief run` alone");
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
    // the server ends with `fief run`, also when that is killed
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

/// `fief run-guard PID SCOPE`: waits for the end of PID and takes down what it left in force.
pub fn guard_main(args: &[OsString]) -> Result<()> {
    let [pid, scope] = args else {
        return Err(Error::new(ErrorKind::Other, "run-guard is started by `fief run` alone"));
    };
    let pid: i32 = pid.to_str().and_then(|p| p.parse().ok()).unwrap_or(0);
    fief_bpf::process::wait_end(pid).context(|| format!("cannot wait for process {pid}"))?;
    let fief = Fief::with_scope(&scope.to_string_lossy());
    let _lock = fief.lock()?;
    fief.run_ends(pid.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::common_parent;

    #[test]
    fn the_home_of_a_server_is_the_deepest_container_above_all_classes() {
        assert_eq!(common_parent(&["shop/gold", "shop/browse"]), Some("shop"));
        assert_eq!(common_parent(&["shop/gold", "shop/gold/vip"]), Some("shop/gold"));
        assert_eq!(common_parent(&["gold", "browse"]), None);
        assert_eq!(common_parent(&["shop/gold", "shop/goldfish"]), Some("shop"));
        assert_eq!(common_parent(&[]), None);
    }
}
