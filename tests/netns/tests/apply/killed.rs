// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A command that is killed before any of its system calls leaves the old policy or the new one in force, and the next command does
//! what it left undone.

use std::process::Command;

use fief::Container;
use fief_control::{ErrorKind, Fief, ManageOptions, Target};
use fief_testkit::Cgroup;
use fief_tests_netns::{fief_binary, fork, in_unit, kill_before, kill_when, steps};

use crate::bare::{Bare, NEW, OLD, parse, weights};
use crate::run::run_of;

#[test]
fn a_killed_apply_leaves_the_old_or_the_new_policy() {
    let bare = Bare::new();
    bare.apply(OLD).unwrap();
    let mut flipped = 0;
    let mut step = 0;
    while kill_before(step, || drop(bare.apply(NEW).unwrap())) {
        let now = bare.in_force();
        assert!(now == weights(OLD) || now == weights(NEW), "step {step}: {now:?}");
        let text = bare.fief.policy_text().unwrap().unwrap();
        assert_eq!(parse(&text).containers.len(), now.len());
        assert_eq!(weights(&text), now, "step {step}: the text is another policy's");
        flipped += usize::from(now == weights(NEW));
        // whatever is left, the next one sweeps
        bare.apply(OLD).unwrap();
        assert_eq!(bare.paths(), ["gone", "gone/below", "kept"], "step {step}");
        step += 1;
    }
    assert_eq!(bare.in_force(), weights(NEW));
    assert!(step > 8 && flipped > 0 && flipped < step, "{flipped} of {step}");
    bare.down();
}

#[test]
fn a_killed_first_apply_is_swept() {
    let counted = Bare::new();
    let all = steps(|| drop(counted.apply(NEW).unwrap()));
    counted.down();
    assert!(all > 50, "{all}");
    // a few on the way, and each of the last, where it comes into force
    let chosen = (0..8).map(|n| n * all / 8).chain(all.saturating_sub(8)..all);
    for step in chosen {
        let bare = Bare::new();
        assert!(kill_before(step, || drop(bare.apply(NEW).unwrap())), "step {step} of {all}");
        if bare.fief.installed() {
            let now = bare.in_force();
            assert!(now.is_empty() || now == weights(NEW), "step {step}: {now:?}");
        }
        if step % 2 == 0 {
            bare.apply(OLD).unwrap();
            assert_eq!(bare.paths(), ["gone", "gone/below", "kept"], "step {step}");
        }
        bare.down();
    }
}

#[test]
fn what_is_left_of_a_killed_first_apply_is_no_policy_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    std::fs::write(&file, NEW).unwrap();
    let killed = || {
        let bare = Bare::new();
        assert!(kill_when(|| drop(bare.apply(NEW).unwrap()), || bare.fief.installed()));
        assert!(bare.fief.installed() && !bare.fief.in_force());
        bare
    };
    let bare = killed();
    let status = bare.fief.status().unwrap();
    let told = status.problems.iter().any(|problem| problem.starts_with("no policy has come into force"));
    assert!(told && !status.in_force, "{status:?}");
    assert_eq!(bare.fief.moment().unwrap_err().kind(), ErrorKind::NotFound, "the agent tells that nothing is");
    // as at the start of the machine
    let mut apply = Command::new(fief_binary());
    apply.args(["apply", "--unless-in-force"]).arg(&file).env("FIEF_SCOPE", bare.fief.pins().scope());
    assert!(apply.output().unwrap().status.success());
    assert_eq!(bare.in_force(), weights(NEW));
    assert!(bare.fief.in_force() && bare.fief.status().unwrap().in_force && bare.fief.moment().is_ok());
    bare.down();

    let bare = killed();
    assert_eq!(run_of(&bare, &file, &["true"]).status().unwrap().code(), Some(0));
    bare.assert_nothing_is_left();
}

#[test]
fn a_killed_down_is_finished_by_the_next() {
    let mut step = 0;
    loop {
        let bare = Bare::new();
        bare.apply(NEW).unwrap();
        let down = || {
            bare.fief.down().unwrap();
        };
        if !kill_before(step, down) {
            bare.assert_nothing_is_left();
            break;
        }
        if step % 3 == 0 {
            bare.apply(OLD).unwrap();
            assert_eq!(bare.in_force(), weights(OLD), "step {step}");
        }
        bare.down();
        // the first steps one by one, the removals of pins in strides
        step += if step < 6 { 1 } else { 17 };
    }
    assert!(step > 20);
}

#[test]
fn a_killed_manage_is_done_by_the_next() {
    let name = "killed::a_killed_manage_is_done_by_the_next";
    in_unit(name, || {
        let fief = Fief::from_env().unwrap();
        let mut step = 0;
        loop {
            let cgroup = Cgroup::new("manage").unwrap();
            let target = Target::Cgroup(cgroup.path().to_owned());
            let options = ManageOptions { container: Some("unit".into()), follow: false };
            let killed = kill_before(step, || drop(fief.manage(&target, &options).unwrap()));
            if killed {
                fief.manage(&target, &options).unwrap();
            }
            // a hook that is attached twice would refuse what it made itself
            let child = fork(|| {
                cgroup.add(std::process::id()).unwrap();
                let container = Container::create().unwrap();
                assert_eq!(container.info().unwrap().handles, 1);
                container.set_weight(7).unwrap();
            });
            child.finish();
            if !killed {
                break;
            }
            step += 1;
        }
        assert!(step > 20, "{step}");
    });
}
