// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An installation and a network namespace of a test's own.

use std::sync::atomic::{AtomicU32, Ordering};

use fief_testkit::{Cgroup, Feature, NetNs, require};

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

    /// A cgroup that is managed: CPU time is charged as long.
    pub fn manage(&self, container: &str) -> Cgroup {
        let cgroup = Cgroup::new("managed").expect("a cgroup");
        let managed = self.fief().args(["manage", "--container", container]).arg(cgroup.path()).ends();
        assert_eq!(managed.code, 0, "{managed:?}");
        cgroup
    }

    /// What `fief show` says of a container.
    pub fn shown(&self, path: &str) -> serde_json::Value {
        self.fief().args(["show", path, "--json"]).ends().objects().remove(0)
    }

    /// Threads that are in it.
    pub fn threads(&self, path: &str) -> u64 {
        self.shown(path)["threads"].as_u64().expect("an integer")
    }

    /// What `fief status` says.
    pub fn status(&self) -> serde_json::Value {
        self.fief().args(["status", "--json"]).ends().objects().remove(0)
    }

    /// Folders of the cgroups that are managed.
    pub fn units(&self) -> Vec<String> {
        let status = self.status();
        let units = status["units"].as_array().expect("a list").iter();
        units.map(|unit| unit.as_str().expect("a folder").to_owned()).collect()
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
        for left in ["lock", "agent.lock", "agent"] {
            let _ = std::fs::remove_file(format!("/run/fief/{}.{left}", self.scope));
        }
    }
}
