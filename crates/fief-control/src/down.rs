// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes down what is in force, and says what that was. Servers go on, unmanaged.

use std::path::PathBuf;

use fief_bpf::ingress::{self, Part};
use fief_bpf::table::Table;
use fief_bpf::{Result, abi, schedule};

use crate::names::Names;
use crate::tree::Tree;
use crate::{Fief, cgroup};

/// What Fief itself, or a folder, holds.
const MAKERS: u32 =
    abi::FIEF_CONTAINER_POLICY | abi::FIEF_CONTAINER_UNIT | abi::FIEF_CONTAINER_USER | abi::FIEF_CONTAINER_FOLDER;

/// What taking down removed.
#[derive(Debug, Clone, Default)]
pub struct Down {
    /// Whether a policy was in force.
    pub was_in_force: bool,
    /// Names of its listeners.
    pub listeners: Vec<String>,
    /// Managed cgroups that are left alone again.
    pub units: usize,
    /// Folders of those that are there.
    pub cgroups: Vec<PathBuf>,
    /// Containers that ended.
    pub containers: usize,
    /// Of these, still held by applications, whose descriptors are plain sockets now.
    pub still_held: usize,
    /// Where its containers were mounted as files.
    pub mounts: Vec<PathBuf>,
    /// The process of a `fief run` whose server goes on without a policy.
    pub run: Option<u32>,
    /// What the operator should know.
    pub notes: Vec<String>,
}

impl Fief {
    /// Takes everything down: hooks, tables, cgroups of ours. Where nothing is in force, that is said and no error.
    pub fn down(&self) -> Result<Down> {
        let _lock = self.lock()?;
        if self.installed() {
            return self.down_locked();
        }
        // an apply, a down or a mount that was killed may have left parts, which are not in force
        let mounts = self.unmount_all();
        self.remove_all().map(|()| Down { mounts, ..Down::default() })
    }

    pub(crate) fn down_locked(&self) -> Result<Down> {
        // what names it, an installation that was cut off may lack
        let names = self.names().ok();
        let mut down = Down {
            was_in_force: true,
            listeners: names.iter().flat_map(Names::listeners).map(|(_, name)| name.to_owned()).collect(),
            mounts: self.unmount_all(),
            run: self.running().filter(|pid| *pid != std::process::id()),
            ..Down::default()
        };
        if let Ok(table) = Table::open(self.pins()) {
            let tree = Tree::read(&table);
            let own = tree.rows().iter().filter(|row| row.container.id >= abi::FIEF_FIRST_ID);
            for row in own {
                down.containers += 1;
                let made = row.record.flags & MAKERS != 0;
                down.still_held += usize::from(!made && row.record.state == abi::FIEF_ALIVE);
            }
            // a failure must not keep everything up
            let units = self.units(&tree).unwrap_or_default();
            down.units = units.len();
            down.cgroups = units.into_iter().filter_map(|unit| unit.cgroup).collect();
        }
        // what waits goes on while there is a door that it can go by; a failure must not keep the rest up
        let (opened, done) = self.open_queues(&[]);
        down.notes = opened.notes();
        down.notes.extend(done.err().map(|error| format!("not all that waited could be let go: {error}")));
        self.remove_all().map(|()| down)
    }

    /// Removes whatever an installation, or a part of one, has left on the machine.
    pub(crate) fn remove_all(&self) -> Result<()> {
        // what a user put in the place of the pins is not to be read; whatever else stays, the removal below tells
        if self.pins().are_others()
            && let Err(e) = self.pins().remove()
            && self.pins().are_others()
        {
            return self.restore_all_sysctls().and(Err(e));
        }
        // the pins of its clock tell where its links are
        let ticks = ingress::standing(self.pins()).into_iter().filter(|stand| stand.part == Part::Ticks);
        // a failure must not keep the rest up
        let detached = ingress::detach_others(self.pins(), &ticks.collect::<Vec<_>>());
        // before the note of what they were goes, which stays for those that cannot be given back
        let restored = self.restore_all_sysctls();
        self.remove_state()?;
        detached.and(restored)
    }

    fn remove_state(&self) -> Result<()> {
        // who administers the network namespace that they are in can keep them there, but nothing else up
        let interfaces = self.remove_lanes().and(self.retire_ticks(None));
        schedule::remove(self.pins())?;
        let removed = self.pins().remove();
        if self.installed() {
            return removed;
        }
        // nothing is in force any more: what fails from here on, or has left remains, must not keep the rest up
        let groups = self.remove_groups();
        let emptied = self.remove_cgroups();
        let forgotten = self.forget();
        interfaces.and(removed).and(groups).and(emptied).and(forgotten)
    }

    fn remove_cgroups(&self) -> Result<()> {
        let top = cgroup::mount_point()?;
        cgroup::remove(&cgroup::own(self.pins().scope())?, &top)?;
        cgroup::remove_top(&top);
        Ok(())
    }
}
