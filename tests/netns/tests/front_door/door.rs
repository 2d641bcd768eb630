// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A front door in a network namespace of its own, and the tables, interfaces and sysctls that tests read of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use fief_bpf::table::Table;
use fief_bpf::{abi, batch, inner, open};
use fief_control::{Applied, ApplyOptions, Error, ErrorKind, Fief};
use fief_testkit::{Feature, NetNs, require};
use libbpf_rs::MapHandle;

fn sysctl_of(namespace: &NetNs, name: &str) -> String {
    let file = format!("/proc/sys/net/ipv4/{name}");
    namespace.run(|| std::fs::read_to_string(file).unwrap().trim().to_owned()).unwrap()
}

/// How the kernel answers: `tcp_syncookies` and `tcp_timestamps`.
pub fn answers_of(namespace: &NetNs) -> [String; 2] {
    ["tcp_syncookies", "tcp_timestamps"].map(|name| sysctl_of(namespace, name))
}

/// A policy whose only listener has a rate.
pub fn policy(front: &str, listener: &str, rate: u32) -> String {
    format!(
        "version = 1\n[front]\n{front}\n[container.all]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{listener}\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"all\"\nsyn = {{ rate = {rate}, burst = 1 }}\n"
    )
}

/// An installation in a network namespace of its own with two pairs of interfaces, of which one is up.
pub struct Door {
    pub fief: Fief,
    pub namespace: NetNs,
}

impl Door {
    pub fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if ![Feature::Root, Feature::NetNs, Feature::Bpf].into_iter().all(require) {
            return None;
        }
        let namespace = NetNs::new("door").unwrap();
        for pair in ["add a0 type veth peer name a1", "add b0 type veth peer name b1", "set a0 up", "set a1 up"] {
            namespace.ip(&format!("link {pair}")).unwrap();
        }
        let scope = format!("ff-{}-door{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Some(Self { fief: Fief::with_scope(&scope), namespace })
    }

    pub fn apply(&self, text: &str) -> Result<Applied, Error> {
        self.namespace.run(|| self.apply_here(text)).unwrap()
    }

    /// From a thread that is in the namespace already.
    pub fn apply_here(&self, text: &str) -> Result<Applied, Error> {
        self.apply_by(text, ApplyOptions::default())
    }

    pub fn apply_by(&self, text: &str, options: ApplyOptions) -> Result<Applied, Error> {
        let parsed = fief_policy::parse(text, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        self.fief.apply(&parsed, text, &ApplyOptions { containers: Some(128), ..options })
    }

    /// A file of what Fief keeps of the installation.
    fn kept(&self, name: &str) -> PathBuf {
        Path::new("/run/fief").join(self.fief.pins().scope()).join(name)
    }

    /// Has the next policy fail: its text cannot be kept while the folder is there.
    pub fn no_next(&self) -> PathBuf {
        let next = 1 - Table::open(self.fief.pins()).unwrap().policy().0;
        let text = self.kept(&format!("policy.{next}.toml"));
        let _ = std::fs::remove_file(&text); // of the policy before this one, which nobody reads any more
        std::fs::create_dir(&text).unwrap();
        text
    }

    /// Names of the interfaces that it stands at.
    pub fn at(&self) -> Vec<String> {
        let mut names = self.namespace.run(|| self.fief.front().unwrap().interfaces).unwrap();
        names.sort();
        names
    }

    pub fn index(&self, name: &str) -> u32 {
        self.namespace.run(|| nix::net::if_::if_nametoindex(name).unwrap()).unwrap()
    }

    /// Whether a program steers connections in the policy's network namespace.
    pub fn is_steered(&self) -> bool {
        let pins = self.fief.pins();
        open::steered(pins).is_some_and(|netns| open::steers(pins, netns.inode))
    }

    pub fn sysctl(&self, name: &str) -> String {
        sysctl_of(&self.namespace, name)
    }

    /// Has the kernel answered by cookies so long ago that none is good any more.
    pub fn cookies_ran_out(&self) {
        let file = self.kept("sysctls");
        let noted = std::fs::read_to_string(&file).unwrap();
        let older = noted.lines().map(|line| match line.split_once("answered until = ") {
            Some((_, seconds)) => format!("answered until = {}\n", seconds.parse::<u64>().unwrap() - 129),
            None => format!("{line}\n"),
        });
        std::fs::write(&file, older.collect::<String>()).unwrap();
    }

    pub fn map(&self, name: &str) -> MapHandle {
        MapHandle::from_pinned_path(self.fief.pins().map(name)).unwrap()
    }

    /// Of the slot in force.
    pub fn guards(&self) -> BTreeMap<u32, abi::fief_guard> {
        let slot = self.slot();
        let all: Vec<(u32, abi::fief_guard)> = batch::entries(&self.map("guards")).unwrap();
        let ours = all.into_iter().filter(|(key, _)| key / abi::FIEF_MAX_LISTENERS == slot);
        ours.map(|(key, guard)| (key % abi::FIEF_MAX_LISTENERS, guard)).collect()
    }

    /// Intervals of the buckets of the slot in force.
    pub fn intervals(&self) -> Vec<u64> {
        self.buckets().iter().map(|(_, bucket)| bucket.interval_ns).collect()
    }

    /// Of the slot in force, by number.
    pub fn buckets(&self) -> Vec<(u32, abi::fief_bucket)> {
        let mut all = batch::entries(&self.bucket_table()).unwrap();
        all.retain(|(number, _)| *number != 0);
        all
    }

    pub fn bucket_table(&self) -> MapHandle {
        inner::get(&self.map("bucket_tables"), self.slot()).unwrap().expect("a policy is in force")
    }

    pub fn slot(&self) -> u32 {
        fief_bpf::table::Table::open(self.fief.pins()).unwrap().policy().0
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        match self.namespace.run(|| self.fief.down()) {
            Ok(Err(e)) if e.kind() == ErrorKind::NotFound => {}
            done => drop(done.unwrap().unwrap()),
        }
    }
}
