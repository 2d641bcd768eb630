// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `fief run` says of its server and of the policy, also when another command takes that down; and that there is one run at a
//! time, whatever killed ones have left.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fief_testkit::{Feature, Process, require};
use nix::sys::signal::Signal;

use crate::place::Place;
use crate::started::{SHOP, policy};

/// Generous: the machine may be busy.
const SOON: Duration = Duration::from_secs(60);

/// `fief run` of a server, and what it says on standard error.
struct Run {
    process: Process,
    said: BufReader<std::process::ChildStderr>,
    _policy: tempfile::NamedTempFile,
}

impl Run {
    fn new(place: &Place, server: &[&str]) -> Self {
        let policy = policy(SHOP);
        let mut run = place.fief().arg("run").arg(policy.path()).arg("--").args(server);
        run.command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let command = std::mem::replace(run.command(), Command::new("true"));
        let mut process = Process::start(command).expect("fief starts");
        process.ask_first(SOON);
        let said = BufReader::new(process.child().stderr.take().expect("a pipe"));
        Self { process, said, _policy: policy }
    }

    /// All that it says up to the line that has these words.
    fn says(&mut self, words: &str) -> String {
        let mut told = String::new();
        while !told.contains(words) {
            assert!(self.said.read_line(&mut told).expect("text") > 0, "{words} is not in: {told}");
        }
        told
    }
}

#[test]
fn run_says_who_serves_once_the_server_listens() {
    let Some(place) = Place::new().filter(|_| require(Feature::Python)) else { return };
    // it listens soon, since who serves is told once, after five seconds at the latest
    let listens = "import socket, time; s = socket.socket(); s.bind(('', 80)); s.listen(); time.sleep(1000)";
    let mut run = Run::new(&place, &["python3", "-I", "-S", "-c", listens]);
    let told = run.says("web on ");
    assert!(told.contains("fief: mode: enforce\n"), "{told}");
    let line = told.lines().last().expect("a line");
    assert!(line.starts_with("fief: web on 0.0.0.0:80: python") && line.ends_with(", managed)"), "{told}");
    let status = place.fief().arg("status").ends();
    assert_eq!(status.code, 0, "{status:?}");
    run.process.stop(SOON).expect("it ends");
}

#[test]
fn run_says_that_nobody_listens_where_the_policy_says() {
    let Some(place) = Place::new() else { return };
    let mut run = Run::new(&place, &["sleep", "1000"]);
    let told = run.says("nothing listens");
    assert!(told.ends_with("start its server there, or change the policy\n"), "{told}");
    assert_eq!(place.fief().args(["status", "--json"]).ends().code, 1, "the policy is in force all the same");
    run.process.stop(SOON).expect("it ends");
}

#[test]
fn a_server_goes_on_when_its_policy_is_taken_down_and_run_says_so() {
    let Some(place) = Place::new() else { return };
    let mut run = Run::new(&place, &["sh", "-c", "trap 'exit 42' TERM; while :; do sleep 0.05; done"]);
    run.says("nothing listens");
    let down = place.fief().arg("down").ends();
    let goes_on = format!("`fief run` (process {}) goes on with its server, without a policy\n", run.process.pid());
    assert!(down.code == 0 && down.stdout.ends_with(&goes_on), "{down:?}");
    assert!(down.stdout.contains(" and 1 managed unit\nno longer managed: /"), "{down:?}");
    run.says("the policy was taken down by another command: the server goes on without it");
    assert!(run.process.try_wait().is_none());
    // it is still waited for, and gets its signals
    run.process.signal(Signal::SIGTERM);
    assert_eq!(run.process.finish(SOON).expect("it ends").status.code(), Some(42));
}

#[test]
fn a_server_in_the_background_goes_on_when_its_policy_is_taken_down() {
    let Some(place) = Place::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let ended = folder.path().join("ended");
    let server = "trap 'touch \"$0\"; exit 0' TERM; while :; do sleep 0.05; done";
    let script = format!("( ( exec 2>&-; {server} ) & ) ; exit 0");
    let mut run = Run::new(&place, &["sh", "-c", &script, &ended.to_string_lossy()]);
    run.says("into the background");
    assert_eq!(place.fief().arg("down").ends().code, 0);
    run.says("the policy was taken down by another command");
    run.process.signal(Signal::SIGTERM);
    assert_eq!(run.process.finish(SOON).expect("it ends with its server").status.code(), Some(0));
    assert!(ended.exists(), "the signal was passed on");
}

#[test]
fn what_outlives_a_server_that_was_killed_is_said_by_run() {
    let Some(place) = Place::new() else { return };
    let mut run = Run::new(&place, &["sh", "-c", "trap '' TERM; sleep 1000 & echo $! >&2; kill -KILL $$"]);
    // what the command says of the policy may come before
    let worker = loop {
        let line = run.says("\n").trim().to_owned();
        if line.parse::<u32>().is_ok() {
            break line;
        }
    };
    let told = run.says("go on without a policy");
    assert!(
        told.contains("has ended (137)") && told.ends_with(&format!("{worker}; end them by `kill {worker}`\n")),
        "{told}"
    );
    assert_eq!(run.process.finish(SOON).expect("it ends").status.code(), Some(137));
    let worker = nix::unistd::Pid::from_raw(worker.parse().expect("a process"));
    nix::sys::signal::kill(worker, Signal::SIGKILL).expect("it goes on");
}

#[test]
fn an_interface_that_is_not_there_is_no_fault_of_the_servers() {
    let Some(place) = Place::new() else { return };
    let other = policy(
        &SHOP
            .replace("version = 1", "version = 1\n[front]\ninterfaces = [\"eth9\"]")
            .replace("address =", "admit = true\naddress ="),
    );
    let run = place.fief().arg("run").arg(other.path()).args(["--", "true"]).ends();
    assert!(run.code == 125 && run.stderr.contains("eth9") && !run.stderr.contains("cannot run"), "{run:?}");
}

#[test]
fn a_policy_in_place_of_one_whose_run_was_killed_is_not_that_runs() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let mut ended = Command::new("true").spawn().expect("it starts");
    ended.wait().expect("it ends");
    let note = Path::new("/run/fief").join(&place.scope).join("run.pid");
    std::fs::write(&note, ended.id().to_string()).expect("written");
    place.apply();
    let shop = policy(SHOP);
    let run = place.fief().arg("run").arg(shop.path()).args(["--", "true"]).ends();
    assert!(run.code == 125 && run.stderr.contains("in force already"), "{run:?}");
    assert!(!note.exists());
}

/// A number is given again: to this test, say, which was not there when the machine started.
#[test]
fn a_run_that_was_killed_with_its_guard_is_taken_down_also_when_its_number_is_somebody_elses() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let note = Path::new("/run/fief").join(&place.scope).join("run.pid");
    std::fs::write(&note, format!("{} 1", std::process::id())).expect("written");
    let shop = policy(SHOP);
    let run = place.fief().arg("run").arg(shop.path()).args(["--", "sh", "-c", "exit 7"]).ends();
    assert_eq!(run.code, 7, "{run:?}");
    assert!(!note.exists());
}

#[test]
fn a_second_run_is_refused_while_the_first_one_is_there() {
    let Some(place) = Place::new() else { return };
    let mut first = Run::new(&place, &["sleep", "1000"]);
    first.says("nothing listens");
    let shop = policy(SHOP);
    let second = place.fief().arg("run").arg(shop.path()).args(["--", "true"]).ends();
    assert!(second.code == 125 && second.stderr.contains("in force already"), "{second:?}");
    first.process.stop(SOON).expect("it ends");
}
