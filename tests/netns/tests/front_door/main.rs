// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the front door stands and what is written into it: at which interfaces, for how long, by whose cookies, and
//! never half of a policy.

mod answers;
mod door;
mod interfaces;

use fief_bpf::{abi, batch};
use fief_control::{ManageOptions, Target};
use fief_testkit::{Cgroup, Feature, require};
use fief_tests_netns::kill_before;

use crate::door::{Door, policy};

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
