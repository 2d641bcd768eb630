// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the front door stands and what is written into it: at which interfaces, for how long, by whose cookies, and
//! never half of a policy.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use fief_bpf::table::Table;
use fief_bpf::upgrade::program_id;
use fief_bpf::{abi, batch, ingress, inner, open};
use fief_control::{Applied, ApplyOptions, Error, ErrorKind, Fief, ManageOptions, Target};
use fief_testkit::{Cgroup, Feature, NetNs, require, require_if, wait_until};
use fief_tests_netns::{SOON, kill_before};
use libbpf_rs::MapHandle;
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter};

fn sysctl_of(namespace: &NetNs, name: &str) -> String {
    let file = format!("/proc/sys/net/ipv4/{name}");
    namespace.run(|| std::fs::read_to_string(file).unwrap().trim().to_owned()).unwrap()
}

/// How the kernel answers: `tcp_syncookies` and `tcp_timestamps`.
fn answers_of(namespace: &NetNs) -> [String; 2] {
    ["tcp_syncookies", "tcp_timestamps"].map(|name| sysctl_of(namespace, name))
}

/// A policy whose only listener has a rate.
fn policy(front: &str, listener: &str, rate: u32) -> String {
    format!(
        "version = 1\n[front]\n{front}\n[container.all]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{listener}\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"all\"\nsyn = {{ rate = {rate}, burst = 1 }}\n"
    )
}

/// An installation in a network namespace of its own with two pairs of interfaces, of which one is up.
struct Door {
    fief: Fief,
    namespace: NetNs,
}

impl Door {
    fn new() -> Option<Self> {
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

    fn apply(&self, text: &str) -> Result<Applied, Error> {
        self.namespace.run(|| self.apply_here(text)).unwrap()
    }

    /// From a thread that is in the namespace already.
    fn apply_here(&self, text: &str) -> Result<Applied, Error> {
        self.apply_by(text, ApplyOptions::default())
    }

    fn apply_by(&self, text: &str, options: ApplyOptions) -> Result<Applied, Error> {
        let parsed = fief_policy::parse(text, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        self.fief.apply(&parsed, text, &ApplyOptions { containers: Some(128), ..options })
    }

    /// A file of what Fief keeps of the installation.
    fn kept(&self, name: &str) -> PathBuf {
        Path::new("/run/fief").join(self.fief.pins().scope()).join(name)
    }

    /// Has the next policy fail: its text cannot be kept while the folder is there.
    fn no_next(&self) -> PathBuf {
        let next = 1 - Table::open(self.fief.pins()).unwrap().policy().0;
        let text = self.kept(&format!("policy.{next}.toml"));
        let _ = std::fs::remove_file(&text); // of the policy before this one, which nobody reads any more
        std::fs::create_dir(&text).unwrap();
        text
    }

    /// Names of the interfaces that it stands at.
    fn at(&self) -> Vec<String> {
        let mut names = self.namespace.run(|| self.fief.front().unwrap().interfaces).unwrap();
        names.sort();
        names
    }

    fn index(&self, name: &str) -> u32 {
        self.namespace.run(|| nix::net::if_::if_nametoindex(name).unwrap()).unwrap()
    }

    /// Whether a program steers connections in the policy's network namespace.
    fn is_steered(&self) -> bool {
        let pins = self.fief.pins();
        open::steered(pins).is_some_and(|netns| open::steers(pins, netns.inode))
    }

    fn sysctl(&self, name: &str) -> String {
        sysctl_of(&self.namespace, name)
    }

    /// Has the kernel answered by cookies so long ago that none is good any more.
    fn cookies_ran_out(&self) {
        let file = self.kept("sysctls");
        let noted = std::fs::read_to_string(&file).unwrap();
        let older = noted.lines().map(|line| match line.split_once("answered until = ") {
            Some((_, seconds)) => format!("answered until = {}\n", seconds.parse::<u64>().unwrap() - 129),
            None => format!("{line}\n"),
        });
        std::fs::write(&file, older.collect::<String>()).unwrap();
    }

    fn map(&self, name: &str) -> MapHandle {
        MapHandle::from_pinned_path(self.fief.pins().map(name)).unwrap()
    }

    /// Of the slot in force.
    fn guards(&self) -> BTreeMap<u32, abi::fief_guard> {
        let slot = self.slot();
        let all: Vec<(u32, abi::fief_guard)> = batch::entries(&self.map("guards")).unwrap();
        let ours = all.into_iter().filter(|(key, _)| key / abi::FIEF_MAX_LISTENERS == slot);
        ours.map(|(key, guard)| (key % abi::FIEF_MAX_LISTENERS, guard)).collect()
    }

    /// Intervals of the buckets of the slot in force.
    fn intervals(&self) -> Vec<u64> {
        self.buckets().iter().map(|(_, bucket)| bucket.interval_ns).collect()
    }

    /// Of the slot in force, by number.
    fn buckets(&self) -> Vec<(u32, abi::fief_bucket)> {
        let mut all = batch::entries(&self.bucket_table()).unwrap();
        all.retain(|(number, _)| *number != 0);
        all
    }

    fn bucket_table(&self) -> MapHandle {
        inner::get(&self.map("bucket_tables"), self.slot()).unwrap().expect("a policy is in force")
    }

    fn slot(&self) -> u32 {
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

#[test]
fn stands_at_every_interface_that_is_up_but_the_loopback() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("", "", 10)).unwrap();
    assert_eq!(door.at(), ["a0", "a1"]);
}

#[test]
fn a_policy_that_guards_nothing_stands_nowhere() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("", "", 10)).unwrap();
    door.apply("version = 1\n[container.all]\n").unwrap();
    assert_eq!(door.at(), [""; 0]);
}

#[test]
fn the_next_apply_follows_the_interfaces() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("", "", 10)).unwrap();
    door.namespace.ip("link set b0 up").unwrap();
    door.namespace.ip("link set a1 down").unwrap();
    door.apply(&policy("", "", 10)).unwrap();
    assert_eq!(door.at(), ["a0", "b0"]);
    door.apply(&policy("interfaces = [\"b1\"]", "", 10)).unwrap();
    assert_eq!(door.at(), ["b1"]);
}

#[test]
fn a_port_of_a_bridge_is_left_to_the_bridge() {
    let Some(door) = Door::new() else { return };
    if !require_if("bridge", door.namespace.ip("link add br0 type bridge").is_ok(), false) {
        return;
    }
    door.namespace.ip("link set a0 master br0").unwrap();
    let stands = |front: &str| {
        let notes = door.apply(&policy(front, "", 10)).unwrap().notes;
        (door.at(), notes.iter().filter(|note| note.contains("what comes in at a0 is guarded at br0")).count())
    };
    assert_eq!(stands("").0, ["a0", "a1"], "a bridge that is down takes nothing");
    door.namespace.ip("link set br0 up").unwrap();
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(stands(""), (names(&["a1", "br0"]), 0));
    assert_eq!(stands("interfaces = [\"a0\", \"br0\"]"), (names(&["br0"]), 1));
    assert_eq!(stands("interfaces = [\"a0\"]"), (names(&["a0"]), 0), "nobody else guards it");
}

#[test]
fn an_interface_that_is_not_there_changes_nothing() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("", "", 10)).unwrap();
    let error = door.apply(&policy("interfaces = [\"c0\"]", "", 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("no interface c0"), "{error}");
    assert_eq!((door.at(), door.intervals()), (vec!["a0".to_owned(), "a1".to_owned()], vec![100_000_000]));
}

#[test]
fn a_policy_that_fails_at_last_leaves_the_doors_of_the_one_before() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("interfaces = [\"a0\"]", "", 10)).unwrap();
    let steered = || (open::steered(door.fief.pins()), door.is_steered());
    let before = steered();
    assert!(before.0.is_some() && !before.1, "{before:?}");
    let text = door.no_next();
    let wider = policy("interfaces = [\"a0\", \"a1\"]", "", 10);
    door.apply(&wider).unwrap_err();
    assert_eq!(door.at(), ["a0"]);
    let elsewhere = NetNs::new("elsewhere").unwrap();
    elsewhere.run(|| door.apply_here(&policy("", "", 10))).unwrap().unwrap_err();
    assert_eq!(steered(), before);
    std::fs::remove_dir(text).unwrap();
    door.apply(&wider).unwrap();
    assert_eq!(door.at(), ["a0", "a1"]);
}

/// Each lookup of a listening socket runs the program, the door's own among them.
#[test]
fn connections_are_steered_only_while_something_needs_it() {
    let Some(door) = Door::new() else { return };
    let plain = policy("interfaces = [\"a0\"]", "", 10);
    let apply = |text: &str| {
        door.apply(text).unwrap();
        door.is_steered()
    };
    assert!(!apply(&plain), "there is one socket for all, and nobody asks who passed the door");
    let two = "copies = \"per-class\"\n[[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"some\"";
    let apart = policy("interfaces = [\"a0\"]", two, 10).replace("[listener.web]", "[container.some]\n[listener.web]");
    let elsewhere = policy("", "", 10);
    let nothing = "version = 1\n[container.all]\n";
    for text in [&*apart, &*elsewhere, nothing] {
        assert!(apply(text), "{text}");
        assert!(!apply(&plain), "after {text}");
    }
}

/// Whose server may ask for a filter at any time; managed from another network namespace.
#[test]
fn connections_are_steered_while_a_cgroup_is_managed() {
    let Some(door) = Door::new() else { return };
    if !require(Feature::Cgroup2) {
        return;
    }
    let plain = policy("interfaces = [\"a0\"]", "", 10);
    door.apply(&plain).unwrap();
    assert!(!door.is_steered());
    let cgroup = Cgroup::new("steered").unwrap();
    let options = ManageOptions { container: Some("all".to_owned()), follow: false };
    door.fief.manage(&Target::Cgroup(cgroup.path().to_owned()), &options).unwrap();
    assert!(door.is_steered(), "its server may ask for a filter at any time");
    door.apply(&plain).unwrap();
    assert!(door.is_steered());
    drop(cgroup);
    // the first apply forgets it
    door.apply(&plain).unwrap();
    door.apply(&plain).unwrap();
    assert!(!door.is_steered());
}

#[test]
fn a_policy_that_fails_at_last_leaves_the_sysctls_of_the_one_before() {
    let Some(door) = Door::new() else { return };
    let [own, kernel] = ["own", "kernel"].map(|who| policy(&format!("handshake = \"{who}\""), "admit = true", 10));
    door.apply(&own).unwrap();
    let text = door.no_next();
    door.apply(&kernel).unwrap_err();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
    std::fs::remove_dir(text).unwrap();
    door.apply(&kernel).unwrap();
    let elsewhere = NetNs::new("elsewhere").unwrap();
    let moved = || elsewhere.run(|| door.apply_by(&kernel, ApplyOptions { here: true, ..ApplyOptions::default() }));
    let text = door.no_next();
    moved().unwrap().unwrap_err();
    assert_eq!(answers_of(&door.namespace), ["2", "2"]);
    assert_eq!(answers_of(&elsewhere), ["1", "1"]);
    std::fs::remove_dir(text).unwrap();
    moved().unwrap().unwrap();
    // cookies may still come back to where the door stood
    assert_eq!(answers_of(&door.namespace), ["1", "2"]);
    assert_eq!(answers_of(&elsewhere), ["2", "2"]);
    door.fief.down().unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
    assert_eq!(answers_of(&elsewhere), ["1", "1"]);
}

#[test]
fn an_interface_that_was_made_anew_is_guarded_again() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("", "", 10)).unwrap();
    let index = door.index("a0");
    door.namespace.ip("link del a0").unwrap();
    wait_until(SOON, || ingress::attached(door.fief.pins()).is_empty()).unwrap();
    door.namespace.ip(&format!("link add a0 index {index} type veth peer name a2")).unwrap();
    door.namespace.ip("link set a0 up").unwrap();
    assert_eq!(door.at(), [""; 0]);
    door.apply(&policy("", "", 10)).unwrap();
    assert_eq!(door.at(), ["a0"]);
}

#[test]
fn an_upgrade_swaps_the_program_where_it_stands() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("", "", 10)).unwrap();
    let before = program_id(door.fief.pins(), "ingress_guards").unwrap();
    assert_eq!(interfaces_of(before).len(), 2);
    door.fief.upgrade().unwrap();
    let after = program_id(door.fief.pins(), "ingress_guards").unwrap();
    assert_ne!(before, after);
    assert_eq!((interfaces_of(before).len(), interfaces_of(after).len()), (0, 2));
}

/// The interfaces that a program is attached to.
fn interfaces_of(program: u32) -> Vec<u32> {
    let at = |info: libbpf_rs::query::LinkInfo| match info.info {
        LinkTypeInfo::Tcx(tcx) if info.prog_id == program => Some(tcx.ifindex),
        _ => None,
    };
    LinkInfoIter::default().filter_map(at).collect()
}

#[test]
fn down_leaves_nothing_at_the_interfaces() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("", "", 10)).unwrap();
    let program = program_id(door.fief.pins(), "ingress_guards").unwrap();
    assert_eq!(interfaces_of(program).len(), 2);
    let pins = std::fs::read_dir(door.fief.pins().interfaces()).unwrap();
    let pins = pins.flat_map(|netns| std::fs::read_dir(netns.unwrap().path()).unwrap());
    // as somebody who looks at them; the kernel, too, keeps them for a while
    let held: Vec<_> = pins.map(|pin| libbpf_rs::Link::open(pin.unwrap().path()).unwrap()).collect();
    // with the one at the loopback that notes the machine's own calls
    assert_eq!(held.len(), 3);
    door.namespace.run(|| door.fief.down().unwrap()).unwrap();
    assert!(interfaces_of(program).iter().all(|&index| index == 0), "{:?}", interfaces_of(program));
    assert!(!door.fief.pins().interfaces().exists());
    drop(held);
    wait_until(SOON, || !ProgInfoIter::default().any(|info| info.id == program)).unwrap();
}

#[test]
fn a_killed_apply_leaves_the_old_or_the_new_guards() {
    let Some(door) = Door::new() else { return };
    let (old, new) = (policy("", "", 10), policy("interfaces = [\"a1\", \"b0\"]", "", 20));
    door.apply(&old).unwrap();
    let (mut flipped, mut step) = (0, 0);
    while door.namespace.run(|| kill_before(step, || drop(door.apply_here(&new).unwrap()))).unwrap() {
        let (intervals, guards) = (door.intervals(), door.guards());
        assert!(intervals == [100_000_000] || intervals == [50_000_000], "step {step}: {intervals:?}");
        assert_eq!(guards.len(), 1, "step {step}");
        assert_ne!(guards[&0].flags & abi::FIEF_GUARD_POLICE, 0, "step {step}");
        let at = door.at();
        let wanted = if intervals == [50_000_000] { ["a1", "b0"] } else { ["a0", "a1"] };
        assert!(wanted.iter().all(|name| at.contains(&(*name).to_owned())), "step {step}: {at:?}");
        flipped += usize::from(intervals == [50_000_000]);
        door.apply(&old).unwrap();
        assert_eq!((door.intervals(), door.at()), (vec![100_000_000], vec!["a0".to_owned(), "a1".to_owned()]));
        step += 1;
    }
    assert!(step > 10 && flipped > 0 && flipped < step, "{flipped} of {step}");
}

#[test]
fn the_kernels_cookies_are_switched_on_and_the_sysctls_given_back() {
    let Some(door) = Door::new() else { return };
    door.namespace.sysctl("net.ipv4.tcp_syncookies", "1").unwrap();
    let kernel = policy("handshake = \"kernel\"", "admit = true", 10);
    let applied = door.apply(&kernel).unwrap();
    assert!(applied.notes.iter().any(|note| note.contains("tcp_syncookies = 2")), "{:?}", applied.notes);
    assert_eq!(answers_of(&door.namespace), ["2", "2"]);
    assert_ne!(door.guards()[&0].flags & abi::FIEF_GUARD_KERNEL, 0);
    let own = policy("handshake = \"own\"", "admit = true", 10);
    for _ in 0..2 {
        door.apply(&own).unwrap();
        // cookies may still come back, and their connections must have the offset that the SYN-ACK had
        assert_eq!(answers_of(&door.namespace), ["1", "2"]);
    }
    door.cookies_ran_out();
    door.apply(&own).unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
    door.apply(&kernel).unwrap();
    // again, so that what was ours is not taken for what was there
    door.apply(&kernel).unwrap();
    // from another network namespace
    door.fief.down().unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
}

#[test]
fn cookies_come_back_also_where_the_kernel_answered_by_them_before() {
    let Some(door) = Door::new() else { return };
    door.namespace.sysctl("net.ipv4.tcp_syncookies", "2").unwrap();
    for (who, timestamps) in [("kernel", "2"), ("own", "2"), ("kernel", "2")] {
        door.apply(&policy(&format!("handshake = \"{who}\""), "admit = true", 10)).unwrap();
        assert_eq!(answers_of(&door.namespace), ["2", timestamps], "{who}");
    }
    door.fief.down().unwrap();
    assert_eq!(answers_of(&door.namespace), ["2", "1"]);
}

#[test]
fn who_only_watches_changes_no_sysctl() {
    let Some(door) = Door::new() else { return };
    door.namespace.sysctl("net.ipv4.tcp_syncookies", "1").unwrap();
    for watches in ["admit = true\nmode = \"monitor\"", "admit = true"] {
        let kernel = policy("handshake = \"kernel\"", watches, 10);
        let applied = door.apply(&kernel).unwrap();
        let is_set = !watches.contains("monitor");
        assert_eq!(door.sysctl("tcp_syncookies"), if is_set { "2" } else { "1" }, "{watches}: {:?}", applied.notes);
    }
    let watching = policy("handshake = \"kernel\"", "admit = true\nmode = \"monitor\"", 10);
    door.apply(&watching).unwrap();
    assert_eq!(door.sysctl("tcp_syncookies"), "1");
    door.cookies_ran_out();
    door.apply(&watching).unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "1"]);
}

#[test]
fn a_sysctl_that_somebody_else_has_changed_since_is_left_alone() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("handshake = \"kernel\"", "admit = true", 10)).unwrap();
    door.namespace.sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    door.namespace.run(|| door.fief.down().unwrap()).unwrap();
    assert_eq!(answers_of(&door.namespace), ["1", "0"]);
}

#[test]
fn a_firewall_makes_the_kernel_answer() {
    let Some(door) = Door::new() else { return };
    let text = policy("", "admit = true", 10);
    let own = door.apply(&text).unwrap();
    assert!(own.notes.iter().any(|note| note.contains("the front door answers")), "{:?}", own.notes);
    let nft = |words: &str| {
        let done = door.namespace.command("nft").args(words.split(' ')).status().unwrap();
        assert!(done.success(), "nft {words}");
    };
    nft("add table inet guard");
    nft("add chain inet guard in { type filter hook input priority 0 ; }");
    let own = door.apply(&text).unwrap();
    assert!(own.notes.iter().any(|note| note.contains("the front door answers")), "a chain without rules: {own:?}");
    nft("add rule inet guard in tcp dport 81 drop");
    let kernel = door.apply(&text).unwrap();
    assert!(kernel.notes.iter().any(|note| note.contains("table inet guard has rules")), "{kernel:?}");
    nft("add rule inet guard in ct state invalid drop");
    let kernel = door.apply(&text).unwrap();
    assert!(kernel.notes.iter().any(|note| note.contains("inet guard tracks connections")), "{kernel:?}");
    assert_ne!(door.guards()[&0].flags & abi::FIEF_GUARD_KERNEL, 0);
}

#[test]
fn who_admits_where_the_server_speaks_first_is_told() {
    let Some(door) = Door::new() else { return };
    let told = |address: &str, listener: &str| {
        let text = policy("", listener, 10).replace("0.0.0.0:80", address);
        door.apply(&text).unwrap().notes.into_iter().find(|note| note.contains("the server usually speaks first"))
    };
    assert!(told("0.0.0.0:25", "admit = true").unwrap().contains("at port 25 (SMTP) "));
    let two = told("0.0.0.0:24-25", "admit = true\nclasses = \"shared\"").unwrap();
    assert!(two.contains("at port 24 (LMTP), port 25 (SMTP) "), "{two}");
    assert_eq!(told("0.0.0.0:25", ""), None, "limits alone keep nobody waiting");
    assert_eq!(told("0.0.0.0:26", "admit = true"), None);
}

#[test]
fn what_the_machine_has_changed_since_the_apply_is_said() {
    let Some(door) = Door::new() else { return };
    let text = policy("", "admit = true", 10);
    let said = || door.fief.front().unwrap().notes;
    let apply = || drop(door.apply(&text).unwrap());
    let is_said =
        |what: &str| matches!(&said()[..], [only] if only.contains(what) && only.ends_with("apply the policy again"));
    // nothing is up, here; the machine's own interfaces are none of its business
    for name in ["a0", "a1"] {
        door.namespace.ip(&format!("link set {name} down")).unwrap();
    }
    apply();
    assert_eq!((door.at(), said()), (vec![], vec![]));
    for name in ["a0", "a1"] {
        door.namespace.ip(&format!("link set {name} up")).unwrap();
    }
    apply();
    assert_eq!(said(), [""; 0]);
    door.namespace.ip("link set b0 up").unwrap();
    assert!(is_said("what comes in at b0 is not guarded"), "{:?}", said());
    apply();
    assert_eq!(said(), [""; 0]);
    for words in [
        "add table inet guard",
        "add chain inet guard in { type filter hook input priority 0 ; }",
        "add rule inet guard in ct state invalid drop",
    ] {
        assert!(door.namespace.command("nft").args(words.split(' ')).status().unwrap().success(), "nft {words}");
    }
    assert!(is_said("inet guard tracks connections"), "{:?}", said());
    apply();
    assert_eq!(said(), [""; 0]);
    door.namespace.sysctl("net.ipv4.tcp_syncookies", "1").unwrap();
    assert!(is_said("net.ipv4.tcp_syncookies is 1 now"), "{:?}", said());
    door.apply(&policy("interfaces = [\"a0\"]\nhandshake = \"own\"", "admit = true", 10)).unwrap();
    assert_eq!(said(), [""; 0], "as the policy says");
}

#[test]
fn for_a_listener_of_multipath_tcp_the_kernel_answers_unless_the_policy_says_otherwise() {
    let Some(door) = Door::new() else { return };
    let multipath = door.namespace.run(multipath_listener).unwrap();
    let flags = |handshake: &str| {
        let applied = door.apply(&policy(handshake, "admit = true", 10)).unwrap();
        assert!(applied.notes.iter().any(|note| note.contains("multipath TCP")), "{:?}", applied.notes);
        door.guards()[&0].flags & (abi::FIEF_GUARD_ADMIT | abi::FIEF_GUARD_KERNEL)
    };
    assert_eq!(flags("handshake = \"own\""), abi::FIEF_GUARD_ADMIT);
    assert_eq!(flags(""), abi::FIEF_GUARD_ADMIT | abi::FIEF_GUARD_KERNEL);
    drop(multipath);
}

fn multipath_listener() -> OwnedFd {
    use nix::sys::socket::{Backlog, SockaddrIn, bind, listen};
    let socket = fief_tests_netns::multipath_socket(libc::AF_INET).unwrap();
    // a child that another test has just forked may still hold the address
    wait_until(SOON, || bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, 80)).is_ok()).unwrap();
    listen(&socket, Backlog::new(16).unwrap()).unwrap();
    socket
}

#[test]
fn without_syncookies_nothing_is_admitted_and_the_remedy_is_said() {
    let Some(door) = Door::new() else { return };
    door.namespace.sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
    // while the kernel answers it is 2, which the next policy does not leave
    for before in ["own", "kernel"] {
        door.apply(&policy(&format!("handshake = \"{before}\""), "admit = true", 10)).unwrap();
        let applied = door.apply(&policy("handshake = \"own\"", "admit = true", 10)).unwrap();
        assert!(applied.notes.iter().any(|note| note.contains("sysctl -w net.ipv4.tcp_syncookies=1")), "{applied:?}");
        assert_eq!(door.guards()[&0].flags & abi::FIEF_GUARD_ADMIT, 0, "{before}");
        assert_ne!(door.guards()[&0].flags & abi::FIEF_GUARD_POLICE, 0, "rates hold all the same");
    }
}

#[test]
fn without_timestamps_the_weaker_cookie_and_the_remedy_are_said() {
    let Some(door) = Door::new() else { return };
    let text = policy("handshake = \"own\"", "admit = true", 10);
    let is_said =
        |applied: &Applied| applied.notes.iter().any(|note| note.contains("sysctl -w net.ipv4.tcp_timestamps=1"));
    assert!(!is_said(&door.apply(&text).unwrap()));
    door.namespace.sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
    assert!(is_said(&door.apply(&text).unwrap()));
}

#[test]
fn a_rule_that_stays_keeps_how_full_its_bucket_is() {
    let Some(door) = Door::new() else { return };
    door.apply(&policy("", "", 10)).unwrap();
    let mut filled = door.buckets();
    filled.iter_mut().for_each(|(_, bucket)| bucket.arrival_ns = 77);
    batch::update(&door.bucket_table(), &filled).unwrap();
    let arrivals = || door.buckets().iter().map(|(_, bucket)| bucket.arrival_ns).collect::<Vec<_>>();
    let listener = "[[listener.web.client]]\nfrom = [\"10.1.0.0/16\"]\ncontainer = \"all\"\nsyn = { rate = 5 }\n";
    door.apply(&policy("", listener, 10)).unwrap();
    let mut both = arrivals();
    both.sort_unstable();
    assert_eq!(both, [0, 77], "the new rule's bucket is full, the old one's as it was");
    door.apply(&policy("", "", 11)).unwrap();
    assert_eq!(arrivals(), [0], "another rate is another rule");
}

#[test]
fn a_range_of_ports_is_one_listener() {
    let Some(door) = Door::new() else { return };
    let text = policy("", "classes = \"shared\"", 10).replace("0.0.0.0:80", "0.0.0.0:8000-8003");
    door.apply(&text).unwrap();
    let listeners: Vec<(abi::fief_listener_key, abi::fief_listener)> = batch::entries(&door.map("listeners")).unwrap();
    let slot = door.slot();
    let mut ports: Vec<_> = listeners
        .iter()
        .filter(|(key, _)| u32::from(key.slot) == slot)
        .map(|(key, listener)| (key.port, listener.index))
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [(8000, 0), (8001, 0), (8002, 0), (8003, 0)]);
    assert_eq!(door.guards().len(), 1);
}
