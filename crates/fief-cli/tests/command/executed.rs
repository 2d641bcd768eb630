// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Servers that `fief exec` starts under the policy that is in force.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fief_control::Hierarchy;
use fief_testkit::{Cgroup, Feature, cgroup2_mount, require, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::place::Place;
use crate::started::{Ended, SHOP, fief, policy};

const SOON: Duration = Duration::from_secs(20);

fn exec(place: &Place, words: &[&str]) -> Ended {
    place.fief().arg("exec").args(words).ends()
}

/// Below which the cgroups of an installation are.
fn own(place: &Place) -> PathBuf {
    cgroup2_mount().expect("cgroup2").join("fief").join(&place.scope)
}

/// What is left of servers that have ended.
fn cgroups_of(place: &Place) -> Vec<PathBuf> {
    std::fs::read_dir(own(place))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}

/// Says a line once it runs, and ends upon SIGTERM.
const SERVER: &str = "trap 'exit 9' TERM; echo $$ $0; while :; do sleep 0.01; done";

struct Server {
    child: Child,
    said: String,
}

impl Server {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("the server is ready");
        Self { child, said }
    }

    fn exec(place: &Place, container: &str) -> Self {
        let mut fief = place.fief().args(["exec", "--container", container, "--", "sh", "-c", SERVER]);
        Self::start(std::mem::replace(fief.command(), Command::new("true")))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("our child");
    }

    fn stop(mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // one that has ended is as good as killed
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn exec_ends_with_the_servers_code_and_leaves_the_policy_and_nothing_else() {
    let Some(place) = Place::new() else { return };
    place.apply();
    assert_eq!(exec(&place, &["--", "sh", "-c", "exit 7"]).code, 7);
    assert_eq!(exec(&place, &["--", "sh", "-c", "kill -KILL $$"]).code, 128 + 9);
    assert_eq!(exec(&place, &["--", "no-such-program-here"]).code, 127);
    assert!(place.containers().contains(&"shop/gold".to_owned()));
    assert_eq!(cgroups_of(&place), Vec::<PathBuf>::new());
    // a removed cgroup is no unit any more: nothing has to be forgotten
    let applied = place.apply();
    assert!(!applied.stdout.contains("is forgotten"), "{applied:?}");
}

#[test]
fn exec_says_that_nobody_listens_where_the_policy_says() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let mut fief = place.fief().args(["exec", "--", "sleep", "1000"]);
    let mut child = fief.command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("fief starts");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("nothing listens") {
        line.clear();
        assert!(said.read_line(&mut line).expect("text") > 0, "it ended");
    }
    assert!(line.starts_with("fief: note: web: nothing listens on 0.0.0.0:80;"), "{line}");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).expect("our child");
    assert_eq!(child.wait().expect("it ends").code(), Some(128 + 15));
}

#[test]
fn servers_run_side_by_side_each_in_its_container() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let (shop, gold) = (Server::exec(&place, "shop"), Server::exec(&place, "shop/gold"));
    // the loop's sleep comes and goes
    wait_until(SOON, || place.threads("shop") >= 1 && place.threads("shop/gold") >= 1).expect("each is at home");
    assert_eq!(place.units().len(), 2);
    assert_eq!(gold.stop(), Some(9));
    wait_until(SOON, || place.threads("shop/gold") == 0 && place.units().len() == 1).expect("it has left");
    assert!(place.threads("shop") >= 1);
    assert_eq!(shop.stop(), Some(9));
}

#[test]
fn what_a_killed_exec_left_is_removed_by_the_next() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let mut killed = Server::exec(&place, "shop");
    killed.signal(Signal::SIGKILL);
    killed.child.wait().expect("it ends");
    wait_until(SOON, || place.threads("shop") == 0).expect("the server ends with it");
    assert_eq!(cgroups_of(&place).len(), 1);
    // the kernel takes a task out of its cgroup after its end is told
    wait_until(SOON, || {
        assert_eq!(exec(&place, &["--", "true"]).code, 0);
        cgroups_of(&place).is_empty()
    })
    .expect("the next one removes it once nobody is in it");
}

/// As in a container: processes have other numbers there, and those outside have none.
#[test]
fn what_a_killed_exec_left_is_removed_in_a_pid_namespace_too() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let folder = tempfile::tempdir().expect("a folder");
    // the kernel takes a task out of its cgroup after its end is told
    let script = r#"
        "$0" exec --container shop -- sh -c 'echo up; exec sleep 1000' > "$1/said" &
        until [ -s "$1/said" ]; do sleep 0.01; done
        kill -KILL $!
        for n in $(seq 100); do
            "$0" exec -- true || exit 2
            [ -n "$(find "$2" -name 'exec-*' 2>/dev/null)" ] || exit 0
            sleep 0.1
        done
        exit 1"#;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "sh", "-c", script, env!("CARGO_BIN_EXE_fief")]);
    command.arg(folder.path()).arg(own(&place)).env("FIEF_SCOPE", &place.scope);
    place.namespace.enter(&mut command);
    let ended = Ended::from(command.output().expect("unshare starts"));
    assert_eq!((ended.code, cgroups_of(&place)), (0, Vec::new()), "{ended:?}");
}

#[test]
fn who_is_left_of_a_server_that_failed_stays_in_its_container() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!; exit 1";
    let ended = exec(&place, &["--container", "shop/gold", "--", "sh", "-c", script]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let left = ended.stdout.trim();
    let cgroup = std::fs::read_to_string(format!("/proc/{left}/cgroup")).expect("it runs");
    assert!(cgroup.lines().any(|line| line.starts_with("0::") && line.contains("/exec-")), "{cgroup}");
    assert!(ended.stderr.contains(&format!("go on in its container: {left}; end them by `kill {left}`")), "{ended:?}");
    wait_until(SOON, || place.threads("shop/gold") == 1).expect("it is at home");
    // who comes next leaves it there
    assert_eq!(exec(&place, &["--", "true"]).code, 0);
    assert_eq!((place.units().len(), place.threads("shop/gold")), (1, 1));
    kill(Pid::from_raw(left.parse().expect("a number")), Signal::SIGKILL).expect("it runs");
    // the kernel takes it out of its cgroup a moment later
    wait_until(SOON, || {
        place.apply();
        cgroups_of(&place).is_empty()
    })
    .expect("the next apply removes it");
    assert_eq!(place.units().len(), 0);
}

/// The kernel tells the server nothing of a command that was killed before the server asked for it.
#[test]
fn no_server_is_started_for_a_command_that_has_ended() {
    if ![Feature::Root, Feature::Cgroup2].into_iter().all(require) {
        return;
    }
    let mut ended = Command::new("true").spawn().expect("true starts");
    ended.wait().expect("it ends");
    let place = Cgroup::new("tied").expect("a cgroup");
    let started_by = |parent: u32| {
        let cgroup = place.path().to_str().expect("text");
        fief().args(["run-exec", &parent.to_string(), cgroup, "", "0", "echo", "served"]).ends()
    };
    let orphan = started_by(ended.id());
    assert!(orphan.code != 0 && orphan.stdout.is_empty(), "{orphan:?}");
    assert!(orphan.stderr.contains("the command that waits for it has ended"), "{orphan:?}");
    assert_eq!(started_by(std::process::id()).stdout, "served\n");
}

#[test]
fn a_server_that_cannot_be_placed_is_not_started_and_the_remedy_is_named() {
    let Some(place) = Place::new() else { return };
    let nothing = exec(&place, &["--", "true"]);
    assert_eq!(nothing.code, 125);
    assert!(nothing.stderr.contains("nothing is in force"), "{nothing:?}");
    assert!(nothing.stderr.contains("`fief apply FILE`"), "{nothing:?}");
    place.apply();
    for words in [&["--container", "shop/gol"][..], &["--here", "--container", "gold"]] {
        let own = Cgroup::new("unplaced").expect("a cgroup");
        let unknown = in_cgroup(&place, own.path(), &[words, &["--", "echo", "started"]].concat()).output();
        let unknown = Ended::from(unknown.expect("sh starts"));
        assert_eq!((unknown.code, unknown.stdout.as_str()), (125, ""), "{unknown:?}");
        assert!(unknown.stderr.contains("did you mean shop/gold?"), "{unknown:?}");
    }
    let unknown = exec(&place, &["--listener", "wbe", "--", "true"]);
    assert!(unknown.code == 125 && unknown.stderr.contains("did you mean web?"), "{unknown:?}");
    assert_eq!(cgroups_of(&place), Vec::<PathBuf>::new());
}

#[test]
fn clients_whose_class_is_beside_the_home_are_told_of() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let own = Cgroup::new("beside").expect("a cgroup");
    for how in [&[][..], &["--here"]] {
        let told = |container: &str| {
            let words = [how, &["--container", container, "--", "true"]].concat();
            let ended = Ended::from(in_cgroup(&place, own.path(), &words).output().expect("sh starts"));
            assert_eq!(ended.code, 0, "{ended:?}");
            ended.stderr
        };
        assert_eq!(told("shop"), "", "all classes are below it");
        let beside = told("shop/gold");
        assert!(
            beside.contains("clients of shop are served as shop/gold") && beside.contains("--container shop)"),
            "{beside}"
        );
    }
}

#[test]
fn wrong_usage_of_exec_has_no_code_of_a_servers() {
    assert_eq!(fief().args(["exec", "--argv0", "x", "--", "true"]).ends().code, 125);
    assert_eq!(fief().args(["exec"]).ends().code, 125);
    // a login shell's name
    let login = fief().args(["exec", "--here", "--argv0", "-bash", "--", "true"]).ends();
    assert!(login.stderr.contains("nothing is in force"), "{login:?}");
}

#[test]
fn a_server_in_the_background_is_waited_for_after_another_policy_came() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let words = ["exec", "--container", "shop", "--", "sh", "-c", "sh -c \"$0\" 2>/dev/null &", SERVER];
    let mut fief = place.fief().args(words);
    fief.command().stderr(Stdio::piped());
    let mut server = Server::start(std::mem::replace(fief.command(), Command::new("true")));
    let pid: u32 = server.said.split(' ').next().expect("a number").parse().expect("a number");
    let mut told = BufReader::new(server.child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(told.any(|line| line.contains("went into the background")));
    assert_eq!(place.fief().arg("down").ends().code, 0);
    place.apply();
    assert!(told.any(|line| line.contains("taken down by another command")));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
    wait_until(SOON, || !fief_testkit::lives(pid)).expect("the server ended upon the signal");
}

/// `fief exec` with these words, started in a cgroup.
fn in_cgroup(place: &Place, cgroup: &Path, words: &[&str]) -> Command {
    in_cgroup_by(place, cgroup, &[], words)
}

/// As above, by another program.
fn in_cgroup_by(place: &Place, cgroup: &Path, by: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(cgroup).args(by);
    command.arg(env!("CARGO_BIN_EXE_fief")).arg("exec").args(words).env("FIEF_SCOPE", &place.scope);
    place.namespace.enter(&mut command);
    command
}

#[test]
fn a_service_keeps_its_process_its_cgroup_and_its_name_over_restarts() {
    let Some(place) = Place::new() else { return };
    place.apply();
    // a pin is a file of its own each time that its link is made
    let attached = || std::fs::metadata(format!("/sys/fs/bpf/{}/links/recv_follows", place.scope)).map(|pin| pin.ino());
    let mut first = None;
    for round in 0..2 {
        let service = Cgroup::new(&format!("service-{round}")).expect("a cgroup");
        let words = ["--here", "--container", "shop/gold", "--argv0", "renamed", "--", "bash", "-c", SERVER];
        let server = Server::start(in_cgroup(&place, service.path(), &words));
        assert_eq!(server.said, format!("{} renamed\n", server.child.id()));
        wait_until(SOON, || place.threads("shop/gold") >= 1).expect("it is at home");
        assert_eq!(place.units(), [service.path().to_str().expect("text")]);
        let now = attached().expect("a unit is managed");
        assert_eq!(
            now,
            *first.get_or_insert(now),
            "the machine's tracepoints stay over a restart, which does not wait for them"
        );
        assert_eq!(server.stop(), Some(9));
    }
    // the first one's cgroup was forgotten by the second start
    let applied = place.apply();
    assert_eq!(applied.stdout.matches("is forgotten").count(), 1, "{applied:?}");
}

/// As a service that is not root is managed by `fief unit`: by a command in its cgroup that goes before its own processes.
#[test]
fn who_starts_in_a_managed_cgroup_later_is_at_home_without_any_right() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let service = Cgroup::new("prepared").expect("a cgroup");
    let words = ["--here", "--container", "shop/gold", "--", "true"];
    assert!(in_cgroup(&place, service.path(), &words).status().expect("sh starts").success());
    let mut later = Command::new("sh");
    later.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec setpriv --reuid 65534 --clear-groups sh -c \"$1\""]);
    later.arg(service.path()).arg(SERVER);
    let server = Server::start(later);
    wait_until(SOON, || place.threads("shop/gold") >= 1).expect("it is at home");
    assert_eq!(server.stop(), Some(9));
}

/// systemd ignores SIGPIPE for services (`IgnoreSIGPIPE=`), as programs in Rust do for themselves.
#[test]
fn a_service_ignores_and_blocks_the_signals_that_systemd_says() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let cases = [
        (&["env", "--ignore-signal=PIPE", "--block-signal=USR1"][..], true),
        (&["env", "--default-signal=PIPE"], false),
    ];
    for (by, is_set) in cases {
        let service = Cgroup::new("signals").expect("a cgroup");
        let words = ["--here", "--container", "shop", "--", "cat", "/proc/self/status"];
        let ended = Ended::from(in_cgroup_by(&place, service.path(), by, &words).output().expect("sh starts"));
        assert_eq!(ended.code, 0, "{ended:?}");
        for (field, signal) in [("SigIgn:", Signal::SIGPIPE), ("SigBlk:", Signal::SIGUSR1)] {
            let line = ended.stdout.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
            let set = u64::from_str_radix(line.trim(), 16).expect("a number");
            assert_eq!(set & 1 << (signal as i32 - 1) != 0, is_set, "{by:?} {field}{line}");
        }
    }
}

#[test]
fn a_failing_clean_up_does_not_hide_the_servers_code() {
    let Some(place) = Place::new() else { return };
    place.apply();
    // what tells which cgroups are managed
    let units = format!("/sys/fs/bpf/{}/maps/units", place.scope);
    let script = "mv \"$0\" \"$0-away\" && exit 7";
    let ended = exec(&place, &["--", "sh", "-c", script, &units]);
    std::fs::rename(format!("{units}-away"), &units).expect("it is there");
    assert_eq!(ended.code, 7, "{ended:?}");
    assert!(ended.stderr.contains("cannot open the map units"), "{ended:?}");
}

#[test]
fn the_group_of_a_server_goes_with_it() {
    let (Some(place), Ok(hierarchy)) = (Place::new(), Hierarchy::find()) else { return };
    let shop = policy(&SHOP.replace("version = 1", "version = 1\nschedule = \"cgroup\""));
    let applied = place.fief().args(["apply", "--containers", "256"]).arg(shop.path()).ends();
    assert_eq!(applied.code, 0, "{applied:?}");
    let own = hierarchy.top.join("fief").join(&place.scope);
    let before = below(&own);
    let listed = exec(&place, &["--container", "shop", "--", "find", own.to_str().expect("text"), "-name", "@*"]);
    assert!(listed.code == 0 && !listed.stdout.is_empty(), "it had a group: {listed:?}");
    assert_eq!(below(&own), before);
}

/// All folders below one.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> =
        entries.filter(|path| path.is_dir()).flat_map(|path| [below(&path), vec![path]].concat()).collect();
    found.sort();
    found
}
