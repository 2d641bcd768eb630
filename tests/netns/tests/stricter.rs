// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that no rule was asked about, once rules ask: under a later policy, or at another level.

#[allow(dead_code)]
#[path = "upgrades/rig.rs"]
mod rig;

use std::io::Write;
use std::net::TcpStream;

use fief_bpf::abi;
use fief_testkit::{Feature, Process, read_until, require, wait_until};
use fief_tests_netns::front::{Door, Front, Verdicts, ready};
use fief_tests_netns::{SOON, one_installation};

use rig::{FRAME, PUBLIC, RULE, Rig, SECRET, SWITCHED, echoes, policy, upgrade};

/// A server before which `text` stands.
fn serving(door: Door, text: &str, managed: bool) -> Rig {
    let front = Front::new(door, text);
    let mut command = if managed { front.server_command("python3") } else { front.topology.server.command("python3") };
    command.args(["-c", rig::SCRIPTED]);
    Rig { front, servers: Vec::<Process>::new() }.with(command)
}

/// What becomes of a refused request on this connection: whether it was served, and the verdicts.
fn asks(rig: &Rig, stream: &mut TcpStream) -> (bool, Verdicts) {
    let before = rig.front.verdicts();
    let _ = stream.write_all(SECRET.as_bytes());
    let served = read_until(stream, "served /secret").contains("served");
    wait_until(SOON, || served || rig.since(&before).requests() > 0).unwrap();
    (served, rig.since(&before))
}

#[test]
fn a_connection_from_before_the_rules_is_cut_off_under_them() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for managed in [true, false] {
            let rig = serving(door, &policy("").replace(RULE, ""), managed);
            let mut stream = rig.asked(PUBLIC.as_bytes(), "served /public/1");
            rig.front.apply(&policy("")).unwrap();
            let (served, new) = asks(&rig, &mut stream);
            let refused = rig.front.is_counted(new.count(abi::FIEF_REFUSED_OTHER), 1);
            assert!(!served && refused, "{door:?}, {managed}, {served}: {new:?}");
            // On trial and without later requests connections are made by other ways.
            for listener in ["mode = \"monitor\"", "later-requests = false"] {
                rig.front.apply(&policy(listener)).unwrap();
                let mut stream = rig.asked(PUBLIC.as_bytes(), "served /public/1");
                rig.front.apply(&policy("")).unwrap();
                let (served, new) = asks(&rig, &mut stream);
                assert!(!served, "{door:?}, {managed}, {listener}: {new:?}");
            }
        }
    }
}

#[test]
fn what_passed_for_good_does_so_until_the_rules_change() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for managed in [true, false] {
            let rig = Rig::scripted(door, "", managed);
            let mut stream = rig.asked(&upgrade("/public/101"), SWITCHED);
            assert!(echoes(&mut stream, FRAME), "{door:?}, {managed}");
            rig.front.apply(&policy("")).unwrap();
            assert!(echoes(&mut stream, FRAME), "{door:?}, {managed}: the same policy again");
            rig.front.apply(&(policy("") + &RULE.replace("secret", "other"))).unwrap();
            let before = rig.front.verdicts();
            assert!(!echoes(&mut stream, FRAME), "{door:?}, {managed}: other rules");
            rig.has_one(&before, abi::FIEF_REFUSED_OTHER, &format!("{managed}"));
        }
    }
}

/// Below its level admission holds nobody, and requests are ruled as they pass.
#[test]
fn requests_below_the_level_of_admission_are_ruled_as_they_pass() {
    if !(ready() && require(Feature::Python)) {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for managed in [true, false] {
            let rig = Rig::scripted(door, "admit-from = \"overloaded\"", managed);
            for size in [1 << 16, 20, 1] {
                for (request, serves) in [(PUBLIC, true), (SECRET, false)] {
                    let mut stream = rig.dial().expect("a connection");
                    for piece in request.as_bytes().chunks(size) {
                        let _ = stream.write_all(piece);
                    }
                    let words = read_until(&mut stream, "served /");
                    assert_eq!(words.contains("served /"), serves, "{door:?}, {managed}, {size}: {words}");
                }
                let mut stream = rig.asked(PUBLIC.as_bytes(), "served /public/1");
                let (served, new) = asks(&rig, &mut stream);
                let refused = rig.front.is_counted(new.count(abi::FIEF_REQUEST_REFUSED), 1);
                assert!(!served && refused, "{door:?}, {managed}, {served}: {new:?}");
            }
        }
    }
}
