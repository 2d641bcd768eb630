// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cgroup that is removed and made anew, as a unit's is over a restart, is managed again while somebody keeps it.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use fief_control::{Error, ErrorKind, Fief, ManageOptions, Managed, Target};
use fief_testkit::{Cgroup, Feature, Process, require, wait_until};
use fief_tests_netns::{Installation, SOON, Setup};

/// A process in a cgroup, which is made for it.
fn start(installation: &Installation, cgroup: &Path) -> Process {
    fs::create_dir_all(cgroup).unwrap();
    let mut command: Command = installation.command_in(cgroup, "sleep");
    command.arg("1000");
    Process::start(command).unwrap()
}

/// Ends it, and removes its cgroup, as systemd does.
fn end(process: Process, cgroup: &Path) {
    drop(process);
    wait_until(SOON, || fs::remove_dir(cgroup).is_ok()).unwrap();
}

fn homes(fief: &Fief, cgroup: &Path) -> Vec<String> {
    let units = fief.snapshot().unwrap().units;
    units.into_iter().filter(|unit| unit.cgroup.as_deref() == Some(cgroup)).map(|unit| unit.container).collect()
}

fn ready() -> bool {
    [Feature::Root, Feature::Cgroup2, Feature::Bpf].into_iter().all(require)
}

#[test]
fn a_unit_is_managed_again_whenever_it_starts_and_no_more_once_nobody_keeps_it() {
    if !ready() {
        return;
    }
    let installation = Installation::with(&Setup::default());
    let slice = Cgroup::new("slice").unwrap();
    let unit: PathBuf = slice.path().join("web.service");
    let mut process = Some(start(&installation, &unit));
    let (stop, stops) = nix::unistd::pipe().unwrap();
    let told: Mutex<Vec<Managed>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let kept = scope.spawn(|| {
            let options = ManageOptions { container: Some("unit".into()), follow: true };
            let each = |managed: &Managed| {
                told.lock().unwrap().push(managed.clone());
                Ok::<_, Error>(())
            };
            installation.fief().keep(&Target::Cgroup(unit.clone()), &options, stop.as_fd(), each)
        });
        for times in 1..4 {
            wait_until(SOON, || told.lock().unwrap().len() == times).unwrap_or_else(|_| panic!("time {times}"));
            assert_eq!(homes(installation.fief(), &unit), ["unit"], "time {times}");
            let in_it = || {
                let containers = installation.fief().snapshot().unwrap().containers;
                containers.iter().any(|view| view.path == "unit" && view.threads >= 1)
            };
            wait_until(SOON, in_it).unwrap_or_else(|_| panic!("its process is not there, time {times}"));
            end(process.take().expect("started before"), &unit);
            process = Some(start(&installation, &unit));
        }
        wait_until(SOON, || told.lock().unwrap().len() == 4).unwrap();
        nix::unistd::write(&stops, &[1]).unwrap();
        kept.join().unwrap().unwrap();
        end(process.take().expect("started before"), &unit);
    });
    let process = start(&installation, &unit);
    assert_eq!(homes(installation.fief(), &unit), [""; 0], "nobody keeps it");
    end(process, &unit);
}

#[test]
fn it_ends_with_the_policy_and_keeps_no_process() {
    if !ready() {
        return;
    }
    let installation = Installation::with(&Setup::default());
    let slice = Cgroup::new("slice").unwrap();
    let unit = slice.path().join("web.service");
    let process = start(&installation, &unit);
    let (stop, _stops) = nix::unistd::pipe().unwrap();
    let options = ManageOptions { container: Some("unit".into()), follow: false };
    let keep = |target: &Target, each: fn(&Managed) -> Result<(), Error>| {
        installation.fief().keep(target, &options, stop.as_fd(), each).unwrap_err()
    };
    let pid = i32::try_from(process.pid()).unwrap();
    assert!(keep(&Target::Process(pid), |_| Ok(())).to_string().contains("name its unit"));
    std::thread::scope(|scope| {
        let kept = scope.spawn(|| keep(&Target::Cgroup(unit.clone()), |_| Ok(())).kind());
        wait_until(SOON, || !homes(installation.fief(), &unit).is_empty()).unwrap();
        installation.fief().down().unwrap();
        assert_eq!(kept.join().unwrap(), ErrorKind::NotFound);
    });
    end(process, &unit);
}
