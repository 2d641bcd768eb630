// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which folder is below which, and what they are called.
//!
//! Applications name their containers as they like. One whose name another one beside it has, or one of its files, or that is no name
//! of a folder, is `#` and its slot, as one without a name; a policy's keeps its own. A name that begins with `#` is never an
//! application's: nobody can pass for a slot.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::inode::File;
use fief_control::{Fief, Holder, Node, Reference, Result};

/// Folders by the slot of their parent; `None`: the top.
#[derive(Clone, Default)]
pub struct Folders {
    all: HashMap<Reference, Holder>,
    below: HashMap<Option<u32>, BTreeMap<String, Reference>>,
}

impl Folders {
    pub fn of(mut nodes: Vec<Node>) -> Self {
        nodes.sort_by_key(|node| (!node.policy, node.container.id));
        let mut folders = Self::default();
        nodes.into_iter().for_each(|node| folders.add(node));
        folders
    }

    fn add(&mut self, node: Node) {
        self.all.insert(node.container, node.holder);
        // a parent may be read as its own for a moment
        let parent = node.parent.filter(|&id| id != node.container.id);
        let beside = self.below.entry(parent).or_default();
        let is_free = is_name(&node.name) && !beside.contains_key(&node.name);
        let name = if is_free { node.name } else { format!("#{}", node.container.id) };
        beside.insert(name, node.container);
    }

    fn remove(&mut self, parent: Option<u32>, container: Reference) {
        self.all.remove(&container);
        self.below.entry(parent).or_default().retain(|_, own| *own != container);
    }

    pub fn find(&self, parent: Option<u32>, name: &str) -> Option<Reference> {
        self.below.get(&parent)?.get(name).copied()
    }

    pub fn within(&self, parent: Option<u32>) -> impl Iterator<Item = (&str, Reference)> {
        self.below.get(&parent).into_iter().flatten().map(|(name, &container)| (name.as_str(), container))
    }
}

/// Whether a container can be called so here.
pub fn is_name(name: &str) -> bool {
    let is_fit = |character: char| !character.is_control() && character != '/';
    !["", ".", ".."].contains(&name)
        && !name.starts_with('#')
        && name.len() < fief::abi::FIEF_NAME_LEN as usize
        && name.chars().all(is_fit)
        && File::named(name).is_none()
}

/// Reads them, and not more often than that a tenth of a CPU can do it.
pub struct Lister {
    fief: Fief,
    last: Mutex<Option<Reading>>,
}

struct Reading {
    begun: Instant,
    cost: Duration,
    folders: Arc<Folders>,
}

impl Lister {
    pub fn new(fief: Fief) -> Self {
        Self { fief, last: Mutex::new(None) }
    }

    /// As they are now, or were a moment ago.
    pub fn folders(&self) -> Result<Arc<Folders>> {
        self.read(|reading| reading.begun.elapsed() < 10 * reading.cost)
    }

    /// The container of that name.
    pub fn find(&self, parent: Option<u32>, name: &str) -> Result<Option<Reference>> {
        self.look(|folders| folders.find(parent, name))
    }

    /// Whose it is, if it was there a moment ago, or is now. What it says is always read now.
    pub fn holder(&self, container: Reference) -> Result<Option<Holder>> {
        self.look(|folders| folders.all.get(&container).copied())
    }

    /// Also what is not there: whoever asks for that over and over would have all containers read each time.
    fn look<T>(&self, of: impl Fn(&Folders) -> Option<T>) -> Result<Option<T>> {
        self.folders().map(|folders| of(&folders))
    }

    /// Something has changed.
    pub fn forget(&self) {
        *self.last() = None;
    }

    /// A user has made this one. What was read stays: to read all again for each change would be a load that any user can make.
    pub fn made(&self, node: Node) {
        // unless it was read meanwhile
        self.change(|folders| {
            if !folders.all.contains_key(&node.container) {
                folders.add(node)
            }
        });
    }

    /// A user has ended this one; likewise.
    pub fn ended(&self, parent: Option<u32>, container: Reference) {
        self.change(|folders| folders.remove(parent, container));
    }

    fn change(&self, how: impl FnOnce(&mut Folders)) {
        if let Some(reading) = self.last().as_mut() {
            how(Arc::make_mut(&mut reading.folders));
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Reading>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, is_fit: impl Fn(&Reading) -> bool) -> Result<Arc<Folders>> {
        let mut last = self.last();
        if let Some(reading) = last.as_ref().filter(|reading| is_fit(reading)) {
            return Ok(reading.folders.clone());
        }
        let begun = Instant::now();
        let folders = Arc::new(Folders::of(self.fief.nodes()?));
        *last = Some(Reading { begun, cost: begun.elapsed(), folders: folders.clone() });
        Ok(folders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u32, parent: Option<u32>, name: &str, policy: bool) -> Node {
        Node { container: Reference { id, generation: 1 }, parent, name: name.into(), policy, holder: Holder::Operator }
    }

    fn names(folders: &Folders, parent: Option<u32>) -> Vec<&str> {
        folders.within(parent).map(|(name, _)| name).collect()
    }

    #[test]
    fn folders_are_nested_as_the_containers_are() {
        let folders = Folders::of(vec![node(8, None, "shop", true), node(9, Some(8), "gold", true)]);
        assert_eq!(names(&folders, None), ["shop"]);
        assert_eq!(names(&folders, Some(8)), ["gold"]);
        assert_eq!(folders.find(Some(8), "gold"), Some(Reference { id: 9, generation: 1 }));
        assert_eq!(folders.find(None, "gold"), None);
    }

    #[test]
    fn a_policys_container_keeps_its_name_whoever_takes_the_same() {
        let folders = Folders::of(vec![node(8, None, "shop", false), node(9, None, "shop", true)]);
        assert_eq!(folders.find(None, "shop").map(|found| found.id), Some(9));
        assert_eq!(folders.find(None, "#8").map(|found| found.id), Some(8));
    }

    #[test]
    fn a_name_that_is_none_of_a_folder_is_the_slot() {
        for name in ["", ".", "..", "status", "usage", "cmd", "#9", "a\nb", "\u{1b}[2J"] {
            let folders = Folders::of(vec![node(8, None, name, false)]);
            assert_eq!(names(&folders, None), ["#8"], "{name:?}");
        }
    }

    #[test]
    fn what_a_user_makes_and_ends_is_changed_in_what_was_read() {
        let mut folders = Folders::of(vec![node(8, None, "shop", true)]);
        folders.add(node(9, Some(8), "batch", false));
        folders.add(node(10, Some(8), "batch", false));
        assert_eq!(names(&folders, Some(8)), ["#10", "batch"]);
        folders.remove(Some(8), Reference { id: 9, generation: 1 });
        assert_eq!(names(&folders, Some(8)), ["#10"]);
        assert!(!folders.all.contains_key(&Reference { id: 9, generation: 1 }));
    }

    #[test]
    fn a_parent_of_its_own_stands_at_the_top() {
        assert_eq!(names(&Folders::of(vec![node(8, Some(8), "loop", false)]), None), ["loop"]);
    }
}
