// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Renamed: which containers of a policy are there already, and under which path.
//!
//! A container that a policy names by another path than the one before (`was`) keeps its slot, and with it its usage, its members
//! and what is below it. What is below a renamed one is known by the rest of its path.
//! How: a policy is staged for the containers as they are, and they get their new names right after the flip. A kill in between
//! leaves the old names; the next apply of the policy finds them by `was` once more.

use std::collections::{HashMap, HashSet};

use fief_bpf::abi;
use fief_bpf::admin::Admin;
use fief_bpf::table::Row;
use fief_policy::{Container, Policy};

use crate::tree::Tree;

/// The containers of a policy that are there.
#[derive(Debug, Default)]
pub(crate) struct There {
    by_path: HashMap<String, abi::fief_ref>,
    /// Old and new path, parents first.
    pub(crate) renamed: Vec<(String, String)>,
}

impl There {
    pub(crate) fn of(policy: &Policy, tree: &Tree) -> Self {
        let named: HashMap<String, abi::fief_ref> =
            tree.of_policy().into_iter().map(|row| (tree.path(row), row.container)).collect();
        Self::resolve(policy, &named)
    }

    /// `named`: those that policies have named, by path.
    fn resolve(policy: &Policy, named: &HashMap<String, abi::fief_ref>) -> Self {
        let mut there = Self::default();
        let said: HashSet<&str> = policy.containers.iter().filter_map(|container| container.was.as_deref()).collect();
        // where the containers of the policy are now
        let mut places: HashMap<&str, String> = HashMap::new();
        for container in &policy.containers {
            let place = match named.contains_key(&container.path) {
                true => container.path.clone(),
                false => former(container, &places, &said).unwrap_or_else(|| container.path.clone()),
            };
            if let Some(reference) = named.get(&place) {
                there.by_path.insert(container.path.clone(), *reference);
                if place != container.path {
                    there.renamed.push((place.clone(), container.path.clone()));
                }
            }
            places.insert(&container.path, place);
        }
        there
    }

    /// The one that the policy has at this path.
    pub(crate) fn get(&self, path: &str) -> Option<abi::fief_ref> {
        self.by_path.get(path).copied()
    }

    /// Whether the policy goes on with it.
    pub(crate) fn keeps(&self, row: &Row) -> bool {
        self.by_path.values().any(|reference| *reference == row.container)
    }

    /// The path that it has in the policy, if that goes on with it.
    pub(crate) fn path_of(&self, container: abi::fief_ref) -> Option<&str> {
        self.by_path.iter().find(|(_, reference)| **reference == container).map(|(path, _)| path.as_str())
    }

    /// Gives them their new names, once the policy is in force. Returns what the operator should know.
    pub(crate) fn rename(&self, admin: &Admin, containers: &HashMap<String, abi::fief_ref>) -> Vec<String> {
        let root = abi::fief_ref { id: abi::FIEF_ROOT, generation: 0 };
        let rename = |(old, new): &(String, String)| {
            let (above, name) = new.rsplit_once('/').map_or((None, new.as_str()), |(above, name)| (Some(above), name));
            let parent = above.map_or(Some(&root), |above| containers.get(above));
            let done = containers.get(new).zip(parent).map(|(of, parent)| admin.rename(*of, *parent, name));
            // the policy is in force, so this is told and stops nothing
            done?.err().map(|error| format!("{new} is still called {old}: {error}"))
        };
        self.renamed.iter().filter_map(rename).collect()
    }
}

/// Where a container was that is not at its path: as it says itself, or in the place that its parent had.
fn former(container: &Container, places: &HashMap<&str, String>, said: &HashSet<&str>) -> Option<String> {
    let with_parent = || {
        let parent = container.parent()?;
        let place = places.get(parent).filter(|place| *place != parent)?;
        // one that another container was by its own word is not this one's
        Some(format!("{place}/{}", container.name())).filter(|place| !said.contains(place.as_str()))
    };
    container.was.clone().or_else(with_parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(policy: &str, paths: &[&str]) -> There {
        let policy =
            fief_policy::parse(&format!("version = 1\n{policy}"), "test.toml").unwrap_or_else(|e| panic!("{e}"));
        let reference = |id| abi::fief_ref { id, generation: 1 };
        let named = paths.iter().zip(8..).map(|(path, id)| ((*path).to_owned(), reference(id))).collect();
        There::resolve(&policy, &named)
    }

    fn renamed(there: &There) -> Vec<(&str, &str)> {
        there.renamed.iter().map(|(old, new)| (old.as_str(), new.as_str())).collect()
    }

    #[test]
    fn a_renamed_container_brings_what_is_below_it() {
        let of = there("[container.store]\nwas = \"shop\"\n[container.\"store/gold\"]\n", &["shop", "shop/gold"]);
        assert_eq!(renamed(&of), [("shop", "store"), ("shop/gold", "store/gold")]);
        assert_eq!((of.get("store").map(|of| of.id), of.get("store/gold").map(|of| of.id)), (Some(8), Some(9)));
    }

    #[test]
    fn one_can_go_below_another_and_out_of_it() {
        let of = there(
            "[container.\"acme/shop\"]\nwas = \"shop\"\n[container.gold]\nwas = \"shop/gold\"\n",
            &["shop", "shop/gold"],
        );
        assert_eq!(renamed(&of), [("shop", "acme/shop"), ("shop/gold", "gold")]);
        assert_eq!(of.get("acme"), None, "it is new");
    }

    #[test]
    fn what_another_container_was_is_nobody_elses() {
        let text =
            "[container.gold]\nwas = \"shop/gold\"\n[container.store]\nwas = \"shop\"\n[container.\"store/gold\"]\n";
        let of = there(text, &["shop", "shop/gold"]);
        assert_eq!(of.get("gold").map(|of| of.id), Some(9));
        assert_eq!(of.get("store/gold"), None, "it is new");
    }

    #[test]
    fn applied_again_nothing_is_renamed() {
        let of = there("[container.store]\nwas = \"shop\"\n[container.\"store/gold\"]\n", &["store", "store/gold"]);
        assert!(of.renamed.is_empty() && of.get("store/gold").is_some());
        // both are there: each keeps its own account, and the old one ends
        let of = there("[container.store]\nwas = \"shop\"\n", &["store", "shop"]);
        assert!(of.renamed.is_empty());
        assert_eq!(of.get("store").map(|of| of.id), Some(8));
    }

    #[test]
    fn without_was_a_new_path_is_a_new_container() {
        let of = there("[container.store]\n", &["shop"]);
        assert!(of.renamed.is_empty() && of.get("store").is_none());
    }
}
