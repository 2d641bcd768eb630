// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server under the policy that is in force, beside others; the policy stays when it ends.
//!
//! Either this process waits for it ([`children`](crate::children)), in a cgroup that is made for it. Or this process becomes it,
//! in the cgroup that it is in: a service keeps its process, its cgroup, and with them what systemd knows it by.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fief_bpf::table::Table;
use fief_bpf::{Context, Error, ErrorKind, Result, process, upgrade};
use fief_policy::Policy;

use crate::bind::{ManageOptions, Target, home_in};
use crate::children::{By, ROOT, Tell, Waiting, block_signals, cannot_run, tell_all};
use crate::noted::Noted;
use crate::plan::{Plan, Start};
use crate::run_folder::RUN;
use crate::steer::Shim;
use crate::tree::Tree;
use crate::{Fief, activation, cgroup};

/// How to start a server.
#[derive(Debug, Clone, Default)]
pub struct ExecOptions {
    /// Path of its home; `None`: above the classes of its listeners.
    pub container: Option<String>,
    /// Names of the listeners that it serves; none: all of the policy.
    pub listeners: Vec<String>,
    /// Do not rebind the server's threads by the socket they work on.
    pub no_follow: bool,
    /// Gets what the operator should know.
    pub tell: Option<Tell>,
}

impl ExecOptions {
    fn plan<'a>(&'a self, policy: &'a Policy) -> Plan<'a> {
        let container = self.container.as_deref();
        Plan { policy, listeners: &self.listeners, container, follow: !self.no_follow }
    }

    /// The one process of the server in the cgroup `place`. Errors: the policy wants several.
    pub(crate) fn start(&self, policy: &Policy, place: &Path) -> Result<Start> {
        let mut starts = self.plan(policy).starts(|_| Ok(place.to_owned()))?;
        let (Some(start), true) = (starts.pop(), starts.is_empty()) else {
            let what = "the policy wants copies of the server, one for each class, and one process becomes it";
            return Err(Error::new(ErrorKind::Other, what).remedy(
                "name its --listener, or a --container for all of it; `fief exec` without --here starts copies",
            ));
        };
        Ok(start)
    }
}

/// Cgroups of servers that are waited for: this and the process that waits, as it is noted; where somebody is left in another one of
/// it, a dot and a number.
const FOLDER: &str = "exec-";

/// The process that waits, by the name of the folder. Earlier versions named its number alone.
fn waiting(name: &str) -> Option<Noted> {
    Noted::parse(&name.strip_prefix(FOLDER)?.split('.').next()?.replace('-', " "))
}

/// The name of a folder for this process that no other one has.
fn free_name(own: &Path) -> String {
    let there = below(own);
    let first = format!("{FOLDER}{}", Noted::own().to_string().replace(' ', "-"));
    let mut names = std::iter::once(first.clone()).chain((1..).map(|other| format!("{first}.{other}")));
    names.find(|name| !there.iter().any(|path| path.ends_with(name))).expect("numbers have no end")
}

impl Fief {
    /// Starts a server under the policy in force and waits for it. Returns its exit code, 128 and the number of the signal that
    /// ended it.
    ///
    /// Errors: [`ErrorKind::NotFound`] if nothing is in force, or if there is no such container or listener.
    pub fn exec(&self, server: &[OsString], options: &ExecOptions) -> Result<i32> {
        activation::refuse()?;
        let lock = self.lock()?;
        self.require_installed()?;
        let policy = self.policy_in_force()?;
        let own = cgroup::own(self.pins().scope())?;
        self.sweep_dead_execs(&own)?;
        let name = free_name(&own);
        let plan = options.plan(&policy);
        let starts = plan.starts(|home| Ok(self.unit_folder(home)?.join(&name)))?;
        let tree = Tree::read(&Table::open(self.pins())?);
        for home in starts.iter().filter_map(|start| start.home.as_deref()) {
            tree.require(home)?;
        }
        tell_all(options.tell, plan.outside()?.as_slice());
        let awaited = plan.awaited()?;
        let folders: BTreeSet<PathBuf> =
            starts.iter().filter_map(|start| start.cgroup.parent().map(Path::to_owned)).collect();
        // blocked before there is anything to clean up
        let signals = block_signals()?;
        let code = self.start_all(starts, &tree, server, options.tell).and_then(|servers| {
            drop(lock);
            Waiting::new(self, By::Exec, &signals, options.tell).telling(awaited, None).wait_all(servers, None)
        });
        let mut notes = Vec::new();
        if let Err(error) = self.exec_ends(&folders, &mut notes) {
            // the server's code, or the first error, is what to end with
            notes.push(format!("the server's cgroup could not be cleaned up: {error}"));
        }
        tell_all(options.tell, &notes);
        code.map_err(|error| cannot_run(server, &error))
    }

    fn exec_ends(&self, folders: &BTreeSet<PathBuf>, notes: &mut Vec<String>) -> Result<()> {
        let _lock = self.lock()?;
        // who is left of a server that failed stays in its container, and is held to its limits
        folders.iter().try_for_each(|folder| cgroup::remove_empty(folder).map(drop))?;
        self.forget_servers();
        if !self.installed() {
            return Ok(());
        }
        self.forget_gone(notes)?;
        self.settle_charging(None)
    }

    /// What [`exec_here`](Self::exec_here) would tell of these options. Errors: what it would refuse.
    pub fn check_here(&self, options: &ExecOptions) -> Result<Option<String>> {
        let (start, note) = self.start_here(options, Path::new(""))?;
        home_in(&Table::open(self.pins())?, start.home.as_deref().unwrap_or(ROOT))?;
        Ok(note)
    }

    /// Names of the listeners that such a server has and where connections are refused while it restarts, by the policy in force.
    pub fn refusing(&self, options: &ExecOptions) -> Result<Vec<String>> {
        self.require_installed()?;
        options.plan(&self.policy_in_force()?).refusing()
    }

    /// The process that this one becomes, and what the operator should know of it.
    fn start_here(&self, options: &ExecOptions, place: &Path) -> Result<(Start, Option<String>)> {
        self.require_installed()?;
        let policy = self.policy_in_force()?;
        Ok((options.start(&policy, place)?, options.plan(&policy).outside()?))
    }

    /// Becomes a server under the policy in force, in the cgroup of this process, which is managed from now on with all that is
    /// in it. `name`: what the server is told as its own name. Returns only on failure.
    ///
    /// Where what is in force keeps another version's records, as after an upgrade of the package, the server starts without Fief, and that
    /// is told: a service that restarts must not stay away for it.
    ///
    /// Errors: as above, and for a policy that wants several processes of the server.
    pub fn exec_here(&self, server: &[OsString], name: Option<&OsStr>, options: &ExecOptions) -> Result<Infallible> {
        let place = cgroup::of_process(std::process::id().cast_signed())?;
        if place == cgroup::mount_point()? {
            return Err(Error::new(
                ErrorKind::Other,
                "this is the root cgroup, whose hooks would tax the whole machine",
            )
            .remedy("leave --here out, which makes a cgroup for the server"));
        }
        if let Err(drift) = upgrade::require_own_records(self.pins())
            && drift.kind() == ErrorKind::Drift
        {
            tell_all(options.tell, &[format!("{drift}; the server starts without Fief")]);
            return become_server(server, name, false);
        }
        let (start, note) = self.start_here(options, &place)?;
        let managed = self.manage(
            &Target::Cgroup(place),
            &ManageOptions { container: Some(start.home.as_deref().unwrap_or(ROOT).to_owned()), follow: start.follow },
        )?;
        tell_all(options.tell, note.as_slice());
        tell_all(options.tell, &managed.notes);
        become_server(server, name, start.shim)
    }

    fn policy_in_force(&self) -> Result<Policy> {
        let again = "apply the policy again: fief apply FILE";
        let text = self.policy_text()?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "the text of the policy in force was removed").remedy(again)
        })?;
        fief_policy::parse(&text, "policy").map_err(|errors| {
            Error::new(ErrorKind::Other, format!("cannot read the policy in force: {errors}")).remedy(again)
        })
    }

    /// Removes the cgroups of those that were killed while they waited, or whose servers left somebody there, once all have ended. The
    /// state is locked.
    pub(crate) fn sweep_dead_execs(&self, own: &Path) -> Result<()> {
        let dead = |path: &Path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let waiting = waiting(name).filter(|_| cgroup::processes(path).is_empty());
            waiting.is_some_and(Noted::has_ended)
        };
        let mut gone = below(own);
        gone.retain(|path| dead(path));
        gone.iter().try_for_each(|path| cgroup::remove_empty(path).map(drop))?;
        self.forget_servers();
        if gone.is_empty() { Ok(()) } else { self.forget_gone(&mut Vec::new()).map(drop) }
    }
}

/// Returns only on failure.
fn become_server(server: &[OsString], name: Option<&OsStr>, shim: bool) -> Result<Infallible> {
    let (program, arguments) =
        server.split_first().ok_or_else(|| Error::new(ErrorKind::Other, "no server to start was named"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(name) = name {
        command.arg0(name);
    }
    if shim {
        let (name, value) = Shim::write(Path::new(RUN))?.environment();
        command.env(name, value);
    }
    let failed: std::io::Result<Infallible> = Err(process::exec(&mut command));
    failed.context(|| format!("cannot start {}", Path::new(program).display()))
}

/// The cgroups below one, however deep.
fn below(path: &Path) -> Vec<PathBuf> {
    let children = cgroup::children(path).into_iter();
    children.flat_map(|child| [below(&child), vec![child]].concat()).collect()
}
