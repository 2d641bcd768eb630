// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interfaces that the front door stands at: after an apply, also one that fails, after an upgrade, and after `fief down`.

use fief_bpf::upgrade::program_id;
use fief_bpf::{ingress, open};
use fief_control::ErrorKind;
use fief_testkit::{NetNs, require_if, wait_until};
use fief_tests_netns::SOON;
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter};

use crate::door::{Door, policy};

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
    stands_at_two(before);
    door.fief.upgrade().unwrap();
    let after = program_id(door.fief.pins(), "ingress_guards").unwrap();
    assert_ne!(before, after);
    stands_at_two(after);
    assert_eq!(interfaces_of(before).len(), 0);
}

/// A link that somebody else is making ends the walk over all of them, so that it is made again.
#[track_caller]
fn stands_at_two(program: u32) {
    wait_until(SOON, || interfaces_of(program).len() == 2).unwrap_or_else(|_| panic!("{:?}", interfaces_of(program)));
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
    stands_at_two(program);
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
