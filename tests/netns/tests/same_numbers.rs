// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same number in another network namespace: its interfaces have numbers of their own, and what is in force in one namespace is none
//! of the other's.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use fief_bpf::ingress::{self, Part, Stand};
use fief_bpf::table::Table;
use fief_bpf::upgrade::program_id;
use fief_control::{Applied, ApplyOptions, Error, Fief};
use fief_testkit::{Feature, NetNs, require, wait_until};
use fief_tests_netns::{Away, SOON, kill_before, netns_number, numbered_again, steps};
use libbpf_rs::query::{LinkInfo, LinkInfoIter, LinkTypeInfo};

/// A policy of one container at one interface. `listener` is more of its listener.
fn policy(container: &str, listener: &str) -> String {
    format!(
        "version = 1\n[front]\ninterfaces = [\"a0\"]\n[container.{container}]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{listener}\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"{container}\"\n"
    )
}

/// With a lane for the container.
fn laned(container: &str) -> String {
    policy(container, "lrp.when = \"always\"")
}

/// An installation, and two network namespaces that both have an interface a0, with the same number.
struct Places {
    fief: Fief,
    here: NetNs,
    there: NetNs,
}

impl Places {
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let needed = [Feature::Root, Feature::NetNs, Feature::Bpf, Feature::ThreadedNapi];
        if !needed.into_iter().all(require) {
            return None;
        }
        let scope = format!("ff-{}-same{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let [here, there] = ["here", "there"].map(|role| NetNs::new(role).unwrap());
        [&here, &there].into_iter().for_each(connect);
        // the ends of lanes that are made here and there have some numbers in common, and each lane has others
        there.ip("link add m0 index 50 type veth peer name m1").unwrap();
        assert_eq!(index(&here, "a0"), index(&there, "a0"));
        Some(Self { fief: Fief::with_scope(&scope), here, there })
    }

    fn apply(&self, namespace: &NetNs, text: &str) -> Result<Applied, Error> {
        namespace.run(|| self.apply_here(text)).unwrap()
    }

    /// In the caller's namespace, to which the front door moves.
    fn apply_here(&self, text: &str) -> Result<Applied, Error> {
        let parsed = fief_policy::parse(text, "test.toml").unwrap_or_else(|e| panic!("{e}"));
        let options = ApplyOptions { containers: Some(128), here: true, ..ApplyOptions::default() };
        self.fief.apply(&parsed, text, &options)
    }

    /// The lanes with their threads, what is attached for them, all interfaces, and the note of where they are.
    fn seen(&self) -> Vec<String> {
        let mut all: Vec<_> = self.fief.lanes().unwrap().iter().map(|lane| format!("{lane:?}")).collect();
        all.extend(self.pinned(""));
        all.extend([&self.here, &self.there].map(|namespace| format!("{:?}", interfaces(namespace))));
        let note = Path::new("/run/fief").join(self.fief.pins().scope()).join("lanes");
        all.push(fs::read_to_string(note).unwrap_or_default());
        all
    }

    /// The pins of a program of the lanes, below the numbers of network namespaces.
    fn pinned(&self, program: &str) -> Vec<String> {
        let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        let lanes = self.fief.pins().lanes();
        let pins = inside(&lanes).flat_map(|netns| inside(&netns));
        let mut pins: Vec<_> = pins.map(|pin| pin.strip_prefix(&lanes).unwrap().display().to_string()).collect();
        pins.retain(|pin| pin.contains(program));
        pins.sort();
        pins
    }

    fn stands(&self) -> Vec<Stand> {
        ingress::standing(self.fief.pins())
    }

    fn slot(&self) -> u32 {
        Table::open(self.fief.pins()).unwrap().policy().0
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if let Err(error) = self.here.run(|| self.fief.down()).unwrap() {
            eprintln!("cannot take the test's installation down: {error}");
        }
    }
}

fn index(namespace: &NetNs, name: &str) -> u32 {
    namespace.run(|| nix::net::if_::if_nametoindex(name).unwrap()).unwrap()
}

fn interfaces(namespace: &NetNs) -> Vec<String> {
    let text = namespace.ip("-oneline link").unwrap();
    text.lines().filter_map(|line| line.split(": ").nth(1)).map(str::to_owned).collect()
}

fn has_lanes(namespace: &NetNs) -> bool {
    interfaces(namespace).iter().any(|name| name.starts_with("fief-"))
}

#[test]
fn a_policy_that_fails_to_move_leaves_the_lanes_in_force() {
    let Some(places) = Places::new() else { return };
    places.apply(&places.here, &laned("shop")).unwrap();
    let (before, away) = (places.seen(), Away::flip(&places.fief));
    for container in ["shop", "other"] {
        places.apply(&places.there, &laned(container)).unwrap_err();
        // a lane's thread holds its container until it has ended
        let _ = wait_until(SOON, || places.seen() == before);
        assert_eq!(places.seen(), before, "after a lane of {container}");
    }
    drop(away);
    places.apply(&places.there, &laned("shop")).unwrap();
    assert!(has_lanes(&places.there) && !has_lanes(&places.here));
    assert_eq!(places.fief.lanes().unwrap().len(), 1);
}

#[test]
fn a_policy_that_moves_leaves_no_sorter_where_it_was() {
    let Some(places) = Places::new() else { return };
    let number = |pin: &str| pin.rsplit_once('-').unwrap().1.to_owned();
    places.apply(&places.here, &laned("shop")).unwrap();
    let before = places.pinned("lrp_sorts");
    places.apply(&places.there, &laned("shop")).unwrap();
    let after = places.pinned("lrp_sorts");
    assert_eq!((before.len(), after.len()), (1, 1), "{before:?} {after:?}");
    assert!(before != after && number(&before[0]) == number(&after[0]), "{before:?} {after:?}");
}

/// Before the policy is there: the lanes in force stay as they are, with their threads. After it: those of the next command's policy are
/// made. Either way nothing is left elsewhere.
#[test]
fn a_killed_move_leaves_the_lanes_in_force_to_the_next_command() {
    let Some(places) = Places::new() else { return };
    let text = laned("shop");
    let moves = || places.there.run(|| steps(|| drop(places.apply_here(&text).unwrap()))).unwrap();
    places.apply(&places.here, &text).unwrap();
    let all = moves();
    places.apply(&places.here, &text).unwrap();
    let mut laned_before_the_flip = 0;
    for step in (all.saturating_sub(80)..all).step_by(5) {
        let (before, slot) = (places.seen(), places.slot());
        let killed = places.there.run(|| kill_before(step, || drop(places.apply_here(&text).unwrap()))).unwrap();
        assert!(killed, "{step} of {all}");
        let has_flipped = places.slot() != slot;
        laned_before_the_flip += usize::from(!has_flipped && has_lanes(&places.there));
        places.apply(&places.here, &text).unwrap();
        assert!(!has_lanes(&places.there), "{step} of {all}");
        if has_flipped {
            assert_eq!(places.fief.lanes().unwrap().len(), 1, "{step} of {all}");
        } else {
            assert_eq!(places.seen(), before, "{step} of {all}");
        }
    }
    assert!(laned_before_the_flip > 0, "no lane was made twice: {all} steps");
}

/// Gives a namespace the interface that the policies guard.
fn connect(namespace: &NetNs) {
    for words in ["add a0 type veth peer name a1", "set a0 up", "set a1 up"] {
        namespace.ip(&format!("link {words}")).unwrap();
    }
}

#[test]
fn who_has_the_number_of_the_policys_namespace_which_is_gone_is_not_taken_for_its_server() {
    let Some(places) = Places::new() else { return };
    let again = numbered_again(|gone| {
        connect(gone);
        places.apply(gone, &policy("shop", "")).unwrap();
    });
    let _listener = again.run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
    let status = places.here.run(|| places.fief.status().unwrap()).unwrap();
    assert!(status.listeners.iter().all(|listener| listener.servers.is_empty()), "{:?}", status.listeners);
}

/// The next one's clock has the same number.
#[test]
fn the_queue_of_a_namespace_that_is_gone_is_not_kept() {
    let Some(places) = Places::new() else { return };
    let text = policy("shop", "queue = { in-service = 1 }");
    let queue = || fief_bpf::queue::all(places.fief.pins()).unwrap().pop().expect("a queue").1;
    let gone = NetNs::new("gone").unwrap();
    connect(&gone);
    places.apply(&gone, &text).unwrap();
    let before = queue();
    drop(gone);
    wait_until(SOON, || places.stands().is_empty()).unwrap();
    places.apply(&places.here, &text).unwrap();
    let after = queue();
    assert_eq!((after.clock, after.netns.inode), (before.clock, netns_number(&places.here)));
}

#[test]
fn a_number_that_no_interface_has_any_more_stops_no_policy() {
    let Some(places) = Places::new() else { return };
    places.apply(&places.here, &policy("shop", "")).unwrap();
    let (before, netns) = (places.stands(), netns_number(&places.here));
    let gone = Stand { netns, interface: 9999, part: Part::Guards };
    places.here.run(|| ingress::attach(places.fief.pins(), &[gone])).unwrap().unwrap();
    assert_eq!(places.stands(), before);
}

#[test]
fn who_has_the_number_of_an_interface_that_was_moved_away_is_guarded() {
    let Some(places) = Places::new() else { return };
    let text = policy("shop", "") + "syn = { rate = 10, burst = 1 }\n";
    places.apply(&places.here, &text).unwrap();
    let program = program_id(places.fief.pins(), "ingress_guards").unwrap();
    let link = |info: LinkInfo| match info.info {
        LinkTypeInfo::Tcx(tcx) if info.prog_id == program && tcx.ifindex != 0 => Some(info.id),
        _ => None,
    };
    // a link that somebody else is making ends the walk over all of them, so that it is made again
    let links = || LinkInfoIter::default().filter_map(link).collect::<Vec<_>>();
    let mut before = Vec::new();
    wait_until(SOON, || {
        before = links();
        before.len() == 1
    })
    .unwrap_or_else(|e| panic!("{e}: {:?}", links()));
    let (number, elsewhere) = (index(&places.here, "a0"), NetNs::new("elsewhere").unwrap());
    places.here.ip(&format!("link set a0 netns {}", elsewhere.name())).unwrap();
    assert_eq!(index(&elsewhere, "a0"), number);
    wait_until(SOON, || links() == before).unwrap_or_else(|_| panic!("its program goes with it: {:?}", links()));
    places.here.ip(&format!("link add a0 index {number} type veth peer name a2")).unwrap();
    places.here.ip("link set a0 up").unwrap();
    places.apply(&places.here, &text).unwrap();
    wait_until(SOON, || links().len() == 1 && links() != before).unwrap_or_else(|e| panic!("{e}: {:?}", links()));
}
