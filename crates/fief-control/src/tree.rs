// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The container table as a tree with paths.

use std::collections::BTreeSet;

use fief_bpf::abi;
use fief_bpf::table::{Row, Table};
use fief_bpf::{Error, ErrorKind, Result};

/// The containers at one moment.
#[derive(Debug)]
pub struct Tree {
    /// In the order of their slots. A map of many grows by copying all of them again and again.
    rows: Vec<Row>,
    /// The policy slot in force.
    pub slot: u32,
}

impl Tree {
    /// Reads the table.
    pub fn read(table: &Table) -> Self {
        Self { rows: table.rows().collect(), slot: table.policy().0 }
    }

    /// These containers and some that are new, as they are now: of a large table, to look for all of them takes milliseconds.
    pub fn now<'a>(&self, table: &Table, new: impl IntoIterator<Item = &'a abi::fief_ref>) -> Self {
        let own = self.rows.iter().map(|row| row.container.id);
        let ids: BTreeSet<u32> = own.chain(new.into_iter().map(|new| new.id)).collect();
        Self { rows: ids.into_iter().filter_map(|id| table.row(id)).collect(), slot: table.policy().0 }
    }

    /// One container and those above it, without reading the rest.
    pub fn above(table: &Table, row: Row) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        let mut next = Some(row);
        while let Some(row) = next.filter(|row| rows.iter().all(|below| below.container.id != row.container.id)) {
            next = (row.container.id >= abi::FIEF_FIRST_ID).then(|| table.row(row.record.parent.id)).flatten();
            rows.push(row);
        }
        rows.sort_by_key(|row| row.container.id);
        Self { rows, slot: table.policy().0 }
    }

    /// Every container, in the order of their slots.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    fn at(&self, id: u32) -> Option<&Row> {
        let place = self.rows.binary_search_by_key(&id, |row| row.container.id).ok()?;
        self.rows.get(place)
    }

    /// This one, dead or alive.
    pub fn row(&self, container: abi::fief_ref) -> Option<&Row> {
        self.at(container.id).filter(|row| row.container == container)
    }

    /// Whether this one is there, dead or alive.
    pub fn has(&self, container: abi::fief_ref) -> bool {
        self.row(container).is_some()
    }

    /// The parent, dead or alive; `None` for the known containers.
    pub fn parent(&self, row: &Row) -> Option<&Row> {
        if row.container.id < abi::FIEF_FIRST_ID {
            return None;
        }
        let parent = row.record.parent;
        self.at(parent.id).filter(|p| p.record.generation == parent.generation)
    }

    /// The nearest container above for which this holds, or the root.
    pub fn nearest_above(&self, row: &Row, holds: impl Fn(&Row) -> bool) -> abi::fief_ref {
        let mut above = self.parent(row);
        while let Some(row) = above.filter(|row| !holds(row)) {
            above = self.parent(row);
        }
        above.map_or(abi::fief_ref { id: abi::FIEF_ROOT, generation: 0 }, |row| row.container)
    }

    /// Levels below the root.
    pub fn depth(&self, row: &Row) -> usize {
        self.parent(row).map_or(0, |parent| 1 + self.depth(parent))
    }

    /// Components joined by `/`; one that was never named is `#` and its slot.
    pub fn path(&self, row: &Row) -> String {
        let own = match row.name() {
            "" => format!("#{}", row.container.id),
            name => name.to_owned(),
        };
        match self.parent(row) {
            Some(parent) if parent.container.id != abi::FIEF_ROOT => format!("{}/{own}", self.path(parent)),
            _ => own,
        }
    }

    /// The living container at a path. Of two with the same path the policy's is meant.
    pub fn find(&self, path: &str) -> Option<&Row> {
        let mut found: Vec<_> =
            self.rows.iter().filter(|row| row.record.state == abi::FIEF_ALIVE && self.path(row) == path).collect();
        found.sort_by_key(|row| (row.record.flags & abi::FIEF_CONTAINER_POLICY == 0, row.container.id));
        found.first().copied()
    }

    /// The living containers that a policy named, the deepest first, so that parents can end after their children.
    pub fn of_policy(&self) -> Vec<&Row> {
        let is_named =
            |row: &&Row| row.record.flags & abi::FIEF_CONTAINER_POLICY != 0 && row.record.state == abi::FIEF_ALIVE;
        let mut rows: Vec<_> = self.rows.iter().filter(is_named).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(self.depth(row)));
        rows
    }

    /// The living container at a path. Errors: [`ErrorKind::NotFound`].
    pub fn require(&self, path: &str) -> Result<&Row> {
        self.find(path).ok_or_else(|| {
            let living = self.rows.iter().filter(|row| row.record.state == abi::FIEF_ALIVE);
            let paths: Vec<String> = living.map(|row| self.path(row)).collect();
            let advice = match fief_policy::nearest_path(path, paths.iter().map(String::as_str)) {
                Some(near) => format!("did you mean {near}? `fief ls` shows those there are"),
                None => "`fief ls` shows those there are".to_owned(),
            };
            Error::new(ErrorKind::NotFound, format!("there is no container {path}")).remedy(advice)
        })
    }
}
