// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups of the kernel's own (cgroups of version 2) with weights of the CPU, for what they do beside containers.

use std::fs;

use fief_testkit::{Cgroup, cgroup2_mount};
use nix::unistd::Pid;

use crate::error::{Context, Error, Kind, Result};

/// Removed with the guard.
#[derive(Debug)]
pub struct Groups(Vec<(String, Cgroup)>);

impl Groups {
    /// Each with a weight of 100 until it is given another. An error where this machine's version 2 does not divide the CPU.
    pub fn new(names: impl Iterator<Item = String>) -> Result<Groups> {
        let top = cgroup2_mount()?;
        let offered = fs::read_to_string(top.join("cgroup.controllers")).unwrap_or_default();
        if !offered.split_whitespace().any(|one| one == "cpu") {
            return Err(Error::new(Kind::Missing, "cgroups of version 2 do not divide the CPU of this machine"));
        }
        fs::write(top.join("cgroup.subtree_control"), "+cpu").context("have cgroups divide the CPU")?;
        let group = |name: String| Cgroup::new(&name).map(|group| (name, group)).map_err(Error::from);
        names.map(group).collect::<Result<_>>().map(Groups)
    }

    pub fn weigh(&self, name: &str, weight: u32) -> Result<()> {
        let file = self.group(name)?.path().join("cpu.weight");
        fs::write(file, weight.to_string()).context("give a cgroup its weight")
    }

    pub fn put(&self, process: Pid, name: &str) -> Result<()> {
        self.group(name)?.add(process.as_raw() as u32).map_err(Error::from)
    }

    fn group(&self, name: &str) -> Result<&Cgroup> {
        let found = self.0.iter().find(|(one, _)| one == name).map(|(_, group)| group);
        found.ok_or_else(|| Error::failed(format!("there is no cgroup for {name}")))
    }
}

/// The weight that has this part of a CPU beside so many others of weight 100.
pub fn weight_beside(part: f64, others: usize) -> u32 {
    (100.0 * others as f64 * part / (1.0 - part)).round().clamp(1.0, 10_000.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_has_its_part_beside_others_of_100() {
        assert_eq!(weight_beside(0.4, 1), 67);
        assert_eq!(weight_beside(0.5, 7), 700);
        assert_eq!(weight_beside(1.0, 7), 10_000);
    }
}
