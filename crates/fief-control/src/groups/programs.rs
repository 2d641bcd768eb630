// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that servers start for their clients, where cgroups divide the CPU: they are moved into the group of the container that
//! the policy names for them.
//!
//! The kernel side sees them start and cannot move them, nor can the server, which may have given up root. So this takes a process
//! of Fief's, `fief run-move`, as long as a policy with `programs` is divided by cgroups. It keeps nothing: where it was killed,
//! programs stay in the group of their server until the next command that looks after the groups starts another one.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fief_bpf::map::{self, MapCore};
use fief_bpf::table::Table;
use fief_bpf::{Context, Error, ErrorKind, Result, abi, process, record};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::{Groups, Version, plan};
use crate::children::own_command;
use crate::noted::Noted;
use crate::tree::Tree;
use crate::{Fief, cgroup};

/// How this program is started to move others.
const MOVER: &str = "run-move";

/// How often the mover looks whether it is still wanted.
const TICK: Duration = Duration::from_millis(1000);

/// Programs are to be held before they have used much.
const NICE: i32 = -20;

/// The containers that the policy in force names for programs.
pub(super) fn containers(tree: &Tree) -> HashSet<u32> {
    let in_force = |row: &&fief_bpf::table::Row| row.attributes(tree.slot).named != 0;
    tree.rows().iter().filter(in_force).map(|row| row.attributes(tree.slot).programs).filter(|id| *id != 0).collect()
}

impl Groups {
    /// Where programs go whose container this is.
    fn of_programs(&self, path: &str) -> PathBuf {
        self.root.join(plan::programs(path))
    }

    /// Whether a group is one of programs.
    pub(super) fn has_programs(&self, group: &Path) -> bool {
        group.starts_with(&self.root)
            && group.ends_with(plan::PROGRAMS)
            && !group.parent().is_some_and(|above| above.ends_with(plan::OWN))
    }
}

impl Fief {
    /// Tells the kernel side where programs belong, and starts who moves them. The groups are there.
    pub(super) fn hold_programs(&self, groups: &Groups, tree: &Tree) -> Result<()> {
        let wanted = containers(tree);
        self.forget_programs(&wanted)?;
        if wanted.is_empty() {
            return self.stop_mover();
        }
        let unified = groups.hierarchy.version == Version::V2;
        let pid_namespace =
            fs::metadata("/proc/self/ns/pid").context(|| "cannot look at the PID namespace".into())?.ino();
        let told = self.map("program_groups")?;
        for row in tree.rows().iter().filter(|row| wanted.contains(&row.container.id)) {
            let folder = groups.of_programs(&tree.path(row));
            if unified {
                // the hooks of managed cgroups go with whom is moved
                self.manage_cgroup(&folder, row.container, 0)?;
            }
            let group = abi::fief_program_group {
                cgroup: cgroup::id(&folder)?,
                unified: unified.into(),
                pid_namespace: pid_namespace as u32, // the kernel numbers namespaces with 32 bits
            };
            record::update(&told, row.container.id, &group)?;
        }
        if self.mover().is_some() { Ok(()) } else { self.start_mover() }
    }

    /// What the kernel side was told of other containers.
    fn forget_programs(&self, but: &HashSet<u32>) -> Result<()> {
        let told = self.map("program_groups")?;
        let known: Vec<[u8; 4]> = told.keys().filter_map(|key| key.try_into().ok()).collect();
        let others = known.iter().filter(|key| !but.contains(&u32::from_ne_bytes(**key)));
        others.into_iter().try_for_each(|key| map::delete(&told, "program_groups", key))
    }

    /// Nobody is moved any more.
    pub(super) fn release_programs(&self) -> Result<()> {
        let told =
            if self.pins().map("program_groups").exists() { self.forget_programs(&HashSet::new()) } else { Ok(()) };
        self.stop_mover()?;
        told
    }

    /// What is wrong with the programs' groups.
    pub(super) fn programs_problem(&self, tree: &Tree) -> Option<String> {
        let stands_still = !containers(tree).is_empty() && self.mover().is_none();
        stands_still.then(|| {
            "programs that servers start stay in their server's group, since the process that moves them has ended; apply the \
             policy again to start it"
                .to_owned()
        })
    }

    fn mover_file(&self) -> PathBuf {
        self.run_dir().join("move.pid")
    }

    /// Its number, if it runs.
    fn mover(&self) -> Option<i32> {
        let noted = Noted::parse(&fs::read_to_string(self.mover_file()).ok()?)?;
        let pid = noted.pid.cast_signed();
        // an older version noted the number alone
        let is_it = noted.runs() && (noted.started.is_some() || self.has_words_of_mover(pid));
        is_it.then_some(pid)
    }

    fn has_words_of_mover(&self, pid: i32) -> bool {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).skip(1).collect();
        words.starts_with(&[MOVER.as_bytes(), self.pins().scope().as_bytes()])
    }

    fn start_mover(&self) -> Result<()> {
        self.make_run_dir()?;
        let mut command = own_command(MOVER)?;
        command.arg(self.pins().scope()).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context(|| "cannot start the process that moves programs".into())?;
        let noted = fs::write(self.mover_file(), Noted::of(child.id()).to_string());
        // it waits for the end of its standard input, which comes with a kill of this process too
        drop(child.stdin);
        noted.context(|| "cannot note who moves programs".into())
    }

    fn stop_mover(&self) -> Result<()> {
        let held = self.mover().and_then(|pid| Some((pid, process::open(pid).ok()?)));
        // it may have ended before it was held, and another one may have its number; one that ended meanwhile is as good as ended here
        if let Some((_, mover)) = held.filter(|(pid, _)| self.mover() == Some(*pid)) {
            process::end(mover.as_fd()).context(|| "cannot end the process that moves programs".into())?;
        }
        match fs::remove_file(self.mover_file()) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(e).context(|| "cannot forget who moves programs".into())
            }
            _ => Ok(()),
        }
    }
}

/// Where programs are moved, by container; read again when a cgroup is another one.
#[derive(Debug)]
struct Mover {
    fief: Fief,
    folders: HashMap<u32, PathBuf>,
}

impl Mover {
    /// The group of a container of programs; `None`: it is one no more.
    fn folder(&mut self, container: u32) -> Result<Option<PathBuf>> {
        let key = container.to_ne_bytes();
        let Some(group) = record::lookup::<abi::fief_program_group>(&self.fief.map("program_groups")?, &key)? else {
            return Ok(None);
        };
        let is_it = |folder: &PathBuf| cgroup::id(folder).is_ok_and(|id| id == group.cgroup);
        if !self.folders.get(&container).is_some_and(is_it) {
            let Some(groups) = self.fief.groups() else { return Ok(None) };
            let tree = Tree::read(&Table::open(self.fief.pins())?);
            let folder = tree.rows().iter().find(|row| row.container.id == container);
            self.folders.extend(folder.map(|row| (container, groups.of_programs(&tree.path(row)))));
        }
        Ok(self.folders.get(&container).cloned().filter(is_it))
    }

    /// Its number may be another process's by now: only who is in a managed cgroup is moved, and nobody out of another manager's.
    fn is_ours(&self, pid: i32) -> Result<bool> {
        let Some(groups) = self.fief.groups() else { return Ok(false) };
        let units = self.fief.map("units")?;
        let top = cgroup::mount_point()?;
        let place = cgroup::of_process(pid)?;
        let mut above = place.ancestors().take_while(|one| one.starts_with(&top));
        let is_managed = above.any(|one| {
            let id = cgroup::id(one).unwrap_or_default();
            record::lookup::<abi::fief_unit>(&units, &id.to_ne_bytes()).is_ok_and(|unit| unit.is_some())
        });
        let ours = |group: &Path| group == groups.hierarchy.top || group.starts_with(&groups.root);
        Ok(is_managed && groups.hierarchy.of_process(pid).is_some_and(|group| ours(&group)))
    }

    fn place(&mut self, program: abi::fief_program) -> Result<()> {
        match self.folder(program.container)? {
            Some(folder) if self.is_ours(program.pid)? => cgroup::join(&folder, program.pid),
            _ => Ok(()),
        }
    }
}

/// Who started it may be bound to one CPU, as its programs are then; where cpusets forbid others, the kernel leaves them out.
fn all_cpus() -> CpuSet {
    let mut all = CpuSet::new();
    // none beyond what the set can hold
    (0..CpuSet::count()).for_each(|cpu| all.set(cpu).unwrap_or_default());
    all
}

/// `fief run-move SCOPE`: moves programs into their groups, as long as it is the one that is noted. It is noted before its standard
/// input ends, or never: who starts it may be killed in between, and then the next one would be a second reader of a ring that knows one.
pub fn move_main(args: &[OsString]) -> Result<()> {
    let [scope] = args else {
        return Err(Error::new(ErrorKind::Other, "run-move is started by fief alone"));
    };
    let fief = Fief::with_scope(&scope.to_string_lossy());
    // what divides the CPU of who started it, or ends with that one, is not for this; where it may not leave it stays
    for top in [cgroup::mount_point().ok(), fief.groups().map(|groups| groups.hierarchy.top)].into_iter().flatten() {
        let _ = cgroup::join(&top, 0);
    }
    let _ = process::set_nice(NICE);
    let _ = sched_setaffinity(Pid::from_raw(0), &all_cpus());
    let ring = fief.map("programs")?;
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut mover = Mover { fief, folders: HashMap::new() };
    // where it cannot be read, nobody is at its other end either
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    map::follow(&ring, TICK, |told: Vec<abi::fief_program>| {
        for program in told {
            // it has ended, or has real-time threads, which stay where they are
            let _ = mover.place(program);
        }
        Ok::<bool, Error>(mover.fief.mover() == Some(own) && mover.fief.installed())
    })
}
