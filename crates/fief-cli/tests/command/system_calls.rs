// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the services call the kernel for, their `SystemCallFilter` lets through: systemd ends them otherwise, and only at the next
//! boot or reload. strace says what is called, systemd what its groups of calls are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fief_testkit::{Cgroup, Feature, require, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::agent::{Agent, GROUP};
use crate::place::Place;
use crate::started::{Ended, SHOP, policy};

/// Names of system calls.
type Calls = BTreeSet<String>;

/// What a service's text lets through.
fn let_through(service: &str) -> Calls {
    let said: Ended =
        Command::new("systemd-analyze").args(["--no-pager", "syscall-filter"]).output().expect("read").into();
    assert_eq!(said.code, 0, "{said:?}");
    let mut groups = BTreeMap::<&str, Vec<&str>>::new();
    let mut group = "";
    for line in said.stdout.lines() {
        match (line.starts_with(' '), line.trim()) {
            (false, head) => group = head,
            (true, name) if !name.starts_with('#') => groups.entry(group).or_default().push(name),
            (true, _) => {}
        }
    }
    let mut names: Vec<&str> = service
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="))
        .flat_map(str::split_whitespace)
        .collect();
    assert!(names.contains(&"@system-service") && groups.contains_key("@system-service"), "{names:?} {groups:?}");
    let mut calls = Calls::new();
    while let Some(name) = names.pop() {
        match name.starts_with('@') {
            true => names.extend(&groups[name]),
            false => drop(calls.insert(name.to_owned())),
        }
    }
    calls
}

/// `fief`, with the names of all that it and its children call written to a file at its end.
fn traced(place: &Place, file: &Path) -> Command {
    let mut command = Command::new("strace");
    command.args(["--follow-forks", "--summary-only", "--summary-columns=name", "--output"]).arg(file);
    // who is traced outlives a strace that is killed
    command.args(["setpriv", "--pdeathsig", "KILL"]);
    command.arg(env!("CARGO_BIN_EXE_fief")).env("FIEF_SCOPE", &place.scope);
    place.namespace.enter(&mut command);
    command
}

fn calls_of(file: &Path) -> Calls {
    let text = std::fs::read_to_string(file).expect("strace has ended");
    // under a head and a line, above a line and the sum
    let names =
        text.lines().map(str::trim).filter(|name| !name.starts_with('-') && !["", "syscall", "total"].contains(name));
    let names: Calls = names.map(str::to_owned).collect();
    assert!(names.contains("read"), "{text}");
    names
}

fn assert_let_through(calls: &Calls, service: &str) {
    assert!(calls.contains("bpf"), "{calls:?}");
    let refused: Vec<_> = calls.difference(&let_through(service)).cloned().collect();
    assert!(refused.is_empty(), "systemd would end the service at {refused:?}");
}

fn can_look() -> bool {
    [Feature::SystemdAnalyze, Feature::Strace].into_iter().all(require)
}

#[test]
fn the_service_may_call_what_apply_and_down_call() {
    let (true, Some(place)) = (can_look(), Place::new()) else { return };
    place.namespace.ip("link add sv type veth peer name cv").expect("a pair of interfaces");
    place.namespace.ip("link set sv up").expect("up");
    let cgroup = Cgroup::new("calls").expect("a cgroup");
    let guarded = SHOP.replace("classes = \"listeners\"", "queue = true\nlrp.when = \"always\"");
    let other =
        guarded.replace("version = 1", "version = 1\nschedule = \"cgroup\"\nlabel-files = true").replace("60%", "40%");
    let (guarded, other) = (policy(&guarded), policy(&other));
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut calls = Calls::new();
    let mut calls_in = |words: &[&str]| {
        let ended: Ended = traced(&place, file.path()).args(words).output().expect("strace starts").into();
        assert_eq!(ended.code, 0, "{words:?}: {ended:?}");
        calls.extend(calls_of(file.path()));
    };
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    // as the service starts, with a service in the policy reloads, and stops
    calls_in(&["apply", "--unless-in-force", &text(guarded.path())]);
    let managed = place.fief().args(["manage", "--container", "shop"]).arg(cgroup.path()).ends();
    assert_eq!(managed.code, 0, "{managed:?}");
    calls_in(&["apply", "--unless-in-force", &text(guarded.path())]);
    calls_in(&["apply", &text(guarded.path())]);
    calls_in(&["apply", &text(other.path())]);
    calls_in(&["down"]);
    assert_let_through(&calls, include_str!("../../../../packaging/fief.service"));
}

#[test]
fn the_agents_service_may_call_what_the_agent_calls() {
    let (true, Some(place)) = (can_look(), Place::new()) else { return };
    let cgroup = Cgroup::new("calls").expect("a cgroup");
    place.apply();
    let managed = place.fief().args(["manage", "--container", "shop"]).arg(cgroup.path()).ends();
    assert_eq!(managed.code, 0, "{managed:?}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let record = tempfile::tempdir().expect("a folder");
    let folder = record.path().to_str().expect("text");
    let mut agent =
        Agent::of(traced(&place, file.path()), &["--group", GROUP, "--listen", "127.0.0.1:0", "--record", folder]);
    assert!(agent.scrape().contains("fief_in_force 1\n"));
    assert!(agent.charges("shop").contains("\"sources\":"));
    // where nothing is managed, it has time charged as long as it looks
    drop(cgroup);
    place.apply();
    let told = || agent.charges("root").contains("\"sources\":");
    wait_until(Duration::from_secs(60), told).expect("after a pause it looks again");
    // its end too, so it is the agent that is told to, and not strace
    let strace = agent.child.id();
    let children = std::fs::read_to_string(format!("/proc/{strace}/task/{strace}/children")).expect("it runs");
    let told = children.trim().parse().expect("one child");
    kill(Pid::from_raw(told), Signal::SIGTERM).expect("it runs");
    let has_ended = || agent.child.try_wait().expect("it is a child").is_some();
    wait_until(Duration::from_secs(60), has_ended).expect("it ends");
    assert_let_through(&calls_of(file.path()), include_str!("../../../../packaging/fief-agent.service"));
}
