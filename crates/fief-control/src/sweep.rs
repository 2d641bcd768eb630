// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Forgets removed cgroups of managed units, and references whose last holder no hook saw end.

use fief_bpf::admin::Admin;
use fief_bpf::map::MapCore;
use fief_bpf::table::{self, Row, Table};
use fief_bpf::{Result, abi, sweep};

use crate::namespace::sees_all_processes;
use crate::tree::Tree;
use crate::{Fief, cgroup};

impl Fief {
    /// Forgets managed cgroups that were removed; their ids. An empty group would keep its weight among its siblings, so the groups
    /// follow.
    pub(crate) fn forget_gone(&self, notes: &mut Vec<String>) -> Result<Vec<u64>> {
        let gone = self.forget_removed()?;
        if !gone.is_empty() {
            self.refresh_groups(notes);
        }
        Ok(gone)
    }

    /// The same for who lets the groups follow afterwards.
    pub(crate) fn forget_removed(&self) -> Result<Vec<u64>> {
        let units = self.map("units")?;
        let ids = units.keys().filter_map(|key| key.try_into().ok()).map(u64::from_ne_bytes);
        let gone = cgroup::gone(ids.collect())?;
        gone.iter().try_for_each(|id| sweep::forget_unit(self.pins(), *id))?;
        Ok(gone)
    }

    /// Forgets removed cgroups, and those of servers that have ended; what the operator should know of it.
    pub(crate) fn sweep_gone(&self) -> Result<Vec<String>> {
        self.sweep_dead_execs(&cgroup::own(self.pins().scope())?)?;
        let mut notes = Vec::new();
        let gone = self.forget_gone(&mut notes)?;
        notes.extend(
            gone.into_iter().map(|id| format!("the managed cgroup with the id {id} was removed, and is forgotten")),
        );
        Ok(notes)
    }

    /// Ends what users made by folders in containers that have ended.
    fn end_folders(&self) -> Result<()> {
        if table::control(self.pins())?.user_containers == 0 {
            return Ok(());
        }
        let admin = Admin::open(self.pins())?;
        // one within the other: the end of the outer one leaves the inner one without a parent
        for _ in 0..abi::FIEF_MAX_DEPTH {
            let tree = Tree::read(&Table::open(self.pins())?);
            let has_ended = |row: &&Row| tree.parent(row).is_none_or(|parent| parent.record.state != abi::FIEF_ALIVE);
            let made = tree.rows().iter().filter(|row| row.record.flags & abi::FIEF_CONTAINER_FOLDER != 0);
            let left: Vec<_> = made.filter(has_ended).map(|row| row.container).collect();
            let mut ended = false;
            for container in left {
                // the table is read slot by slot while users make containers: a parent that was not seen may live
                ended |= admin.release_left(container)?;
            }
            if !ended {
                break;
            }
        }
        Ok(())
    }

    /// Lets go of lost references; what the operator should know of it.
    pub(crate) fn sweep_lost(&self) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        // no news: users come and go
        self.end_folders()?;
        sweep::sweep_users(self.pins())?;
        match sweep::sweep_files(self.pins())? {
            0 => {}
            lost => notes.push(format!("{lost} labels of files were lost and are removed")),
        }
        if !sees_all_processes() {
            // the walk over threads would miss those outside, and take what they hold for lost
            notes.push(
                "lost references are not looked for: this is not the machine's PID namespace (run fief with --pid=host)"
                    .to_owned(),
            );
            return Ok(notes);
        }
        match sweep::sweep(self.pins())? {
            0 => {}
            lost => notes.push(format!("{lost} references to containers were lost and are let go of")),
        }
        Ok(notes)
    }
}
