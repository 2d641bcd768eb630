// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a process that is managed has open: a listening socket of another cgroup is told of, and a file whose close never ends is not
//! waited for.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fief_control::{ManageOptions, Target};
use fief_testkit::{Cgroup, Feature, Process, require, wait_until};
use fief_tests_netns::{Installation, NeverClosed, SOON, Setup, fief_binary, role};

#[test]
fn who_listens_by_a_socket_of_another_cgroup_is_told() {
    let name = "open_files::who_listens_by_a_socket_of_another_cgroup_is_told";
    if role().is_some() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        println!("\nlistens: {}", socket.local_addr().unwrap());
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let installation = Installation::with(&Setup::default());
    let (home, elsewhere) = (Cgroup::new("born").unwrap(), Cgroup::new("moved").unwrap());
    let mut command = installation.part(Some(home.path()), name, "listener");
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address = told.find_map(|line| line.strip_prefix("listens: ").map(str::to_owned)).unwrap();
    let manage = |cgroup: &Cgroup| {
        let target = Target::Cgroup(cgroup.path().to_owned());
        installation.fief().manage(&target, &ManageOptions::default()).unwrap().notes
    };
    assert_eq!(manage(&home), [""; 0]);
    fs::write(elsewhere.path().join("cgroup.procs"), process.id().to_string()).unwrap();
    let notes = manage(&elsewhere);
    assert!(notes.len() == 1 && notes[0].contains(&format!("listens at {address} by")), "{notes:?}");
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success());
}

/// A process in the managed cgroup that has open what never closes, and a socket that listens.
struct Holder {
    // dropped first: the process waits for it when it ends
    file: Option<NeverClosed>,
    process: Process,
    /// The numbers of both.
    fds: [i32; 2],
}

impl Holder {
    fn start(installation: &Installation, name: &str, role: &str) -> Self {
        let file = NeverClosed::new();
        let mut command = installation.part(Some(&installation.cgroup()), name, role);
        command.env("FF_FILE", file.path()).stdout(Stdio::piped());
        let process = Process::start(command).unwrap();
        let mut holder = Self { file: Some(file), process, fds: [0; 2] };
        let mut told = BufReader::new(holder.process.child().stdout.take().unwrap()).lines().map(Result::unwrap);
        let fds = told.find_map(|line| line.strip_prefix("holds: ").map(str::to_owned)).unwrap();
        let (file, socket) = fds.split_once(' ').unwrap();
        holder.fds = [file.parse().unwrap(), socket.parse().unwrap()];
        holder
    }

    /// The part of the process.
    fn hold() -> ! {
        let file = File::open(std::env::var("FF_FILE").unwrap()).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        println!("\nholds: {} {}", file.as_raw_fd(), socket.as_raw_fd());
        if role().as_deref() == Some("executes") {
            // which closes the file, and never ends
            panic!("{}", std::process::Command::new("sleep").arg("1000").exec());
        }
        loop {
            std::thread::park();
        }
    }

    /// Whether a process ends that has nothing to wait for. Whatever it waits for ends with this.
    fn lets_end(&mut self, process: &mut Process) -> bool {
        let ends = wait_until(SOON, || process.try_wait().is_some()).is_ok();
        self.file = None;
        ends
    }
}

/// The file system is a tenant's; whoever closes a copy of its file waits for an answer of the tenant.
#[test]
fn a_process_is_managed_that_has_a_file_open_whose_close_never_ends() {
    let name = "open_files::a_process_is_managed_that_has_a_file_open_whose_close_never_ends";
    if role().is_some() {
        Holder::hold();
    }
    if !require(Feature::Fuse) {
        return;
    }
    let installation = Installation::with(&Setup::default());
    for role in ["holder", "executes"] {
        let mut holder = Holder::start(&installation, name, role);
        // the kernel has no words for a process that is within exec
        let words = Path::new("/proc").join(holder.process.pid().to_string()).join("cmdline");
        wait_until(SOON, || fs::read(&words).is_ok_and(|words| words.is_empty() == (role == "executes"))).unwrap();
        let mut command = std::process::Command::new(fief_binary());
        command.arg("manage").arg(installation.cgroup()).env("FIEF_SCOPE", installation.scope());
        let mut manage = Process::start(command).unwrap();
        assert!(holder.lets_end(&mut manage), "it waits for the tenant ({role})");
        assert!(manage.try_wait().is_some_and(|status| status.success()), "{role}");
    }
}

/// It puts such a file in the place of a socket between the look at it and the copy.
#[test]
fn who_takes_sockets_does_not_wait_for_what_came_in_the_place_of_one() {
    let name = "open_files::who_takes_sockets_does_not_wait_for_what_came_in_the_place_of_one";
    match role().as_deref() {
        Some("holder") => Holder::hold(),
        Some(_) => {
            let number = |name: &str| std::env::var(name).unwrap().parse().unwrap();
            let process = fief_bpf::process::open(number("FF_PID")).unwrap();
            let fds = [number("FF_ODD"), number("FF_SOCKET")];
            let until = Instant::now() + Duration::from_secs(5);
            let taken = fief_bpf::process::take_listening(process.as_fd(), &fds, until).unwrap();
            assert_eq!(taken.len(), 1);
            return;
        }
        None => {}
    }
    if !require(Feature::Fuse) {
        return;
    }
    let installation = Installation::with(&Setup::default());
    let mut holder = Holder::start(&installation, name, "holder");
    let mut command = installation.part(None, name, "taker");
    let numbers =
        [("FF_PID", holder.process.pid().cast_signed()), ("FF_ODD", holder.fds[0]), ("FF_SOCKET", holder.fds[1])];
    command.envs(numbers.map(|(name, number)| (name, number.to_string())));
    let mut taker = Process::start(command).unwrap();
    assert!(holder.lets_end(&mut taker), "it waits for the tenant");
    assert!(taker.try_wait().is_some_and(|status| status.success()));
}
