// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a policy at the command line: what is said when it comes into force, and when it is taken down.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use fief_control::{Hierarchy, Version};
use fief_testkit::{Cgroup, Feature, NetNs, Process, require};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::place::Place;
use crate::started::{Ended, SHOP, fief_in, policy};

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
fn apply_ends_with_who_serves_the_listeners() {
    let Some(place) = Place::new() else { return };
    let shop = policy(SHOP);
    let apply = || place.fief().args(["apply", "--containers", "256"]).arg(shop.path()).ends();
    let alone = apply();
    assert!(alone.stdout.contains("\nmode: enforce\n"), "{alone:?}");
    assert!(alone.stdout.contains("\nkept, not enforced: shop: cpu.share\n"), "{alone:?}");
    assert!(alone.stdout.contains("\nproblem: web: nothing listens on 0.0.0.0:80;"), "{alone:?}");

    let bind = || TcpListener::bind("0.0.0.0:80").expect("nobody else is in the namespace");
    let _listener = place.namespace.run(bind).expect("a namespace");
    let (served, pid) = (apply(), std::process::id());
    assert!(served.stdout.contains("\nweb on 0.0.0.0:80: "), "{served:?}");
    assert!(served.stdout.contains(&format!(" (process {pid}, not managed)\n")), "{served:?}");
    assert!(!served.stdout.contains("nothing listens"), "{served:?}");
    let brief = place.fief().args(["status", "--brief"]).ends();
    let of_brief = brief.stdout.split_once('\n').expect("a heading").1;
    assert!(served.stdout.ends_with(of_brief) && of_brief.starts_with("mode: "), "{brief:?}");

    let json = place.fief().args(["apply", "--json"]).arg(shop.path()).ends();
    let object = json.objects().remove(0);
    assert_eq!((json.objects().len(), json.stderr.as_str()), (1, ""));
    let listener = &object["status"]["listeners"][0];
    assert_eq!((&listener["listener"], &listener["servers"][0]["pid"]), (&json!("web"), &json!(pid)), "{object}");
}

#[test]
fn status_tells_what_is_in_force_since_when_and_by_whom() {
    let Some(place) = Place::new() else { return };
    let shop = policy(SHOP);
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later").as_secs();
    assert_eq!(place.fief().args(["apply", "--containers", "256"]).arg(shop.path()).ends().code, 0);
    let shown = || {
        let mut status = place.fief().args(["status", "--json"]).ends().objects().remove(0);
        // a busy machine may have a switch that no program saw
        let failures = status.as_object_mut().and_then(|status| status.remove("failures"));
        assert!(failures.is_some_and(|failures| failures.is_object()), "{status}");
        status
    };
    let status = shown();
    let sum = Ended::from(Command::new("sha256sum").arg(shop.path()).output().expect("it starts"));
    assert_eq!(status["sha256"].as_str(), sum.stdout.split(' ').next(), "{status}");
    assert!(status["since_s"].as_u64().expect("a time") >= before, "{status}");
    let with = status["applied_with"].as_str().expect("words");
    assert!(with.contains(" apply ") && with.ends_with(shop.path().to_str().expect("text")), "{status}");
    assert_eq!(status["applied_file"].as_str(), shop.path().to_str(), "{status}");
    assert!(status["applied_by"].as_str().expect("a user").starts_with("root"), "{status}");
    assert_eq!(status["build"], status["own_build"], "{status}");
    let page = place.fief().arg("status").ends().stdout;
    assert!(page.contains(&format!("\nsha256 {}\n", status["sha256"].as_str().expect("a hash"))), "{page}");
    // a policy that does not come into force leaves what is known of the other
    let wrong = policy(
        &SHOP
            .replace("version = 1", "version = 1\n[front]\ninterfaces = [\"nowhere0\"]")
            .replace("address =", "admit = true\naddress ="),
    );
    assert_eq!(place.fief().arg("apply").arg(wrong.path()).ends().code, 1);
    assert_eq!(shown(), status);
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
fn down_says_what_it_took_down_and_then_that_nothing_is_in_force() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let down = place.fief().arg("down").ends();
    assert_eq!(down.code, 0, "{down:?}");
    assert_eq!(down.stdout, "took down 2 containers, 1 listener (web) and 0 managed units\n");
    let again = place.fief().arg("down").ends();
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.stdout.starts_with("nothing is in force"), "{again:?}");
    let object = place.fief().args(["down", "--json"]).ends().objects().remove(0);
    assert_eq!((&object["was_in_force"], &object["containers"]), (&json!(false), &json!(0)), "{object}");
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
fn a_policy_that_takes_a_units_container_is_refused_with_the_command_that_helps() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let unit = Cgroup::new("homeless").expect("a cgroup");
    let folder = unit.path().to_str().expect("text");
    assert_eq!(place.fief().args(["manage", folder, "--container", "shop/gold"]).ends().code, 0);
    let other = policy(&SHOP.replace("shop/gold", "shop/silver"));
    let apply = |words: &[&str]| place.fief().arg("apply").args(words).arg(other.path()).ends();
    let command = ["manage", "--container", "shop", folder];
    let before = all_of(&place);
    let [refused, dry] = [&[][..], &["--dry-run"]].map(apply);
    assert!(refused.code == 1 && refused.stdout.is_empty(), "{refused:?}");
    for help in
        [format!("\n  {folder} is at home in shop/gold: `fief {}`", command.join(" ")), "`fief apply --let-go".into()]
    {
        assert!(refused.stderr.contains(&help), "{help}: {refused:?}");
    }
    assert_eq!((dry.code, &dry.stderr), (1, &refused.stderr), "{dry:?}");
    assert!(
        dry.stdout.contains("would refuse it") && dry.stdout.contains(&format!("let go: unit {folder} ")),
        "{dry:?}"
    );
    let object = apply(&["--dry-run", "--json"]).objects().remove(0);
    assert_eq!((&object["refused"], &object["units"][0]["home"]), (&json!(true), &json!(null)), "{object}");
    assert_eq!(all_of(&place), before);
    // as it is told: then the policy comes into force, and back again
    assert_eq!(place.fief().args(command).ends().code, 0);
    assert_eq!([&[][..], &["--dry-run"]].map(|words| apply(words).code), [0, 0]);
    place.apply();
    assert_eq!(place.fief().args(["manage", folder, "--container", "shop/gold"]).ends().code, 0);
    let one = |name: &str| apply(&["--dry-run", &format!("--let-go={name}")]).code;
    assert_eq!((one(folder), one("another.service")), (0, 1), "of one unit the others are not let go");
    assert_eq!(apply(&["--dry-run", "--let-go"]).code, 0);
    let applied = apply(&["--let-go"]);
    let told = format!("\nproblem: {folder} is at home in shop/gold, which the policy no longer names");
    assert!(
        applied.stdout.contains(&told) && applied.stdout.contains(&format!("`fief manage {folder} --container")),
        "{applied:?}"
    );
    assert_eq!(place.fief().args(["manage", folder, "--container", "shop/silver"]).ends().code, 0);
    let status = place.fief().arg("status").ends();
    assert!(!status.stdout.contains("at home in"), "{status:?}");
}

/// One that the front door wants to be 1.
const SYSCTL: &str = "/proc/sys/net/ipv4/conf/lo/forwarding";

fn read_in(place: &Place, file: &str) -> String {
    let mut command = Command::new("cat");
    place.namespace.enter(command.arg(file));
    String::from_utf8(command.output().expect("cat starts").stdout).expect("text").trim().to_owned()
}

#[test]
fn down_gives_back_the_sysctls_of_an_apply_that_was_killed_early() {
    let Some(place) = Place::new() else { return };
    place.namespace.sysctl("net.ipv4.conf.lo.forwarding", "1").expect("set");
    let netns = std::fs::metadata(place.namespace.path()).expect("it is there").ino();
    let folder = Path::new("/run/fief").join(&place.scope);
    std::fs::create_dir_all(&folder).expect("made");
    let note = format!("netns = {netns}\nnet.ipv4.conf.lo.forwarding = 0\n");
    std::fs::write(folder.join("sysctls"), note).expect("written");
    let down = place.fief().arg("down").ends();
    assert!(down.code == 0 && down.stdout.starts_with("nothing is in force"), "{down:?}");
    assert_eq!(read_in(&place, SYSCTL), "0");
    assert!(!folder.exists());
}

/// A kill came after its first step, and its number is another process's by now, as this one's.
#[test]
fn what_a_killed_down_has_left_is_removed_whoever_has_its_number() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let pins = |name: &str| Path::new("/sys/fs/bpf").join(name);
    let left = pins(&format!("{}~{}", place.scope, std::process::id()));
    std::fs::rename(pins(&place.scope), &left).expect("as it takes them out of force");
    let down = place.fief().arg("down").ends();
    assert!(down.code == 0 && down.stdout.starts_with("nothing is in force"), "{down:?}");
    assert!(!left.exists());
}

#[test]
fn what_cannot_be_counted_is_taken_down_all_the_same() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let pins = Path::new("/sys/fs/bpf").join(&place.scope);
    std::fs::remove_file(pins.join("maps/units")).expect("it tells which cgroups are managed");
    let down = place.fief().arg("down").ends();
    assert_eq!(down.code, 0, "{down:?}");
    assert!(!pins.exists());
}

/// The last step of an apply fails: groups of an earlier one are in a hierarchy that is read-only now.
#[test]
fn a_policy_is_in_force_if_what_is_behind_that_fails_and_says_so() {
    let (Some(place), Ok(hierarchy)) = (Place::new(), Hierarchy::find()) else { return };
    if hierarchy.version == Version::V2 {
        return; // there is nothing to remove before there are groups
    }
    let links = || place.namespace.ip("-o link").expect("links");
    let before = (read_in(&place, SYSCTL), links());
    let left = hierarchy.top.join("fief").join(&place.scope);
    std::fs::create_dir_all(&left).expect("made");
    let queued = policy(&SHOP.replace("classes = \"listeners\"", "queue = true"));
    let script =
        "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && exec \"$0\" apply --containers 256 \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fief")]).arg(&hierarchy.top).arg(queued.path());
    place.namespace.enter(command.env("FIEF_SCOPE", &place.scope));
    let applied = Ended::from(command.output().expect("unshare starts"));
    std::fs::remove_dir(&left).expect("it is empty");
    // other installations may be there
    let _ = std::fs::remove_dir(hierarchy.top.join("fief"));
    let told = format!("{}{}", applied.stdout, applied.stderr);
    assert!(applied.code == 0 && told.contains("cannot remove the cgroup"), "{applied:?}");
    assert!(!place.fief().arg("status").ends().stderr.contains("nothing is in force"));
    assert_ne!(read_in(&place, SYSCTL), before.0);
    assert_ne!(links(), before.1);
    assert_eq!(place.fief().arg("down").ends().code, 0);
    assert_eq!((read_in(&place, SYSCTL), links()), before);
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

/// What is in force, as far as any command lists it, and every file of it.
fn all_of(place: &Place) -> Vec<String> {
    let mut all: Vec<String> =
        [&["ls", "--json"][..], &["status", "--json"], &["explain", "--from", "10.1.0.1", "--json"]]
            .map(|words| place.fief().args(words).ends().stdout)
            .into();
    // what is known of a client comes with the time of the reading
    let explained = all[2].split_once(",\"live\":").map(|(policy, _)| policy.to_owned());
    all[2] = explained.unwrap_or_else(|| all[2].clone());
    // counts go on, whoever looks
    if let Ok(mut status) = serde_json::from_str::<serde_json::Value>(&all[1]) {
        status.as_object_mut().and_then(|status| status.remove("failures"));
        all[1] = status.to_string();
    }
    for root in ["/sys/fs/bpf", "/run/fief"] {
        let found =
            Command::new("find").arg(format!("{root}/{}", place.scope)).args(["-printf", "%p %s %T@\n"]).output();
        all.push(String::from_utf8(found.expect("find starts").stdout).expect("text"));
    }
    let lock = std::path::PathBuf::from(format!("/run/fief/{}.lock", place.scope));
    all.push(lock.exists().to_string());
    all
}

#[test]
fn a_dry_run_tells_what_would_change_and_changes_nothing() {
    let Some(place) = Place::new() else { return };
    let other = policy(
        &SHOP
            .replace("shop/gold", "shop/silver")
            .replace("[listener.web]", "[listener.shop]")
            .replace("listener.web.", "listener.shop."),
    );
    let dry = |words: &[&str]| place.fief().args(["apply", "--dry-run"]).args(words).arg(other.path()).ends();
    let empty = all_of(&place);
    let first = dry(&[]);
    assert_eq!((first.code, all_of(&place)), (0, empty), "{first:?}");
    assert!(first.stdout.contains("nothing is in force now\nmade: shop, shop/silver\n"), "{first:?}");

    place.apply();
    let before = all_of(&place);
    let (told, object) = (dry(&[]), dry(&["--json"]).objects().remove(0));
    assert_eq!(all_of(&place), before);
    assert_eq!(told.code, 0, "{told:?}");
    for line in [
        "made: shop/silver",
        "kept: shop",
        "ended: shop/gold",
        "new listener: shop on 0.0.0.0:80 (nobody listens there now)",
    ] {
        assert!(told.stdout.lines().any(|own| own == line), "{line} in {}", told.stdout);
    }
    let listeners = object["listeners"].as_array().expect("listeners");
    let changes: Vec<_> = listeners.iter().map(|of| (&of["listener"], &of["change"])).collect();
    assert_eq!(changes, [(&json!("shop"), &json!("new")), (&json!("web"), &json!("lost"))]);
    assert_eq!(object["ended"], json!([{ "container": "shop/gold", "held": false, "below": "shop" }]));

    let same = policy(SHOP);
    let same = place.fief().args(["apply", "--dry-run"]).arg(same.path()).ends();
    assert!(same.stdout.ends_with("`fief apply` would change nothing\n"), "{same:?}");
}

#[test]
fn apply_from_another_network_namespace_asks_first() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let shop = policy(SHOP);
    let other = NetNs::new("cli").expect("a namespace");
    let apply = |words: &[&str]| {
        let mut fief = fief_in(&place.scope).arg("apply").args(words).arg(shop.path());
        other.enter(fief.command());
        fief.ends()
    };
    for words in [&[][..], &["--dry-run"]] {
        let refused = apply(words);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains(&format!("(/run/netns/{})", place.namespace.name())), "{refused:?}");
        assert!(refused.stderr.contains("`fief apply --here`"), "{refused:?}");
    }
    assert_eq!(apply(&["--here"]).code, 0);
    assert_eq!(apply(&[]).code, 0);
}
