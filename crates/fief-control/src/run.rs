// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server under a policy, for as long as it runs: apply, start, pass signals and exit code on, take everything down.
//!
//! There are three processes. This one waits. `fief run-exec` puts itself into the cgroup before it becomes the server, so that
//! not one instruction of the server runs unmanaged. `fief run-guard` waits for the end of this one and takes down whatever a
//! kill -9 would leave. A server that goes into the background, or hands over to another binary, becomes a child of this one (a
//! subreaper), and runs until its cgroup is empty.

mod starting;
mod wait;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fief_bpf::abi;
use fief_bpf::table::Table;
use fief_bpf::{Context, Error, ErrorKind, Result};
use fief_policy::{Policy, Serve};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::SignalFd;
use wait::{Running, Waiting};

use crate::apply::ApplyOptions;
use crate::namespace::sees_all_processes;
use crate::run_folder::RUN;
use crate::schedule::nice_of;
use crate::steer::Shim;
use crate::tree::Tree;
use crate::{Fief, Status, cgroup};

/// How to run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Do not rebind the server's threads by the socket they work on.
    pub no_follow: bool,
    /// Gets what the operator should know: notes of the policy, that the server went into the background, that the policy was
    /// taken down.
    pub tell: Option<fn(&str)>,
    /// Gets what is in force once every listener has a server, or after a few seconds.
    pub started: Option<fn(&Status)>,
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
                Waiting::new(self, policy, &signals, options).wait_all(servers, guard.as_ref().ok())
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
        let own = cgroup::own(self.pins().scope())?;
        cgroup::create(&own)?;
        let tree = Tree::read(&Table::open(self.pins())?);
        let starts = self.plan(policy, &tree, &own, options)?;
        let shim = if starts.iter().any(|start| start.shim) { Some(Shim::write(Path::new(RUN))?) } else { None };
        let mut servers = Vec::new();
        for start in starts {
            cgroup::create(&start.cgroup)?;
            self.manage_cgroup(&start.cgroup, start.home, start.flags)?;
            let mut command = own_command("run-exec")?;
            command.arg(&start.cgroup).arg(start.nice.to_string()).args(server);
            if let Some(shim) = shim.as_ref().filter(|_| start.shim) {
                let (name, value) = shim.environment();
                // set by run-exec, so that run-exec itself is not interposed
                command.env("FIEF_PRELOAD", value).env("FIEF_PRELOAD_NAME", name);
            }
            let child = command.spawn().context(|| "cannot start the server".into())?;
            servers.push(Running::new(child, start.cgroup));
        }
        Ok(servers)
    }

    /// Which processes the policy wants: one, or one per class.
    fn plan(&self, policy: &Policy, tree: &Tree, own: &Path, options: &RunOptions) -> Result<Vec<Start>> {
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
            let home = match (common_parent(&classes), policy.containers.first()) {
                (Some(path), _) => tree.require(path)?.container,
                (None, Some(first)) if classes.is_empty() => tree.require(&first.path)?.container,
                (None, _) => abi::fief_ref { id: abi::FIEF_ROOT, generation: 0 },
            };
            return Ok(vec![Start {
                cgroup: own.join("server"),
                home,
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
                    cgroup: own.join(path.replace('/', "-")),
                    home: tree.require(path)?.container,
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

    /// The process of `fief run` that has put in force what is.
    pub(crate) fn run_pid(&self) -> Option<u32> {
        std::fs::read_to_string(self.run_file()).ok()?.trim().parse().ok()
    }

    /// Whether what the run of this process has put in force was not taken down since.
    fn is_in_force_for(&self, pid: u32) -> bool {
        self.installed() && self.run_pid() == Some(pid)
    }

    /// Takes down what the run of this process has left in force: not what somebody else has applied since it was taken down.
    fn run_ends(&self, pid: u32) -> Result<()> {
        // also what is left when nothing is in force: the lock that this took, the note, cgroups
        if self.run_pid() == Some(pid) || !self.installed() {
            self.down_locked()?;
        }
        Ok(())
    }

    /// A run that was killed, and its guard with it, is taken down by the next.
    fn sweep_dead_run(&self) -> Result<()> {
        let Some(pid) = self.run_pid() else { return Ok(()) };
        // elsewhere the number is another process's, or nobody's, while the run lives
        if sees_all_processes() && !Path::new("/proc").join(pid.to_string()).exists() {
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
fn common_parent<'a>(paths: &[&'a str]) -> Option<&'a str> {
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

/// `fief run-exec CGROUP NICE SERVER ARGS...`: becomes the server inside the cgroup. Returns only on failure.
pub fn exec_main(args: &[OsString]) -> Error {
    let [cgroup, nice, program, rest @ ..] = args else {
        return Error::new(ErrorKind::Other, "run-exec is started by `fief run` alone");
    };
    match enter(Path::new(cgroup), nice) {
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

fn enter(path: &Path, nice: &OsStr) -> Result<()> {
    // the server ends with `fief run`, also when that is killed
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).context(|| "cannot tie the server to this command".into())?;
    cgroup::join(path, 0)?;
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
