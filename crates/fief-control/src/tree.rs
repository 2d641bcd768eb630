// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The container table as a tree with paths.

use std::collections::{BTreeSet, HashSet};

use fief_bpf::abi;
use fief_bpf::table::{Row, Table};
use fief_bpf::{Error, ErrorKind, Result};

/// The containers at one moment.
#[derive(Debug)]
pub struct Tree {
    /// In the order of their slots. A map of many grows by copying all of them again and again.
    rows: Vec<Row>,
    /// Slots of containers that have the name of a policy's beside them.
    namesakes: HashSet<u32>,
    /// The policy slot in force.
    pub slot: u32,
}

impl Tree {
    /// Reads the table.
    pub fn read(table: &Table) -> Self {
        Self::of(table.rows().collect(), table.policy().0)
    }

    /// These containers and some that are new, as they are now: of a large table, to look for all of them takes milliseconds.
    pub fn now<'a>(&self, table: &Table, new: impl IntoIterator<Item = &'a abi::fief_ref>) -> Self {
        let own = self.rows.iter().map(|row| row.container.id);
        let ids: BTreeSet<u32> = own.chain(new.into_iter().map(|new| new.id)).collect();
        Self::of(ids.into_iter().filter_map(|id| table.row(id)).collect(), table.policy().0)
    }

    /// One container, those above it, and the policy's that one of these has the name and the parent of. The rest is read only for one that
    /// is directly below a policy's container, or the root: elsewhere is none of the policy's.
    pub fn above(table: &Table, row: Row) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        let mut next = Some(row);
        while let Some(row) = next.filter(|row| rows.iter().all(|below| below.container.id != row.container.id)) {
            next = (row.container.id >= abi::FIEF_FIRST_ID).then(|| table.row(row.record.parent.id)).flatten();
            rows.push(row);
        }
        let is_at_policys = |above: &Row| above.container.id == abi::FIEF_ROOT || is_policys(above);
        let other = rows.windows(2).find(|pair| !is_policys(&pair[0]) && is_at_policys(&pair[1])).map(|pair| pair[0]);
        if let Some(other) = other.filter(|other| !other.name().is_empty()) {
            let parent = other.record.parent;
            let is_namesake = |row: &Row| is_policys(row) && row.record.parent == parent && row.name() == other.name();
            rows.extend(table.rows().find(is_namesake));
        }
        rows.sort_by_key(|row| row.container.id);
        Self::of(rows, table.policy().0)
    }

    /// `rows` are in the order of their slots.
    pub(crate) fn of(rows: Vec<Row>, slot: u32) -> Self {
        let mut tree = Self { rows, namesakes: HashSet::new(), slot };
        tree.namesakes = tree.find_namesakes();
        tree
    }

    fn find_namesakes(&self) -> HashSet<u32> {
        let own = self.rows.iter().filter(|row| row.container.id >= abi::FIEF_FIRST_ID);
        let (named, others): (Vec<_>, Vec<_>) = own.partition(|row| is_policys(row));
        let taken: HashSet<_> = named.into_iter().map(|row| self.place(row)).collect();
        others.into_iter().filter(|row| taken.contains(&self.place(row))).map(|row| row.container.id).collect()
    }

    /// Slot of the parent, and name.
    fn place<'a>(&self, row: &'a Row) -> (u32, &'a str) {
        (self.parent(row).map_or(abi::FIEF_ROOT, |parent| parent.container.id), row.name())
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

    /// Components joined by `/`. One that was never named is `#` and its slot, and so is one that has the name of a policy's container beside
    /// it: nobody else's usage stands at a path of the policy.
    pub fn path(&self, row: &Row) -> String {
        let own = match row.name() {
            name if name.is_empty() || self.namesakes.contains(&row.container.id) => format!("#{}", row.container.id),
            name => name.to_owned(),
        };
        match self.parent(row) {
            Some(parent) if parent.container.id != abi::FIEF_ROOT => format!("{}/{own}", self.path(parent)),
            _ => own,
        }
    }

    /// The living container at a path; of two with the same path the policy's.
    pub fn find(&self, path: &str) -> Option<&Row> {
        let mut found: Vec<_> =
            self.rows.iter().filter(|row| row.record.state == abi::FIEF_ALIVE && self.path(row) == path).collect();
        found.sort_by_key(|row| (row.record.flags & abi::FIEF_CONTAINER_POLICY == 0, row.container.id));
        found.first().copied()
    }

    /// The living containers that a policy named, the deepest first, so that parents can end after their children.
    pub fn of_policy(&self) -> Vec<&Row> {
        let is_named = |row: &&Row| is_policys(row) && row.record.state == abi::FIEF_ALIVE;
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

fn is_policys(row: &Row) -> bool {
    row.record.flags & abi::FIEF_CONTAINER_POLICY != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u32, parent: u32, name: &str, flags: u32) -> Row {
        let reference = |id| abi::fief_ref { id, generation: 1 };
        let (parent, state) = (reference(parent), abi::FIEF_ALIVE);
        let mut record = abi::fief_container { generation: 1, parent, state, flags, ..Default::default() };
        record.name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as _);
        Row { container: reference(id), record }
    }

    #[test]
    fn a_path_of_the_policy_is_no_other_containers() {
        let policy = abi::FIEF_CONTAINER_POLICY;
        let rows = vec![
            row(8, abi::FIEF_ROOT, "shop", policy),
            row(9, 8, "vip", 0),
            row(10, 9, "deep", 0),
            row(11, 8, "vip", policy),
            row(12, 11, "deep", policy),
            row(13, 11, "vip", 0),
            row(14, abi::FIEF_ROOT, "shop", 0),
        ];
        let tree = Tree::of(rows, 0);
        let paths: Vec<_> = tree.rows().iter().map(|row| tree.path(row)).collect();
        let expected = ["shop", "shop/#9", "shop/#9/deep", "shop/vip", "shop/vip/deep", "shop/vip/vip", "#14"];
        assert_eq!(paths, expected);
        assert_eq!(tree.find("shop/#9").map(|row| row.container.id), Some(9));
    }
}
