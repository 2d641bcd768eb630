// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An installation that nothing was applied to yet, and the two policies that most tests apply to it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use fief_bpf::abi;
use fief_control::{ApplyOptions, Fief};
use fief_policy::Policy;
use fief_testkit::{cgroup2_mount, wait_until};
use fief_tests_netns::SOON;

pub const OLD: &str = "version = 1\n[container.kept]\ncpu.weight = 100\n[container.gone]\n[container.\"gone/below\"]\n";
pub const NEW: &str =
    "version = 1\n[container.kept]\ncpu.weight = 200\n[container.fresh]\n[container.\"fresh/below\"]\n";

/// An installation that nothing was applied to yet. No other has a table of this size, which is odd, by which its maps are found.
pub struct Bare {
    pub fief: Fief,
    pub containers: u32,
}

impl Bare {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let fief = Fief::with_scope(&format!("ff-{}-apply{next}", std::process::id()));
        Self { fief, containers: (2000 + std::process::id() % 997 + next * 997) | 1 }
    }

    pub fn apply(&self, text: &str) -> Result<fief_control::Applied, fief_control::Error> {
        let options = ApplyOptions { containers: Some(self.containers), ..ApplyOptions::default() };
        self.fief.apply(&parse(text), text, &options)
    }

    /// Weight by path of the policy's containers.
    pub fn in_force(&self) -> BTreeMap<String, u32> {
        let snapshot = self.fief.snapshot().unwrap();
        let named = snapshot.containers.into_iter().filter(|c| c.policy);
        named.map(|c| (c.path, c.attributes.weight)).collect()
    }

    /// Every container there is, the policy's or not.
    pub fn paths(&self) -> Vec<String> {
        let snapshot = self.fief.snapshot().unwrap();
        let mut paths: Vec<_> =
            snapshot.containers.into_iter().filter(|c| c.id >= abi::FIEF_FIRST_ID).map(|c| c.path).collect();
        paths.sort();
        paths
    }

    /// Whether the kernel still has maps of this installation.
    fn is_loaded(&self) -> bool {
        libbpf_rs::query::MapInfoIter::default().any(|map| map.max_entries == self.containers)
    }

    pub fn assert_nothing_is_left(&self) {
        let scope = self.fief.pins().scope();
        wait_until(SOON, || !self.is_loaded()).unwrap_or_else(|_| panic!("maps of {scope} are left"));
        for folder in [Path::new("/sys/fs/bpf"), Path::new("/run/fief"), &cgroup2_mount().unwrap().join("fief")] {
            let left = || -> Vec<_> {
                let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
                names.filter(|e| e.file_name().to_string_lossy().starts_with(scope)).collect()
            };
            // a guard may still be at it
            wait_until(SOON, || left().is_empty()).unwrap_or_else(|_| panic!("{:?}", left()));
        }
    }

    pub fn down(&self) {
        self.fief.down().unwrap();
        self.assert_nothing_is_left();
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // a test that failed leaves it in force
        let _ = self.fief.down();
    }
}

pub fn parse(text: &str) -> Policy {
    fief_policy::parse(text, "test.toml").unwrap_or_else(|e| panic!("{e}"))
}

pub fn weights(text: &str) -> BTreeMap<String, u32> {
    parse(text).containers.into_iter().map(|c| (c.path, c.cpu.weight)).collect()
}
