// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU time is charged while somebody needs it: when the programs that charge are attached, and what a pause leaves in the accounts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fief_bpf::upgrade::pretend_another_build;
use fief_bpf::{abi, charging, watch};
use fief_control::{Applied, ContainerView, Fief, Snapshot};
use fief_testkit::{Cgroup, Family, Feature, PlainServer, Process, Topology, require, wait_until};
use fief_tests_netns::front::{GUARDED, anywhere, plain};
use fief_tests_netns::{
    Installation, PLAIN_POLICY, SOON, Setup, connect_with_bytes, is_about, kill_before, kill_when, ms, role, spin,
    steady_snapshot, steps, watch_steps,
};
use nix::time::{ClockId, clock_gettime};

/// Every switch, new thread and interrupt of the machine passes these.
const CHARGE: [&str; 8] = [
    "switch_charges",
    "newtask_inherits",
    "task_frees",
    "attach_adopts",
    "softirq_enters",
    "softirq_leaves",
    "irq_enters",
    "irq_leaves",
];

/// Whether they are attached: all of them, or none. Readers are told the same.
#[track_caller]
fn charges(fief: &Fief) -> bool {
    let attached = CHARGE.map(|program| fief.pins().links().join(program).exists());
    assert!(attached.iter().all(|one| *one == attached[0]), "{attached:?}");
    assert_eq!(fief.snapshot().unwrap().charged, attached[0]);
    attached[0]
}

/// A cgroup of nobody's any more, and a policy in force that needs nothing.
fn let_go(installation: &Installation, cgroup: &Path) -> Applied {
    wait_until(SOON, || fs::remove_dir(cgroup).is_ok()).unwrap();
    installation.apply(PLAIN_POLICY).unwrap()
}

/// No thread's end was missed.
#[track_caller]
fn loses_nothing(applied: &Applied) {
    assert!(!applied.notes.iter().any(|note| note.contains("were lost")), "{:?}", applied.notes);
}

fn sleeper() -> Process {
    let mut command = Command::new("sleep");
    command.arg("1000");
    Process::start(command).unwrap()
}

/// Nothing is managed, and nothing needs CPU time to be charged.
fn paused() -> Installation {
    let installation = Installation::with(&Setup::default());
    let_go(&installation, &installation.cgroup());
    assert!(!charges(installation.fief()));
    installation
}

#[test]
fn time_is_charged_while_something_is_managed_bound_or_watched() {
    let installation = Installation::with(&Setup::default());
    let fief = installation.fief();
    let apply = || {
        installation.apply(PLAIN_POLICY).unwrap();
        charges(fief)
    };
    assert!(charges(fief) && apply(), "a unit is managed");
    let_go(&installation, &installation.cgroup());
    assert!(!charges(fief), "none is");
    fief.upgrade().unwrap();
    assert!(!charges(fief));
    pretend_another_build(fief.pins()).unwrap();
    assert!(!apply(), "other programs are in force");

    let again = Cgroup::new("again").unwrap();
    installation.manage(again.path(), Some("unit"), false);
    assert!(charges(fief));
    fief.upgrade().unwrap();
    assert!(charges(fief) && apply());
    let_go(&installation, again.path());
    assert!(!charges(fief));

    let process = sleeper();
    fief.bind(process.pid().cast_signed(), "unti").unwrap_err();
    assert!(!charges(fief));
    fief.bind(process.pid().cast_signed(), "unit").unwrap();
    assert!(charges(fief) && apply(), "a thread has a container");
    drop(process);
    loses_nothing(&installation.apply(PLAIN_POLICY).unwrap());
    assert!(!charges(fief));

    let watch = fief.watch("root", SOON).unwrap();
    assert!(charges(fief) && apply(), "somebody asks what threads use that nobody manages");
    drop(watch);
    assert!(!charges(fief));

    let process = sleeper();
    fief.bind(process.pid().cast_signed(), "unit").unwrap();
    assert!(charges(fief));
    fief.down().unwrap();
    assert!(!fief.pins().links().exists());
}

#[test]
fn what_cannot_be_bound_leaves_no_time_charged() {
    let installation = paused();
    installation.fief().bind(2, "unit").unwrap_err();
    installation.fief().bind(i32::MAX, "unit").unwrap_err();
    assert!(!charges(installation.fief()), "kernel threads, and none, are nobody's");
}

#[test]
fn a_policy_that_goes_by_time_has_it_charged_and_one_that_counts_does_not() {
    if !require(Feature::NetNs) {
        return;
    }
    let installation = Installation::with(&Setup::default());
    let topology = Topology::new().unwrap();
    fs::remove_dir(installation.cgroup()).unwrap();
    let apply = |text: &str| {
        topology.server.run(|| drop(installation.apply(text).unwrap())).unwrap();
        charges(installation.fief())
    };
    let admits = format!("version = 1\n{GUARDED}");
    assert!(!apply(&admits), "it rules connections and requests, and limits none by time");
    let _server = PlainServer::start(&topology.server, "[::]:80".parse().unwrap()).unwrap();
    let asked = b"GET /guarded/x HTTP/1.1\r\nHost: a\r\n\r\n";
    let _client = connect_with_bytes(&topology.clients, anywhere(Family::V4), plain(Family::V4), asked).unwrap();
    let view = || topology.server.run(|| installation.fief().front().unwrap()).unwrap();
    wait_until(SOON, || view().verdicts.iter().any(|verdict| verdict.request_rule() == Some(1))).unwrap();
    let loads = view().loads;
    assert!(!loads.is_empty() && loads.iter().all(|load| load.cpu_ppm.is_none()), "{loads:?}");

    for more in [
        "queue = true",
        "queue = false\nunproven = { rate = 5000 }",
        "queue = false\nisolate = { above = 1000, for = \"10s\", when = \"busy\" }",
    ] {
        assert!(apply(&admits.replacen("queue = false", more, 1)), "{more}");
        assert!(!apply(&admits), "after {more}");
    }
}

/// CPU time by container, of those that are always there and of the policy's.
fn times(snapshot: &Snapshot) -> BTreeMap<&str, u64> {
    let stays = |view: &&ContainerView| view.id < abi::FIEF_FIRST_ID || view.policy;
    snapshot.containers.iter().filter(stays).map(|view| (view.path.as_str(), view.usage.cpu_ns())).collect()
}

fn total(snapshot: &Snapshot) -> u64 {
    snapshot.containers.iter().map(|view| view.usage.cpu_ns()).sum()
}

/// What was charged in between, of the time of all CPUs.
fn part(before: &Snapshot, after: &Snapshot) -> f64 {
    let wall = (after.taken_ns - before.taken_ns) * u64::from(after.cpus);
    (total(after) - total(before)) as f64 / wall as f64
}

/// A reader may find out late what the hypervisor had, however much that is. It takes that back, and tells it as stolen from then on: all
/// but so much.
const TAKEN_BACK_NS: u64 = 50_000_000;

#[track_caller]
fn none_goes_back(before: &Snapshot, after: &Snapshot) {
    let steal = |snapshot: &Snapshot| {
        let view = snapshot.containers.iter().find(|view| view.id == abi::FIEF_STEAL);
        view.map_or(0, |view| view.usage.cpu_ns())
    };
    let (now, stolen) = (times(after), steal(after).saturating_sub(steal(before)));
    for (path, then) in times(before) {
        assert!(now[path] + TAKEN_BACK_NS + stolen >= then, "{path}: {then}, then {}, stolen {stolen}", now[path]);
    }
}

/// Beyond the worker's own clock: how it came there, and its end.
const WITHIN: Duration = ms(60);

#[test]
fn a_unit_after_a_pause_is_charged_its_own_time_and_nothing_of_the_pause() {
    let name = "a_unit_after_a_pause_is_charged_its_own_time_and_nothing_of_the_pause";
    if role().is_some() {
        spin(ms(300));
        println!("\nused {}", Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap()).as_nanos());
        return;
    }
    let installation = Installation::with(&Setup::default());
    let fief = installation.fief();
    let work_in = |cgroup: &Path| {
        let output = installation.part(Some(cgroup), name, "works").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let used = said.lines().find_map(|line| line.strip_prefix("used ")).unwrap_or_else(|| panic!("{said}"));
        Duration::from_nanos(used.parse().unwrap())
    };
    let charged = |snapshot: &Snapshot| Duration::from_nanos(times(snapshot)["unit"]);
    let worked = work_in(&installation.cgroup());
    let before = fief.snapshot().unwrap();
    is_about(charged(&before), worked, WITHIN);

    loses_nothing(&let_go(&installation, &installation.cgroup()));
    assert!(!charges(fief));
    let begins = fief.snapshot().unwrap();
    none_goes_back(&before, &begins);
    // nobody's thread, which has a CPU for as long as an hour's would
    spin(ms(700));
    let ends = fief.snapshot().unwrap();
    assert_eq!(times(&ends), times(&begins), "no counter moves");

    let again = Cgroup::new("again").unwrap();
    installation.manage(again.path(), Some("unit"), false);
    let managed = steady_snapshot(fief);
    assert!(part(&ends, &managed) <= 1.05, "{} of all CPUs: the pause is charged", part(&ends, &managed));
    let worked = work_in(again.path());
    let after = steady_snapshot(fief);
    is_about(charged(&after) - charged(&managed), worked, WITHIN);
    let part = part(&managed, &after);
    assert!((0.9..1.1).contains(&part), "{part} of all CPUs");
    none_goes_back(&ends, &after);
}

/// So the CPUs' records are made afresh at each begin, however the one before was cut off.
#[test]
fn what_a_killed_change_left_is_made_good_by_the_next() {
    let installation = paused();
    let (fief, pins) = (installation.fief(), installation.fief().pins());
    let attach = || charging::attach(pins).unwrap();
    let detach = || charging::detach(pins).unwrap();
    let all = [steps(attach), steps(detach)];
    let some = |all: usize| (0..=all).step_by(1 + all / 8);
    let goes_on = |since: &Snapshot, what: &str| {
        assert!(charging::is_on(pins).unwrap() && charges(fief), "{what}");
        let before = steady_snapshot(fief);
        assert!(part(since, &before) <= 1.05, "{what}: {} of all CPUs", part(since, &before));
        spin(ms(30));
        let part = part(&before, &steady_snapshot(fief));
        assert!((0.7..1.3).contains(&part), "{what}: {part} of all CPUs");
    };
    let stands = |before: &Snapshot, what: &str| {
        assert!(!charges(fief), "{what}");
        let paused = fief.snapshot().unwrap();
        none_goes_back(before, &paused);
        spin(ms(30));
        assert_eq!(times(&fief.snapshot().unwrap()), times(&paused), "{what}");
    };
    for step in some(all[0]) {
        let since = fief.snapshot().unwrap();
        kill_before(step, attach);
        attach();
        goes_on(&since, &format!("killed before step {step} of {} of the begin", all[0]));
        detach();
        // nobody needs what the killed one began
        kill_before(step, attach);
        let before = fief.snapshot().unwrap();
        drop(installation.apply(PLAIN_POLICY).unwrap());
        stands(&before, &format!("killed before step {step} of {} of the begin, and nobody needs it", all[0]));
    }
    for step in some(all[1]) {
        attach();
        let before = fief.snapshot().unwrap();
        kill_before(step, detach);
        let since = fief.snapshot().unwrap();
        none_goes_back(&before, &since);
        attach();
        goes_on(&since, &format!("killed before step {step} of {} of the end", all[1]));
        let before = fief.snapshot().unwrap();
        kill_before(step, detach);
        drop(installation.apply(PLAIN_POLICY).unwrap());
        stands(&before, &format!("killed before step {step} of {} of the end, and nobody needs it", all[1]));
    }
}

/// A watch takes no lock: it is there first, and then looks whether time is charged.
#[test]
fn who_found_time_charged_has_it_charged_also_if_who_ends_that_is_killed() {
    let installation = paused();
    let (fief, pins) = (installation.fief(), installation.fief().pins());
    let charge = || charging::attach(pins).unwrap();
    // nothing comes of it, so that it ends in a look at who needs time to be charged
    let work = || drop(fief.bind(2, "unit").unwrap_err());
    let is_on = || charging::is_on(pins).unwrap();
    charge();
    let found = watch_steps(work, is_on);
    let (all, last) = (found.len(), found.iter().rposition(|on| *on).expect("it is charged before"));
    assert!(!charges(fief) && last + 2 < all, "{found:?}");

    let view = fief.snapshot().unwrap().containers.into_iter().find(|view| view.path == "unit").unwrap();
    let unit = abi::fief_ref { id: view.id, generation: view.generation };
    let need = watch::Watch::open(pins).unwrap();
    for step in last..=all {
        charge();
        let mut at = 0;
        kill_when(work, || {
            if at == last {
                need.place(unit, false, 0, u64::MAX).unwrap();
                assert!(is_on());
            }
            at += 1;
            at > step
        });
        let before = steady_snapshot(fief);
        spin(ms(30));
        let part = part(&before, &steady_snapshot(fief));
        assert!((0.7..1.3).contains(&part), "killed before step {step} of {all}: {part} of all CPUs");
        drop(installation.apply(PLAIN_POLICY).unwrap());
        assert!(charges(fief), "killed before step {step} of {all}, and the next command");
        need.end().unwrap();
        drop(installation.apply(PLAIN_POLICY).unwrap());
        assert!(!charges(fief), "killed before step {step} of {all}, and nobody needs it");
    }
}
