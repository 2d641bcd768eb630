// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy comes into force as a whole or not at all, whoever is killed and whoever else applies one; what it leaves
//! out lives on while it is held; and in the end nothing is left.

mod bare;
mod down;
mod killed;
mod run;

use std::path::Path;
use std::time::Duration;

use fief::{Container, State};
use fief_bpf::table::Table;
use fief_control::{ApplyOptions, ErrorKind, Fief, LetGo, Reference, SchedulerView};
use fief_tests_netns::{Installation, fork, in_unit, spin};

use crate::bare::{Bare, NEW, OLD, parse, weights};

#[test]
fn applies_at_once_come_one_after_the_other() {
    let bare = Bare::new();
    bare.apply(OLD).unwrap();
    let appliers: Vec<_> = (0..4)
        .map(|n| {
            let bare = &bare;
            fork(move || {
                for _ in 0..6 {
                    bare.apply(if n % 2 == 0 { OLD } else { NEW }).unwrap();
                }
            })
        })
        .collect();
    appliers.into_iter().for_each(fief_tests_netns::Child::finish);
    let now = bare.in_force();
    assert!(now == weights(OLD) || now == weights(NEW), "{now:?}");
    assert_eq!(bare.paths().len(), 3, "{:?}", bare.paths());
    bare.down();
}

#[test]
fn a_policy_that_does_not_fit_changes_nothing() {
    let mut bare = Bare::new();
    bare.containers = 64;
    bare.apply(OLD).unwrap();
    let many: String = (0..70).map(|n| format!("[container.c{n}]\n")).collect();
    let text = format!("version = 1\n[container.kept]\ncpu.weight = 300\n{many}");
    let refused = bare.apply(&text).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    assert_eq!(bare.in_force(), weights(OLD));
    assert_eq!(bare.paths(), ["gone", "gone/below", "kept"]);
    bare.fief.down().unwrap();
    // nor does a first one
    let refused = bare.apply(&text).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    assert!(!bare.fief.installed());
}

#[test]
fn what_fails_once_a_policy_is_in_force_is_told_and_stops_nothing() {
    let bare = Bare::new();
    bare.apply(OLD).unwrap();
    // a folder in place of the note, which is removed as a file
    let note = Path::new("/run/fief").join(bare.fief.pins().scope()).join("sysctls");
    std::fs::create_dir(&note).unwrap();
    let applied = bare.apply("version = 1\nschedule = \"cgroup\"\n[container.kept]\ncpu.limit = \"10%\"\n").unwrap();
    let told = applied.notes.iter().any(|told| told.starts_with("the policy is in force, but sysctls"));
    assert!(told, "{:?}", applied.notes);
    assert!(matches!(bare.fief.snapshot().unwrap().scheduler, SchedulerView::Groups(_)), "{:?}", applied.notes);
    assert_eq!(bare.paths(), ["kept"], "what comes behind it is done");
    std::fs::remove_dir(&note).unwrap();
    bare.down();
}

#[test]
fn a_kept_container_keeps_its_usage() {
    in_unit("a_kept_container_keeps_its_usage", || {
        spin(Duration::from_millis(30));
        let fief = Fief::from_env().unwrap();
        let of_unit = || {
            let snapshot = fief.snapshot().unwrap();
            let unit = snapshot.containers.into_iter().find(|c| c.path == "unit").unwrap();
            (unit.id, unit.generation, unit.usage.cpu_ns())
        };
        let before = of_unit();
        assert!(before.2 >= 20_000_000);
        let text = "version = 1\n[container.unit]\ncpu.weight = 333\n[container.more]\n";
        let applied = fief.apply(&parse(text), text, &ApplyOptions::default()).unwrap();
        assert_eq!((applied.kept, applied.made), (vec!["unit".to_owned()], vec!["more".to_owned()]));
        let after = of_unit();
        assert_eq!((before.0, before.1), (after.0, after.1));
        assert!(after.2 >= before.2);
    });
}

#[test]
fn an_application_has_no_path_of_the_policy() {
    in_unit("an_application_has_no_path_of_the_policy", || {
        let namesake = Container::create().unwrap();
        namesake.set_name("vip").unwrap();
        let below = namesake.child().unwrap();
        let fief = Fief::from_env().unwrap();
        let text = "version = 1\n[container.unit]\n[container.\"unit/vip\"]\n";
        fief.apply(&parse(text), text, &ApplyOptions::default()).unwrap();
        let snapshot = fief.snapshot().unwrap();
        let own = namesake.info().unwrap().id;
        let at = |path: &str| snapshot.containers.iter().filter(|c| c.path == path).map(|c| c.id).collect::<Vec<_>>();
        assert_eq!(at(&format!("unit/#{own}")), [own]);
        assert!(at("unit/vip").len() == 1 && at("unit/vip") > vec![own], "{:?}", at("unit/vip"));
        // nor where it is the only one that is asked for
        let asked = |id: u32| {
            let generation = snapshot.containers.iter().find(|c| c.id == id).unwrap().generation;
            let (view, parent) = fief.container(Reference { id, generation }).unwrap().unwrap();
            (view.path, parent.unwrap())
        };
        let below = below.info().unwrap().id;
        assert_eq!(asked(own), (format!("unit/#{own}"), "unit".to_owned()));
        assert_eq!(asked(below), (format!("unit/#{own}/#{below}"), format!("unit/#{own}")));
        assert_eq!(asked(at("unit/vip")[0]), ("unit/vip".to_owned(), "unit".to_owned()));
    });
}

#[test]
fn what_applications_hold_lives_on_below_the_nearest_container_that_stays() {
    in_unit("what_applications_hold_lives_on_below_the_nearest_container_that_stays", || {
        // listeners are steered in the network namespace that applies them: one of our own
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let held = Container::create().unwrap();
        held.set_name("held").unwrap();
        {
            let _bound = held.bind().unwrap();
            spin(Duration::from_millis(20));
        }
        let used = held.usage().unwrap().cpu_ns();
        // a stranger's, although its listener takes every client
        let text = "version = 1\n[container.shop]\n[listener.web]\naddress = \"0.0.0.0:80\"\n\
                    [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\n";
        let fief = Fief::from_env().unwrap();
        let here = ApplyOptions { here: true, let_go: LetGo::All, ..ApplyOptions::default() };
        let applied = fief.apply(&parse(text), text, &here).unwrap();
        assert_eq!(applied.released, ["unit"]);
        let info = held.info().unwrap();
        assert_eq!((info.state, info.depth), (State::Alive, 2));
        assert!(held.usage().unwrap().cpu_ns() >= used);
        let snapshot = fief.snapshot().unwrap();
        assert!(snapshot.containers.iter().any(|c| c.path == "unit/held" && !c.policy));
        // it can go on
        held.child().unwrap().set_weight(3).unwrap();
        let again = "version = 1\n[container.unit]\n";
        fief.apply(&parse(again), again, &ApplyOptions::default()).unwrap();
        assert_eq!(held.info().unwrap().state, State::Alive);
    });
}

#[test]
fn two_installations_stand_side_by_side() {
    let one = Installation::new(OLD, "kept");
    let two = Bare::new();
    two.apply(NEW).unwrap();
    assert_eq!(Table::open(two.fief.pins()).unwrap().size(), two.containers);
    two.down();
    assert!(one.fief().snapshot().unwrap().containers.iter().any(|c| c.path == "gone/below"));
}

#[test]
fn a_policy_that_divides_the_cpu_tells_who_holds_that() {
    if Path::new("/sys/kernel/sched_ext").exists() {
        return; // the guests of tests/vm try the scheduler itself
    }
    let bare = Bare::new();
    let notes = |text: &str| bare.fief.apply(&parse(text), text, &ApplyOptions::default()).unwrap().notes;
    let told = |notes: Vec<String>| notes.iter().any(|note| note.contains("(this kernel has no sched_ext)"));
    let groups = || matches!(bare.fief.snapshot().unwrap().scheduler, SchedulerView::Groups(_));
    assert!(told(notes("version = 1\nschedule = \"auto\"\n[container.site]\ncpu.limit = \"10%\"\n")));
    assert!(groups());
    // that of a class orders requests alone
    let class = "version = 1\nschedule = \"auto\"\n[container.site]\ncpu.priority = 0\n[listener.web]\n\
                 address = \"127.0.0.1:7\"\n[[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"site\"\n";
    assert!(!told(notes(class)));
    assert_eq!(bare.fief.snapshot().unwrap().scheduler, SchedulerView::Off);
    let said = bare.fief.status().unwrap().unenforced;
    assert!(said.len() == 1 && said[0].starts_with("cpu.priority of site among threads ("), "{said:?}");
    assert!(told(notes("version = 1\nschedule = \"auto\"\n[container.site]\ncpu.priority = 0\n")));
    assert!(groups());
    assert!(!told(notes("version = 1\nschedule = \"cgroup\"\n[container.site]\ncpu.limit = \"10%\"\n")));
    assert!(groups());
    assert!(!told(notes("version = 1\n[container.site]\ncpu.limit = \"10%\"\n")));
    assert_eq!(bare.fief.snapshot().unwrap().scheduler, SchedulerView::Off);
    bare.down();
}
