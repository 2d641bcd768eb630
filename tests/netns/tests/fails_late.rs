// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy that fails when nearly all of it is there, up to the flip itself, leaves what was in force, and nothing of its own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use fief_bpf::table::Table;
use fief_bpf::{ingress, open, queue};
use fief_control::{Applied, ApplyOptions, Error, Fief};
use fief_testkit::{Feature, NetNs, require, wait_until};
use fief_tests_netns::{Away, SOON};

/// A policy of one container and one listener, for whose clients it is. `front`: what it says of the door; `listener`: more of that.
fn policy(container: &str, front: &str, listener: &str) -> String {
    format!(
        "version = 1\n[front]\n{front}\n[container.{container}]\n[listener.web]\naddress = \"0.0.0.0:80\"\nadmit = true\n{listener}\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"{container}\"\n"
    )
}

/// At one interface. `queue` is of the listener.
fn former(queue: &str) -> String {
    policy("former", "interfaces = [\"a0\"]\nhandshake = \"own\"", queue)
}

/// Wants more: another container, another queue, both interfaces, the kernel's cookies, and to know of what passed no door.
fn new() -> String {
    let front = "interfaces = [\"a0\", \"a1\"]\nhandshake = \"kernel\"\nunguarded = \"pass\"";
    policy("new", front, "queue = { length = 200 }")
}

const QUEUED: &str = "queue = { length = 100 }";

/// An installation in a network namespace of its own, with a pair of interfaces.
struct Place {
    fief: Fief,
    namespace: NetNs,
}

impl Place {
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if ![Feature::Root, Feature::NetNs, Feature::Bpf].into_iter().all(require) {
            return None;
        }
        let scope = format!("ff-{}-late{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Some(Self { fief: Fief::with_scope(&scope), namespace: with_interfaces() })
    }

    fn apply(&self, text: &str) -> Result<Applied, Error> {
        self.apply_in(&self.namespace, text)
    }

    /// Moves the front door there.
    fn apply_in(&self, namespace: &NetNs, text: &str) -> Result<Applied, Error> {
        let parsed = fief_policy::parse(text, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        let options = ApplyOptions { containers: Some(128), here: true, ..ApplyOptions::default() };
        namespace.run(|| self.fief.apply(&parsed, text, &options)).unwrap()
    }

    /// A file of what Fief keeps of the installation.
    fn kept(&self, name: &str) -> PathBuf {
        Path::new("/run/fief").join(self.fief.pins().scope()).join(name)
    }

    /// A pin of one of its programs.
    fn program(&self, name: &str) -> PathBuf {
        self.fief.pins().program(name)
    }

    /// Lengths of the queues, as commands list them.
    fn lengths(&self) -> Vec<u32> {
        self.fief.queue_views().unwrap().iter().map(|view| view.length).collect()
    }

    /// What is there of it in the kernel, and in its network namespace.
    fn all(&self) -> Vec<String> {
        let pins = self.fief.pins();
        let mut all: Vec<_> = self.fief.snapshot().unwrap().containers.into_iter().map(|view| view.path).collect();
        let mut queues = queue::all(pins).unwrap();
        queues.sort_by_key(|(number, _)| *number);
        let queues = queues.iter().map(|(number, of)| format!("queue {number}: {}, open {}", of.length, of.open));
        all.extend(queues);
        all.push(format!("listed: {:?}", self.lengths()));
        all.extend(ingress::standing(pins).iter().map(|stand| format!("{stand:?}")));
        let steered = open::steered(pins);
        all.push(format!("steered: {steered:?}, {}", steered.is_some_and(|netns| open::steers(pins, netns.inode))));
        all.extend([pins.links(), pins.top(), pins.lanes()].iter().map(|folder| format!("{:?}", below(folder))));
        all.extend(interfaces(&self.namespace));
        all.extend(sysctls(&self.namespace));
        all.extend(["sysctls", "lanes"].map(|note| std::fs::read_to_string(self.kept(note)).unwrap_or_default()));
        all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.namespace.run(|| self.fief.down()).unwrap() {
            eprintln!("cannot take the test's installation down: {error}");
        }
    }
}

fn with_interfaces() -> NetNs {
    let namespace = NetNs::new("late").unwrap();
    for words in ["add a0 type veth peer name a1", "set a0 up", "set a1 up"] {
        namespace.ip(&format!("link {words}")).unwrap();
    }
    namespace
}

/// Names of all that is in a folder and in those in it.
fn below(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap());
    let mut names: Vec<_> = entries
        .flat_map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            let inside = if entry.path().is_dir() { below(&entry.path()) } else { Vec::new() };
            inside.into_iter().chain([name])
        })
        .collect();
    names.sort();
    names
}

fn interfaces(namespace: &NetNs) -> Vec<String> {
    let text = namespace.ip("-oneline link").unwrap();
    text.lines().filter_map(|line| line.split(": ").nth(1)).map(str::to_owned).collect()
}

fn sysctls(namespace: &NetNs) -> [String; 3] {
    let read = |name: &str| std::fs::read_to_string(Path::new("/proc/sys/net/ipv4").join(name)).unwrap();
    namespace.run(|| ["tcp_syncookies", "tcp_timestamps", "conf/lo/forwarding"].map(read)).unwrap()
}

/// Applies the new policy several times, which fails, and once more, when nothing keeps it from coming into force.
fn fails(place: &Place, hindrance: impl FnOnce()) {
    let before = place.all();
    for _ in 0..3 {
        place.apply(&new()).unwrap_err();
        assert_eq!(place.all(), before);
    }
    hindrance();
    place.apply(&new()).unwrap();
    assert_eq!(place.lengths(), [200]);
}

#[test]
fn a_policy_whose_text_cannot_be_kept_leaves_no_queue() {
    let Some(place) = Place::new() else { return };
    for queue in ["", QUEUED] {
        place.apply(&former(queue)).unwrap();
        let next = 1 - Table::open(place.fief.pins()).unwrap().policy().0;
        let text = place.kept(&format!("policy.{next}.toml"));
        let _ = std::fs::remove_file(&text); // of the policy before, which nobody reads any more
        std::fs::create_dir(&text).unwrap();
        fails(&place, || std::fs::remove_dir(text).unwrap());
    }
}

#[test]
fn a_policy_before_which_the_former_queues_cannot_be_opened_leaves_all_as_it_was() {
    let Some(place) = Place::new() else { return };
    place.apply(&former(QUEUED)).unwrap();
    let away = Away::new(place.program("queue_opens"));
    fails(&place, || drop(away));
}

/// A queue that was opened for it holds requests again.
#[test]
fn a_policy_whose_flip_fails_leaves_all_as_it_was() {
    let Some(place) = Place::new() else { return };
    for queue in ["", QUEUED] {
        place.apply(&former(queue)).unwrap();
        let away = Away::flip(&place.fief);
        fails(&place, || drop(away));
    }
}

#[test]
fn a_front_door_that_fails_to_move_stays_where_it_was() {
    let Some(place) = Place::new() else { return };
    place.apply(&former(QUEUED)).unwrap();
    let elsewhere = with_interfaces();
    let there = || (interfaces(&elsewhere), sysctls(&elsewhere));
    let before = (place.all(), there());
    let away = Away::flip(&place.fief);
    place.apply_in(&elsewhere, &new()).unwrap_err();
    assert_eq!((place.all(), there()), before);
    drop(away);
    place.apply_in(&elsewhere, &new()).unwrap();
    assert_ne!(there(), before.1);
    place.fief.down().unwrap();
    assert_eq!(there(), before.1);
}

#[test]
fn a_policy_whose_flip_fails_leaves_no_lanes() {
    let Some(place) = Place::new().filter(|_| require(Feature::ThreadedNapi)) else { return };
    place.apply(&former("")).unwrap();
    let (before, away) = (place.all(), Away::flip(&place.fief));
    let lanes = policy("new", "interfaces = [\"a0\"]", "lrp.when = \"always\"");
    place.apply(&lanes).unwrap_err();
    // a lane's thread holds its container until it has ended
    let _ = wait_until(SOON, || place.all() == before);
    assert_eq!(place.all(), before);
    drop(away);
    place.apply(&lanes).unwrap();
    assert_ne!(place.all(), before);
}
