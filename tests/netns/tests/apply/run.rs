// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief run` passes signals and the exit code of its server on. What it put into force goes with it, also when it is killed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use fief_testkit::{Feature, Process, require, wait_until};
use fief_tests_netns::{SOON, fief_binary, kill_before, watch_steps};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bare::{Bare, NEW};

/// `fief run` of a server, in an installation of its own.
pub fn run_of(bare: &Bare, policy: &Path, server: &[&str]) -> Command {
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
