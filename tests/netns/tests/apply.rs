// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy comes into force as a whole or not at all, whoever is killed and whoever else applies one; what it leaves
//! out lives on while it is held; and in the end nothing is left.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fief::{Container, State};
use fief_bpf::abi;
use fief_bpf::table::Table;
use fief_control::{ApplyOptions, ErrorKind, Fief, LetGo, ManageOptions, Reference, SchedulerView, Target};
use fief_policy::Policy;
use fief_testkit::{Cgroup, Feature, Process, cgroup2_mount, require, wait_until};
use fief_tests_netns::{
    Installation, NOBODY, SOON, fief_binary, fork, in_unit, kill_before, kill_when, spin, steps, watch_steps,
};
use libbpf_rs::{MapHandle, MapType};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid};

const OLD: &str = "version = 1\n[container.kept]\ncpu.weight = 100\n[container.gone]\n[container.\"gone/below\"]\n";
const NEW: &str = "version = 1\n[container.kept]\ncpu.weight = 200\n[container.fresh]\n[container.\"fresh/below\"]\n";

/// An installation that nothing was applied to yet. No other has a table of this size, which is odd, by which its maps are found.
struct Bare {
    fief: Fief,
    containers: u32,
}

impl Bare {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let fief = Fief::with_scope(&format!("ff-{}-apply{next}", std::process::id()));
        Self { fief, containers: (2000 + std::process::id() % 997 + next * 997) | 1 }
    }

    fn apply(&self, text: &str) -> Result<fief_control::Applied, fief_control::Error> {
        let options = ApplyOptions { containers: Some(self.containers), ..ApplyOptions::default() };
        self.fief.apply(&parse(text), text, &options)
    }

    /// Weight by path of the policy's containers.
    fn in_force(&self) -> BTreeMap<String, u32> {
        let snapshot = self.fief.snapshot().unwrap();
        let named = snapshot.containers.into_iter().filter(|c| c.policy);
        named.map(|c| (c.path, c.attributes.weight)).collect()
    }

    /// Every container there is, the policy's or not.
    fn paths(&self) -> Vec<String> {
        let snapshot = self.fief.snapshot().unwrap();
        let mut paths: Vec<_> =
            snapshot.containers.into_iter().filter(|c| c.id >= abi::FIEF_FIRST_ID).map(|c| c.path).collect();
        paths.sort();
        paths
    }

    /// Whether the kernel still has maps of this installation.
    fn is_loaded(&self) -> bool {
        libbpf_rs::query::MapInfoIter::default().any(|map| map.max_entries == self.containers)
    }

    fn assert_nothing_is_left(&self) {
        let scope = self.fief.pins().scope();
        wait_until(SOON, || !self.is_loaded()).unwrap_or_else(|_| panic!("maps of {scope} are left"));
        for folder in [Path::new("/sys/fs/bpf"), Path::new("/run/fief"), &cgroup2_mount().unwrap().join("fief")] {
            let left = || -> Vec<_> {
                let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
                names.filter(|e| e.file_name().to_string_lossy().starts_with(scope)).collect()
            };
            // a guard may still be at it
            wait_until(SOON, || left().is_empty()).unwrap_or_else(|_| panic!("{:?}", left()));
        }
    }

    fn down(&self) {
        self.fief.down().unwrap();
        self.assert_nothing_is_left();
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // a test that failed leaves it in force
        let _ = self.fief.down();
    }
}

fn parse(text: &str) -> Policy {
    fief_policy::parse(text, "test.toml").unwrap_or_else(|e| panic!("{e}"))
}

fn weights(text: &str) -> BTreeMap<String, u32> {
    parse(text).containers.into_iter().map(|c| (c.path, c.cpu.weight)).collect()
}

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
fn what_a_user_put_in_its_place_keeps_no_policy_out_and_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    let file = outside.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let folder = |place: &Path| {
        for folder in ["", "maps", "units"] {
            std::fs::create_dir(place.join(folder)).unwrap();
            chown(place.join(folder), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        symlink(outside.path(), place.join("units/leads")).unwrap();
        symlink(outside.path(), place.join("top")).unwrap();
    };
    let link = |place: &Path| {
        std::fs::create_dir_all(outside.path().join("maps")).unwrap();
        symlink(outside.path(), place).unwrap();
    };
    // where the next one is built, or removed
    let file_beside = |place: &Path| {
        let size = size_of::<libbpf_sys::bpf_map_create_opts>() as _;
        let options = libbpf_sys::bpf_map_create_opts { sz: size, ..Default::default() };
        let mut map = MapHandle::create(MapType::Array, Some("beside"), 4, 4, 1, &options).unwrap();
        map.pin(beside(place)).unwrap();
    };
    for put in [&folder as &dyn Fn(&Path), &link, &file_beside] {
        let bare = Bare::new();
        let place = Path::new("/sys/fs/bpf").join(bare.fief.pins().scope());
        put(&place);
        assert!(!bare.fief.installed());
        bare.down();
        put(&place);
        bare.apply(NEW).unwrap();
        assert_eq!(bare.in_force(), weights(NEW));
        bare.down();
        assert!(file.exists());
    }
}

/// A place of remains beside that of the pins.
fn beside(place: &Path) -> PathBuf {
    place.with_file_name(format!("{}~1", place.file_name().unwrap().display()))
}

#[test]
fn remains_that_cannot_be_removed_keep_nothing_else_up() {
    let bare = Bare::new();
    let scope = bare.fief.pins().scope();
    let [remains, run] = [beside(&Path::new("/sys/fs/bpf").join(scope)), Path::new("/run/fief").join(scope)];
    bare.apply(OLD).unwrap();
    std::fs::create_dir(&remains).unwrap();
    mount(None::<&str>, &remains, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let downs = [(); 2].map(|()| {
        let failed = bare.fief.down().err();
        let left = (bare.fief.installed(), run.exists());
        // of a down that was killed after it had removed the pins
        std::fs::create_dir_all(&run).unwrap();
        (failed.map(|e| e.kind()), left)
    });
    umount(&remains).unwrap();
    for (failed, left) in downs {
        assert_eq!(left, (false, false), "{failed:?}");
        assert!(failed.is_some(), "what is left is told");
    }
    bare.down();
}

#[test]
fn no_container_has_the_name_of_one_of_the_installation_before() {
    let bare = Bare::new();
    let names = || -> BTreeMap<u32, u32> {
        bare.apply(NEW).unwrap();
        let all = bare.fief.snapshot().unwrap().containers.into_iter().filter(|c| c.id >= abi::FIEF_FIRST_ID);
        let names = all.map(|c| (c.id, c.generation)).collect();
        bare.down();
        names
    };
    let [before, after] = [names(), names()];
    assert_eq!(before.len(), 3);
    // a record tells by it that everything has begun anew
    let fell = |id: &u32| (after[id].wrapping_sub(before[id]) as i32) < 0;
    assert!(before.keys().eq(after.keys()) && before.keys().all(fell), "{before:?} {after:?}");
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
    let name = "a_killed_manage_is_done_by_the_next";
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
fn down_leaves_nothing_though_containers_are_held() {
    let bare = Bare::new();
    bare.apply(OLD).unwrap();
    let cgroup = Cgroup::new("down").unwrap();
    let options = ManageOptions { container: Some("kept".into()), follow: false };
    bare.fief.manage(&Target::Cgroup(cgroup.path().to_owned()), &options).unwrap();
    let ready = fief_tests_netns::Door::new();
    let holder = fork(|| {
        cgroup.add(std::process::id()).unwrap();
        let container = Container::create().unwrap();
        container.bind_thread().unwrap();
        ready.open();
        nix::unistd::pause();
        drop(container);
    });
    ready.pass();
    let down = bare.fief.down().unwrap();
    assert_eq!((down.units, down.still_held), (1, 1));
    bare.assert_nothing_is_left();
    holder.kill();
}

/// Chains of processes in a cgroup, each of which forks the next one and ends, while a file is there. Returns when they have ended.
fn keep_forking(cgroup: &Path, file: &Path) {
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let chain = || {
        std::fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
        while file.exists() {
            // SAFETY: the child of a test has no other thread.
            match unsafe { nix::unistd::fork() } {
                Ok(ForkResult::Child) => {}
                _ => return,
            }
        }
    };
    (0..4).for_each(|_| std::mem::forget(fork(chain)));
    while nix::sys::wait::wait().is_ok() {}
}

#[test]
fn processes_that_keep_forking_keep_nothing_up_and_go_on() {
    let bare = Bare::new();
    bare.apply(OLD).unwrap();
    let tenant = cgroup2_mount().unwrap().join("fief").join(bare.fief.pins().scope()).join("tenant");
    std::fs::create_dir_all(&tenant).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go-on");
    std::fs::write(&file, "").unwrap();
    let forking = fork(|| keep_forking(&tenant, &file));
    let has_some = || !std::fs::read_to_string(tenant.join("cgroup.procs")).unwrap().is_empty();
    wait_until(SOON, has_some).unwrap();
    bare.down();
    assert!(!forking.has_ended());
    std::fs::remove_file(&file).unwrap();
    wait_until(SOON, || forking.has_ended()).expect("nobody is left frozen");
    forking.finish();
}

/// `fief run` of a server, in an installation of its own.
fn run_of(bare: &Bare, policy: &Path, server: &[&str]) -> Command {
    let mut command = Command::new(fief_binary());
    command.arg("run").arg(policy).arg("--").args(server);
    command.env("FIEF_SCOPE", bare.fief.pins().scope()).stdout(Stdio::null());
    command
}

#[test]
fn a_killed_run_is_taken_down_by_its_guard() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    std::fs::write(&file, NEW).unwrap();
    let started = folder.path().join("started");
    let bare = Bare::new();
    let script = "touch \"$0\"; exec sleep 1000";
    let run = Process::start(run_of(&bare, &file, &["sh", "-c", script, &started.to_string_lossy()])).unwrap();
    wait_until(SOON, || started.exists()).unwrap();
    assert!(bare.fief.installed());
    run.signal(Signal::SIGKILL);
    wait_until(SOON, || !bare.fief.installed()).expect("its guard takes it down");
    bare.assert_nothing_is_left();
}

#[test]
fn a_run_that_is_killed_on_its_way_up_or_down_is_taken_down_by_its_guard() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    std::fs::write(&file, NEW).unwrap();
    let run = |bare: &Bare| panic!("{}", run_of(bare, &file, &["true"]).exec());
    let watched = Bare::new();
    let in_force = watch_steps(|| run(&watched), || watched.fief.installed());
    watched.assert_nothing_is_left();
    let all = in_force.len();
    let up = in_force.iter().position(|now| *now).expect("it was in force");
    let down = up + in_force[up..].iter().position(|now| !now).expect("it was taken down");
    // from the first note of the run on, around what puts the policy into force and takes it away, and between
    let steps = [0, 1, 2, up / 2, up - 1, up, up + 1, up.midpoint(down), down - 1, down, down.midpoint(all), all - 1];
    for step in steps {
        let bare = Bare::new();
        // on its last steps it may wait for others, with a step more or less
        assert!(kill_before(step, || run(&bare)) || step > down, "step {step} of {all}");
        wait_until(SOON, || !bare.fief.installed())
            .unwrap_or_else(|_| panic!("killed before step {step} of {all}: still in force"));
        // what it was building when it was killed goes with the next command
        bare.down();
    }
}

#[test]
fn a_run_passes_signals_and_the_exit_code_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    std::fs::write(&file, NEW).unwrap();
    let bare = Bare::new();
    let started = folder.path().join("started");
    let script = "trap 'exit 42' USR1; touch \"$0\"; while :; do sleep 0.05; done";
    let run = Process::start(run_of(&bare, &file, &["sh", "-c", script, &started.to_string_lossy()])).unwrap();
    wait_until(SOON, || started.exists()).unwrap();
    run.signal(Signal::SIGUSR1);
    let status = run.finish(SOON).unwrap().status;
    assert_eq!(status.code(), Some(42));
    bare.assert_nothing_is_left();
}

/// Runs a program in a terminal of its own, and presses Ctrl-C for each line that it is told.
const TERMINAL: &str = r#"
import os, pty, sys
pid, terminal = pty.fork()
if not pid:
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.execv(sys.argv[1], sys.argv[1:])
for line in sys.stdin:
    os.write(terminal, b"\x03")
"#;

/// Writes down what signals it gets, to the first SIGUSR1.
const HEARS: &str = r#"
import signal, sys
signals = {signal.SIGINT, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
with open(sys.argv[1], "a", buffering=1) as told:
    print("ready", file=told)
    while True:
        came = signal.sigwaitinfo(signals).si_signo
        print(signal.Signals(came).name, file=told)
        if came == signal.SIGUSR1:
            break
"#;

#[test]
fn a_server_hears_of_ctrl_c_once() {
    if !require(Feature::Python) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, heard) = (folder.path().join("policy.toml"), folder.path().join("heard"));
    std::fs::write(&file, NEW).unwrap();
    let bare = Bare::new();
    let mut command = Command::new("python3");
    command.args(["-c", TERMINAL]).arg(fief_binary()).arg("run").arg(&file).args(["--", "python3", "-c", HEARS]);
    command.arg(&heard).env("FIEF_SCOPE", bare.fief.pins().scope()).stdin(Stdio::piped());
    let mut terminal = Process::start(command).unwrap();
    let mut keyboard = terminal.child().stdin.take().unwrap();
    let lines = || std::fs::read_to_string(&heard).unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    wait_until(SOON, || lines() == ["ready"]).unwrap();
    writeln!(keyboard).unwrap();
    wait_until(SOON, || lines().len() > 1).unwrap();
    // it comes behind what was passed on before it
    let run = std::fs::read_to_string(Path::new("/run/fief").join(bare.fief.pins().scope()).join("run.pid")).unwrap();
    kill(Pid::from_raw(run.split(' ').next().unwrap().parse().unwrap()), Signal::SIGUSR1).unwrap();
    wait_until(SOON, || !bare.fief.installed()).unwrap();
    assert_eq!(lines(), ["ready", "SIGINT", "SIGUSR1"]);
    drop(keyboard);
    terminal.finish(SOON).unwrap();
    bare.assert_nothing_is_left();
}

#[test]
fn a_server_that_goes_into_the_background_runs_under_the_policy_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    std::fs::write(&file, NEW).unwrap();
    let bare = Bare::new();
    let [left, ended] = ["left", "ended"].map(|name| folder.path().join(name));
    // as a daemon does: the first process ends, its child's child serves on
    let server = "trap 'touch \"$1\"; exit 0' TERM; touch \"$0\"; while :; do sleep 0.05; done";
    let script = format!("( ( exec 2>/dev/null; {server} ) & ) ; exit 0");
    let words = ["sh", "-c", &script, &left.to_string_lossy(), &ended.to_string_lossy()];
    let mut command = run_of(&bare, &file, &words);
    let mut run = Process::start(std::mem::replace(command.stderr(Stdio::piped()), Command::new("true"))).unwrap();
    wait_until(SOON, || left.exists()).unwrap();
    let mut told = String::new();
    let mut said = BufReader::new(run.child().stderr.take().unwrap());
    while !told.contains("into the background") {
        assert!(said.read_line(&mut told).unwrap() > 0, "{told}");
    }
    assert!(run.try_wait().is_none() && bare.fief.installed());
    run.signal(Signal::SIGTERM);
    let status = run.finish(SOON).unwrap().status;
    assert!(ended.exists(), "the signal was passed on");
    assert_eq!(status.code(), Some(0));
    bare.assert_nothing_is_left();
}

#[test]
fn a_run_that_ends_leaves_what_was_applied_by_hand_after_it_was_taken_down() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    std::fs::write(&file, NEW).unwrap();
    let bare = Bare::new();
    let started = folder.path().join("started");
    let server = "trap 'exit 0' TERM; touch \"$0\"; while :; do sleep 0.05; done";
    let run = Process::start(run_of(&bare, &file, &["sh", "-c", server, &started.to_string_lossy()])).unwrap();
    wait_until(SOON, || started.exists()).unwrap();
    bare.fief.down().unwrap();
    bare.apply(NEW).unwrap();
    run.signal(Signal::SIGTERM);
    assert_eq!(run.finish(SOON).unwrap().status.code(), Some(0));
    assert!(bare.fief.installed());
    bare.down();
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
    assert!(!told(notes("version = 1\nschedule = \"auto\"\n[container.site]\ncpu.priority = 0\n")));
    assert_eq!(bare.fief.snapshot().unwrap().scheduler, SchedulerView::Off);
    assert!(!told(notes("version = 1\nschedule = \"cgroup\"\n[container.site]\ncpu.limit = \"10%\"\n")));
    assert!(groups());
    assert!(!told(notes("version = 1\n[container.site]\ncpu.limit = \"10%\"\n")));
    assert_eq!(bare.fief.snapshot().unwrap().scheduler, SchedulerView::Off);
    bare.down();
}
