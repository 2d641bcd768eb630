// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Managed units: what already runs, hardened services, nested cgroups, and those who are none of our business.

mod open_files;
mod running;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fief::Container;
use fief_control::{Fief, ManageOptions, Target};
use fief_testkit::{Cgroup, Feature, Process, Topology, napi_threads, require, wait_until};
use fief_tests_netns::{Foreign, Installation, PLAIN_POLICY, SOON, Setup, fork, in_unit, role, spin};
use nix::fcntl::{FcntlArg, FdFlag, PosixFadviseAdvice, fcntl, posix_fadvise};

fn view(fief: &Fief, path: &str) -> fief_control::ContainerView {
    let snapshot = fief.snapshot().unwrap();
    let found = snapshot.containers.into_iter().find(|c| c.path == path);
    found.unwrap_or_else(|| panic!("no container {path}"))
}

/// Only these, and nothing else, with an error instead of a signal (classic BPF over struct seccomp_data).
fn forbid_all_but(calls: &[libc::c_long]) {
    let stop = |code: u16, jt: usize, jf: u8, k: u32| libc::sock_filter { code, jt: jt as u8, jf, k };
    let mut filter = vec![stop(0x20, 0, 0, 0)];
    for (n, call) in calls.iter().enumerate() {
        filter.push(stop(0x15, calls.len() - n, 0, *call as u32));
    }
    filter.push(stop(0x06, 0, 0, 0x0005_0000 | libc::EPERM as u32));
    filter.push(stop(0x06, 0, 0, 0x7fff_0000));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live until the call returns.
    let err = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
    assert_eq!(err, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_hardened_service_uses_the_descriptor_that_it_inherits() {
    let name = "a_hardened_service_uses_the_descriptor_that_it_inherits";
    if role().as_deref() == Some("service") {
        // as systemd leaves it: another user, no capabilities, no new privileges, private mounts
        assert!(!nix::unistd::geteuid().is_root());
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert!(status.contains("CapEff:\t0000000000000000") && status.contains("NoNewPrivs:\t1"), "{status}");
        let fd: i32 = std::env::var("FF_FD").unwrap().parse().unwrap();
        // SAFETY: the parent left this descriptor open for us, and nobody else knows of it.
        let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        let container = Container::from_fd(fd).unwrap();
        let own = Container::create().unwrap();
        fork(|| {
            forbid_all_but(&[
                libc::SYS_setsockopt,
                libc::SYS_getsockopt,
                libc::SYS_close,
                libc::SYS_clock_gettime,
                libc::SYS_write,
                libc::SYS_exit_group,
            ]);
            assert!(File::open("/").is_err());
            {
                let _bound = container.bind().unwrap();
                spin(Duration::from_millis(20));
            }
            assert!(container.usage().unwrap().cpu_ns() >= 15_000_000);
            own.set_weight(7).unwrap();
            drop(own);
        })
        .finish();
        return;
    }
    in_unit(name, || {
        let container = Container::create().unwrap();
        fcntl(container.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        let exe = std::env::current_exe().unwrap();
        let status = std::process::Command::new("unshare")
            .args(["--mount", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"])
            .args(["--bounding-set=-all", "--inh-caps=-all", "--"])
            .arg(exe)
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env("FIEF_TEST_INSIDE", "service")
            .env("FF_FD", container.as_fd().as_raw_fd().to_string())
            .status()
            .unwrap();
        assert!(status.success());
        assert!(container.usage().unwrap().cpu_ns() >= 15_000_000);
    });
}

#[test]
fn two_installations_manage_units_side_by_side() {
    let name = "two_installations_manage_units_side_by_side";
    match role() {
        Some(_) => {
            let container = Container::create().unwrap();
            let _bound = container.bind().unwrap();
            spin(Duration::from_millis(20));
            assert!(container.usage().unwrap().cpu_ns() >= 15_000_000);
        }
        None => {
            let one = Installation::with(&Setup::default());
            let two = Installation::new(PLAIN_POLICY, "unit");
            let first = one.start(Some(&one.cgroup()), name, "first");
            let second = two.start(Some(&two.cgroup()), name, "second");
            assert!(first.finish(SOON).unwrap().status.success());
            assert!(second.finish(SOON).unwrap().status.success());
            one.fief().down().unwrap();
            two.play(name, "third");
        }
    }
}

#[test]
fn a_home_can_be_changed_by_managing_again() {
    let name = "a_home_can_be_changed_by_managing_again";
    if role().is_some() {
        let container = Container::create().unwrap();
        spin(Duration::from_millis(20));
        drop(container);
        return;
    }
    let installation = Installation::new("version = 1\n[container.unit]\n[container.other]\n", "unit");
    installation.manage(&installation.cgroup(), Some("other"), false);
    installation.play(name, "body");
    assert!(view(installation.fief(), "other").usage.cpu_ns() >= 15_000_000);
    assert!(Path::new(&installation.cgroup()).exists());
}

/// At each line of standard input says whether the thread follows the file that it reads.
fn reader() {
    for line in std::io::stdin().lines() {
        line.unwrap();
        let gold = Container::create().expect("a thread at home makes containers");
        let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.write_at(&[7; 4096], 0).unwrap();
        let _label = gold.assign_file(&file).unwrap();
        file.sync_all().unwrap();
        posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        file.read_at(&mut [0; 4096], 0).unwrap();
        let info = gold.info().unwrap();
        println!("\nfollows: {} {}", fief::current(&gold).unwrap().0 == info.id, info.parent.unwrap());
        fief::unbind(&gold).unwrap();
    }
}

#[test]
fn managing_again_says_anew_what_threads_do() {
    let name = "managing_again_says_anew_what_threads_do";
    if role().is_some() {
        return reader();
    }
    let policy = "version = 1\nlabel-files = true\n[container.unit]\n[container.other]\n";
    let installation = Installation::with(&Setup { policy, ..Setup::default() });
    let holders = || ["unit", "other"].map(|path| view(installation.fief(), path)).map(|c| (c.handles, c.threads));
    let before = holders();
    let mut command = installation.part(Some(&installation.cgroup()), name, "reader");
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ask = process.stdin.take().unwrap();
    let mut told = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    for (home, follow) in [("unit", false), ("unit", true), ("other", false), ("other", true), ("unit", true)] {
        installation.manage(&installation.cgroup(), Some(home), follow);
        let now = || view(installation.fief(), home);
        ask.write_all(b"\n").unwrap();
        let found = told.find_map(|line| line.strip_prefix("follows: ").map(str::to_owned)).unwrap();
        assert_eq!(found, format!("{follow} {}", now().id), "{home}");
        let all = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap().count() as u32;
        wait_until(SOON, || now().threads == all).unwrap_or_else(|_| panic!("{:?}", now()));
        installation.manage(&installation.cgroup(), Some(home), follow);
        assert_eq!(now().threads, all, "who is one already is not counted twice");
    }
    drop(ask);
    assert!(process.wait().unwrap().success());
    wait_until(SOON, || holders() == before).unwrap_or_else(|_| panic!("{:?}", holders()));
}

#[test]
fn who_has_no_unit_passes_no_tracepoint_of_packets_and_sockets() {
    let installation = Installation::with(&Setup::default());
    let attached = || {
        let exists = |name| installation.fief().pins().links().join(name).exists();
        ["packet_starts", "poll_ends", "recv_follows", "send_follows"].map(exists)
    };
    let forget = |unit: &Path| {
        fs::remove_dir(unit).unwrap();
        installation.apply(PLAIN_POLICY).unwrap();
    };
    assert_eq!(attached(), [true, true, true, false], "a unit has packets, and counts its accepted sockets");
    forget(&installation.cgroup());
    assert_eq!(attached(), [false; 4]);
    installation.fief().upgrade().unwrap();
    assert_eq!(attached(), [false; 4]);
    let follows = Cgroup::new("follows").unwrap();
    installation.manage(follows.path(), None, true);
    assert_eq!(attached(), [true; 4]);
    installation.fief().upgrade().unwrap();
    assert_eq!(attached(), [true; 4]);
    forget(follows.path());
    assert_eq!(attached(), [false; 4]);
}

#[test]
fn what_cannot_be_managed_leaves_nothing_behind() {
    let installation = Installation::with(&Setup::default());
    let cgroup = Cgroup::new("taken").unwrap();
    let alone = Foreign::attach_alone(File::open(cgroup.path()).unwrap().as_fd());
    let fief = installation.fief();
    let names = |folder: PathBuf| {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let there = || {
        let containers: Vec<_> = fief.snapshot().unwrap().containers.into_iter().map(|c| c.path).collect();
        (containers, names(fief.pins().links()), names(fief.pins().units()))
    };
    fs::remove_dir(installation.cgroup()).unwrap();
    installation.apply(PLAIN_POLICY).unwrap();
    let before = there();
    let target = Target::Cgroup(cgroup.path().to_owned());
    let refused = fief.manage(&target, &ManageOptions::default()).unwrap_err();
    assert!(refused.advice().is_some_and(|advice| advice.contains("bpftool cgroup show")), "{refused}");
    assert_eq!(there(), before);
    drop(alone);
    fief.manage(&target, &ManageOptions::default()).unwrap();
    assert!(there().0.len() > before.0.len());
}

#[test]
fn kernel_threads_are_nobodys() {
    if !require(Feature::ThreadedNapi) {
        return;
    }
    let installation = Installation::with(&Setup::default());
    let topology = Topology::new().unwrap();
    let receiver = napi_threads(&topology.server, Topology::SERVER).unwrap()[0];
    let refused = installation.fief().bind(receiver.cast_signed(), "unit").unwrap_err();
    assert!(refused.advice().is_some_and(|advice| advice.contains("kernel thread")), "{refused}");
    let cgroup = Cgroup::new("kernel").unwrap();
    cgroup.add(receiver).unwrap();
    let target = Target::Cgroup(cgroup.path().to_owned());
    let managed = installation.fief().manage(&target, &ManageOptions::default()).unwrap();
    let held = || view(installation.fief(), &managed.container).handles;
    let before = held();
    Cgroup::new("elsewhere").unwrap().add(receiver).unwrap();
    cgroup.add(receiver).unwrap();
    assert_eq!((managed.threads, held()), (0, before), "neither found there nor moved there");
}

#[test]
fn no_thread_is_bound_to_what_fief_itself_keeps() {
    let installation = Installation::with(&Setup::default());
    let process = Process::start(sleeper()).unwrap();
    let pid = process.pid().cast_signed();
    for name in ["system", "idle", "steal", "unattributed", "retired", "user"] {
        let refused = installation.fief().bind(pid, name).unwrap_err();
        assert!(refused.advice().is_some(), "{refused}");
        let options = ManageOptions { container: Some(name.to_owned()), ..ManageOptions::default() };
        installation.fief().manage(&Target::Cgroup(installation.cgroup()), &options).unwrap_err();
    }
    installation.fief().bind(pid, "unit").unwrap();
    installation.fief().bind(pid, "root").unwrap();
}

fn sleeper() -> std::process::Command {
    let mut command = std::process::Command::new("sleep");
    command.arg("100");
    command
}

#[test]
fn a_cgroup_within_a_managed_one_is_not_managed_once_more() {
    let installation = Installation::with(&Setup::default());
    let outer = installation.cgroup();
    let inner = outer.join("inner");
    fs::create_dir_all(&inner).unwrap();
    let manage = |path: &Path| {
        let options = ManageOptions { container: Some("unit".into()), follow: false };
        installation.fief().manage(&Target::Cgroup(path.to_owned()), &options)
    };
    let error = manage(&inner).unwrap_err();
    assert_eq!(error.kind(), fief_control::ErrorKind::Exists, "{error}");
    // the same one again is no other; nor is one managed that has a managed one below it
    manage(&outer).unwrap();
    let above = outer.with_extension("above");
    let below = above.join("below");
    fs::create_dir_all(&below).unwrap();
    manage(&below).unwrap();
    let error = manage(&above).unwrap_err();
    assert_eq!(error.kind(), fief_control::ErrorKind::Exists, "{error}");
    for folder in [&inner, &below, &above] {
        wait_until(SOON, || fs::remove_dir(folder).is_ok()).unwrap();
    }
}

#[test]
fn packets_of_a_cgroup_below_the_managed_one_are_the_units() {
    let name = "packets_of_a_cgroup_below_the_managed_one_are_the_units";
    if role().is_some() {
        let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut room = [0; 100];
        for _ in 0..2000 {
            far.send_to(&[1; 50], near.local_addr().unwrap()).unwrap();
            near.recv_from(&mut room).unwrap();
        }
        return;
    }
    let installation = Installation::with(&Setup::default());
    let deepest = installation.cgroup().join("pod").join("a-container");
    fs::create_dir_all(&deepest).unwrap();
    let before = view(installation.fief(), "unit").usage;
    let process = installation.start(Some(&deepest), name, "sender");
    assert!(process.finish(SOON).unwrap().status.success());
    let after = view(installation.fief(), "unit").usage;
    assert!(after.packets_in - before.packets_in >= 2000, "{before:?} {after:?}");
    assert!(after.packets_out - before.packets_out >= 2000, "{before:?} {after:?}");
    for cgroup in [deepest.as_path(), deepest.parent().unwrap()] {
        wait_until(SOON, || fs::remove_dir(cgroup).is_ok()).unwrap();
    }
}
