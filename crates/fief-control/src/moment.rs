// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The front door at once with usage or with how it stands, for who wants both: the table of containers and the policy are read once.

use fief_bpf::Result;
use fief_bpf::table::Table;

use crate::names::Names;
use crate::{Fief, FrontView, Snapshot, Status};

/// What is in force, at one moment.
#[derive(Debug, Clone)]
pub struct Moment {
    /// As [`Fief::snapshot`] has it.
    pub snapshot: Snapshot,
    /// As [`Fief::front`] has it.
    pub front: FrontView,
}

impl Fief {
    /// Reads both. Changes nothing. Errors: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) no policy has come into force.
    pub fn moment(&self) -> Result<Moment> {
        self.require_in_force()?;
        let table = Table::open(self.pins())?;
        let names = Names::read(self, &table)?;
        let snapshot = self.snapshot_of(&table, names.tree())?;
        Ok(Moment { snapshot, front: self.front_of(&names)? })
    }
    /// What [`Fief::status`] and [`Fief::front`] have. Changes nothing.
    pub fn status_and_front(&self) -> Result<(Status, FrontView)> {
        self.require_in_force()?;
        let table = Table::open(self.pins())?;
        let names = Names::read(self, &table)?;
        Ok((self.status_of(&table, &names)?, self.front_of(&names)?))
    }
}
