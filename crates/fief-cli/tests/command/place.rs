// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An installation and a network namespace for one test.

use std::sync::atomic::{AtomicU32, Ordering};

use fief_testkit::{Feature, NetNs, require};

use crate::started::{Ended, Fief, SHOP, fief_in, policy};

/// Takes its installation down on drop.
pub struct Place {
    pub scope: String,
    pub namespace: NetNs,
}

impl Place {
    /// None: the machine lacks what these tests need.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if ![Feature::Root, Feature::NetNs, Feature::Cgroup2, Feature::Bpf].into_iter().all(require) {
            return None;
        }
        let scope = format!("ff-cli-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Some(Self { scope, namespace: NetNs::new("cli").expect("a namespace") })
    }

    pub fn fief(&self) -> Fief {
        let mut fief = fief_in(&self.scope);
        self.namespace.enter(fief.command());
        fief
    }

    pub fn apply(&self) -> Ended {
        let shop = policy(SHOP);
        let ended = self.fief().args(["apply", "--json", "--containers", "256"]).arg(shop.path()).ends();
        assert_eq!(ended.code, 0, "{ended:?}");
        ended
    }

    pub fn containers(&self) -> Vec<String> {
        let listed = self.fief().args(["ls", "--json"]).ends();
        listed.objects().iter().map(|object| object["container"].as_str().expect("a path").to_owned()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It is down already where the test took it down itself.
        fief_in(&self.scope).arg("down").ends();
        let _ = std::fs::remove_file(format!("/run/fief/{}.lock", self.scope));
    }
}
