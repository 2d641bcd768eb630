// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What needs a kernel and root: each test has an installation and a network namespace of its own.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fief_testkit::{NetNs, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::agent::{Agent, GROUP, nobodys};
use crate::place::Place;
use crate::started::{Ended, SHOP, for_everybody, policy};

#[test]
fn what_the_kernel_lacks_is_named_with_its_remedy() {
    let Some(place) = Place::new() else { return };
    let shop = policy(SHOP);
    let hidden = r#"mount -t tmpfs none /sys/kernel/btf && exec "$@""#;
    let ended = Command::new("unshare")
        .args(["--mount", "sh", "-c", hidden, "sh", env!("CARGO_BIN_EXE_fief"), "apply"])
        .arg(shop.path())
        .env("FIEF_SCOPE", &place.scope)
        .output()
        .expect("unshare runs");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        said.contains("/sys/kernel/btf/vmlinux is missing; use a kernel built with CONFIG_DEBUG_INFO_BTF"),
        "{said}"
    );
    assert!(place.fief().arg("ls").ends().stderr.contains("nothing is in force"));
}

#[test]
fn reads_show_what_is_in_force_until_it_is_taken_down() {
    let Some(place) = Place::new() else { return };
    assert_eq!(place.apply().objects()[0]["made"], json!(["shop", "shop/gold"]));
    assert_eq!(place.apply().objects()[0]["kept"], json!(["shop", "shop/gold"]));
    assert!(place.containers().starts_with(&["shop".to_owned(), "shop/gold".to_owned()]));

    let shown = place.shown("shop");
    assert_eq!((&shown["attributes"]["cpu_share_ppm"], &shown["policy"]), (&json!(600_000), &json!(true)));
    let system = place.shown("system");
    assert!(system["kinds"].as_array().is_some_and(|kinds| kinds.len() > 10), "{system}");

    let down = place.fief().args(["down", "--json"]).ends();
    assert_eq!(down.objects()[0]["still_held"], 0, "{down:?}");
    assert_eq!(place.fief().arg("ls").ends().code, 1);
}

#[test]
fn usage_counts_up_from_reading_to_reading() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let _managed = place.manage("shop");
    let words = ["usage", "--json", "--interval", "0.05", "--count", "3", "idle", "root"];
    // what a CPU seemed to do that stood still is taken back, and may be more than the machine did since
    let grows = wait_until(Duration::from_secs(20), || {
        let readings = place.fief().args(words).ends().objects();
        assert_eq!(readings.len(), 6);
        let number = |at: usize, name: &str| readings[at][name].as_u64().expect("an integer");
        assert!(number(0, "taken_ns") < number(2, "taken_ns") && number(2, "taken_ns") < number(4, "taken_ns"));
        let busy = |at: usize| number(at, "thread_ns") + number(at + 1, "thread_ns");
        busy(0) < busy(4)
    });
    assert!(grows.is_ok(), "the machine idles or runs");
}

#[test]
fn where_no_cpu_time_is_charged_every_reader_says_so() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let interval = ["--interval", "0.05", "--count", "1"];
    let says = |words: &[&str]| place.fief().args(words).ends().stdout.contains("\nno CPU time is charged: ");
    let readers = || {
        let top = says(&[&["top"], &interval[..]].concat());
        let usage = [says(&["usage"]), says(&[&["usage"], &interval[..]].concat())];
        [top, usage[0], usage[1], says(&["show", "root"]), says(&["status"])]
    };
    let told = || [place.shown("shop")["cpu_charged"].clone(), place.status()["cpu_charged"].clone()];
    assert_eq!((readers(), told()), ([true; 5], [json!(false), json!(false)]));
    let managed = place.manage("shop");
    assert_eq!((readers(), told()), ([false; 5], [json!(true), json!(true)]));
    drop(managed);
    place.apply();
    assert_eq!((readers(), told()), ([true; 5], [json!(false), json!(false)]));
}

/// Ends with its test.
struct Busy(std::process::Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn explain_tells_by_whom_a_container_is_charged() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let mut busy = Command::new("sh");
    let busy = Busy(busy.args(["-c", "while :; do :; done"]).spawn().expect("it starts"));
    let words = ["explain", "--charge", "root", "--interval", "0.3", "--count", "3", "--json"];
    let told = place.fief().args(words).ends().objects();
    let its: Vec<_> = told.iter().filter(|object| object["process"] == busy.0.id()).collect();
    let is_told = |object: &&serde_json::Value| {
        object["record"] == "charge"
            && object["why"] == "unmanaged"
            && object["name"] == "sh"
            && object["container"] == "root"
    };
    assert!(!its.is_empty() && its.iter().all(is_told), "{told:#?}");
    let charged: u64 = its.iter().filter_map(|object| object["charged_ns"].as_u64()).sum();
    assert!(charged > 10_000_000, "{charged} ns in 0.9 s: {told:#?}");

    let page = place.fief().args(["explain", "--charge", "root"]).ends();
    assert!(
        page.stdout.contains(" of CPU time in ") && page.stdout.contains(&format!("sh[{}]", busy.0.id())),
        "{page:?}"
    );
    let attached = Path::new("/sys/fs/bpf").join(&place.scope).join("links/switch_charges");
    assert!(!attached.exists(), "nothing is managed, and nobody watches any more");
    let wrong = place.fief().args(["explain", "--charge", "shop/gol"]).ends();
    assert!(wrong.code == 1 && wrong.stderr.contains("did you mean shop/gold?"), "{wrong:?}");
    let alone = place.fief().args(["explain", "web", "--charge", "shop"]).ends();
    assert_eq!(alone.code, 2, "a listener is charged nothing: {alone:?}");
}

#[test]
fn explain_tells_which_clients_cost_most_and_that_none_did() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let words = ["explain", "--costliest", "--interval", "0.1", "--count", "2"];
    let page = place.fief().args(words).ends();
    assert_eq!((page.code, page.stderr.as_str()), (0, ""));
    let lines: Vec<_> = page.stdout.lines().filter(|line| line.contains(" clients cost 0 of CPU time in ")).collect();
    assert_eq!(lines.len(), 2, "{page:?}");
    let told = place.fief().args(words).arg("--json").ends().objects();
    let kinds: Vec<_> = told.iter().map(|object| object["kind"].as_str().unwrap_or_default()).collect();
    assert_eq!(kinds, ["client", "network", "client", "network"], "{told:?}");
    assert!(told.iter().all(|object| object["since_ns"] == told[0]["since_ns"]), "it is counted on: {told:?}");
    assert!(told[0]["to_ns"] == told[2]["from_ns"] && told[0]["all_charged_ns"] == 0, "{told:?}");
    for wrong in [&["--charge", "root"][..], &["--follow"], &["web"]] {
        assert_eq!(place.fief().args(["explain", "--costliest"]).args(wrong).ends().code, 2, "{wrong:?}");
    }
    assert_eq!(place.fief().args(["explain", "--most", "5"]).ends().code, 2, "of what?");
}

#[test]
fn top_gives_the_terminal_back() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let top = format!("stty cols 100 rows 24; exec {} top --interval 0.05 --count 2", env!("CARGO_BIN_EXE_fief"));
    let mut script = Command::new("script");
    script.args(["-qec", &top, "/dev/null"]).env("FIEF_SCOPE", &place.scope).env("TERM", "xterm").stdin(Stdio::null());
    let output = script.output().expect("script(1) starts");
    let screen = String::from_utf8_lossy(&output.stdout);
    let (taken, given_back) = (screen.find("\x1b[?1049h"), screen.rfind("\x1b[?1049l"));
    assert!(taken.is_some() && taken < given_back, "{screen:?}");
    assert!(screen.contains("gold") && screen.ends_with("\x1b[?25h"), "{screen:?}");
    assert!(output.status.success());
}

#[test]
fn top_prints_lines_where_there_is_no_terminal() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let ended = place.fief().args(["top", "--interval", "0.05", "--count", "2"]).ends();
    assert_eq!(ended.code, 0, "{ended:?}");
    let headings = ended.stdout.lines().filter(|line| line.starts_with("CONTAINER")).count();
    assert_eq!((headings, ended.stdout.contains('\x1b')), (2, false), "{ended:?}");
}

#[test]
fn run_ends_with_the_servers_code_and_leaves_nothing() {
    let Some(place) = Place::new() else { return };
    let shop = policy(SHOP);
    let run = |script: &str| place.fief().arg("run").arg(shop.path()).args(["--", "sh", "-c", script]).ends();
    assert_eq!(run("exit 7").code, 7);
    assert_eq!(run("kill -KILL $$").code, 128 + 9);
    assert_eq!(place.fief().arg("ls").ends().code, 1);
}

#[test]
fn run_passes_signals_on() {
    let Some(place) = Place::new() else { return };
    let shop = policy(SHOP);
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = place.fief().arg("run").arg(shop.path()).args(["--", "sh", "-c", script]);
    let mut run = run.command().stdout(Stdio::piped()).spawn().expect("fief starts");
    let mut line = String::new();
    BufReader::new(run.stdout.take().expect("a pipe")).read_line(&mut line).expect("the server is ready");
    kill(Pid::from_raw(run.id() as i32), Signal::SIGTERM).expect("our child");
    assert_eq!(run.wait().expect("it ends").code(), Some(9));
}

#[test]
fn a_running_process_is_managed_and_bound() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep starts");
    let pid = sleeper.id().to_string();
    let managed = place.fief().args(["manage", &pid, "--container", "shop", "--json"]).ends();
    let bound = place.fief().args(["bind", &pid, "shop/gold", "--json"]).ends();
    let unknown = place.fief().args(["bind", &pid, "shop/silver"]).ends();
    let holds = wait_until(Duration::from_secs(10), || place.threads("shop/gold") == 1);
    sleeper.kill().expect("our child");
    sleeper.wait().expect("it ends");
    assert_eq!((managed.code, &managed.objects()[0]["container"]), (0, &json!("shop")), "{managed:?}");
    assert_eq!((bound.code, &bound.objects()[0]["threads"]), (0, &json!(1)), "{bound:?}");
    assert_eq!(unknown.code, 1);
    holds.expect("the thread is bound");
}

/// One connection a second from everywhere, to a listener of a namespace that has one interface with a neighbour.
const GUARDED: &str = r#"
version = 1
[container.all]
[listener.web]
address = "0.0.0.0:80"
[[listener.web.client]]
from = ["any"]
container = "all"
syn = { rate = 1, burst = 1 }
"#;

#[test]
fn a_command_in_another_pid_namespace_lets_go_of_nothing() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep starts");
    let pid = sleeper.id().to_string();
    assert_eq!(place.fief().args(["bind", &pid, "shop/gold"]).ends().code, 0);
    // it would be the only holder now
    let other = policy(SHOP.replace("shop/gold", "shop/silver").as_str());
    assert_eq!(place.fief().arg("apply").arg(other.path()).ends().code, 0);

    let inside = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_fief")]).args(words);
        command.env("FIEF_SCOPE", &place.scope);
        place.namespace.enter(&mut command);
        let ended = command.output().expect("unshare runs");
        (ended.status.code(), String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned())
    };
    let (code, said) = inside(&["apply", other.path().to_str().expect("UTF-8")]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("PID namespace"), "{said}");
    assert!(place.containers().contains(&"shop/gold".to_owned()), "{:?}", place.containers());
    // there is no such process inside
    let (code, said) = inside(&["bind", &pid, "shop/silver"]);
    assert_eq!(code, Some(1), "{said}");
    // nor is the run that is in force dead, whose process has another number there (core.md C39)
    let note = Path::new("/run/fief").join(&place.scope).join("run.pid");
    std::fs::write(&note, &pid).expect("written");
    let run = ["run", other.path().to_str().expect("UTF-8"), "--", "true"];
    let (code, said) = inside(&run);
    assert!(code == Some(125) && said.contains("in force already"), "{said}");
    assert_eq!(inside(&["apply", run[1]]).0, Some(0));
    assert!(note.exists() && place.containers().contains(&"shop/silver".to_owned()));
    sleeper.kill().expect("sleep is there");
    sleeper.wait().expect("sleep is there");
}

#[test]
fn what_is_kept_of_a_policy_is_roots_alone_whatever_the_umask() {
    let Some(place) = Place::new() else { return };
    let (shop, folder) = (policy(SHOP), Path::new("/run/fief").join(&place.scope));
    let mode = || std::fs::metadata(&folder).expect("there").mode() & 0o7777;
    let applied_under = |umask: &str| {
        let script = "umask \"$1\" && exec \"$0\" apply --containers 256 \"$2\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_fief"), umask]).arg(shop.path());
        place.namespace.enter(command.env("FIEF_SCOPE", &place.scope));
        let applied = Ended::from(command.output().expect("sh starts"));
        assert_eq!(applied.code, 0, "{applied:?}");
    };
    applied_under("0");
    assert_eq!(mode(), 0o700);
    // as an older version has left it
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("set");
    applied_under("022");
    assert_eq!(mode(), 0o700);
}

/// The first line of one who follows, while clients are refused.
fn first_told(mut follow: Command, clients: &NetNs) -> serde_json::Value {
    let mut follow = follow.stdout(Stdio::piped()).spawn().expect("fief starts");
    let mut told = BufReader::new(follow.stdout.take().expect("a pipe"));
    // until it follows, what is refused is not told; each second one more is
    let knock = || {
        let to = "10.99.0.1:80".parse().expect("an address");
        let _ = std::net::TcpStream::connect_timeout(&to, Duration::from_millis(50));
    };
    let ended = wait_until(Duration::from_secs(20), || {
        clients.run(|| (0..3).for_each(|_| knock())).expect("in the namespace");
        follow.try_wait().expect("our child").is_some()
    });
    if ended.is_err() {
        follow.kill().expect("our child");
    }
    let mut line = String::new();
    told.read_line(&mut line).expect("a line");
    ended.expect("it was told");
    serde_json::from_str(&line).expect("an object")
}

#[test]
fn explain_counts_what_was_refused_and_tells_it_as_it_happens() {
    let Some(place) = Place::new() else { return };
    let clients = NetNs::new("clients").expect("a namespace");
    let link = format!("link add sv type veth peer name cv netns {}", clients.name());
    place.namespace.ip(&link).expect("a pair of interfaces");
    for (namespace, interface, address) in [(&place.namespace, "sv", "10.99.0.1/24"), (&clients, "cv", "10.99.0.2/24")]
    {
        namespace.ip(&format!("addr add {address} dev {interface}")).expect("an address");
        namespace.ip(&format!("link set {interface} up")).expect("up");
    }
    let file = policy(GUARDED);
    let applied = place.fief().args(["apply", "--json", "--containers", "256"]).arg(file.path()).ends();
    assert_eq!(applied.code, 0, "{applied:?}");
    let listener = place.namespace.run(|| std::net::TcpListener::bind("10.99.0.1:80").expect("a listener"));
    let _listener = listener.expect("in the namespace");

    let words = ["explain", "web", "--follow", "--json", "--count", "1"];
    let folder = tempfile::tempdir().expect("a folder");
    let program = for_everybody(folder.path());
    let _agent = Agent::start(&place, &["--group", GROUP]);
    let by_root = std::mem::replace(place.fief().args(words).command(), Command::new("true"));
    for follow in [by_root, nobodys(&place, &program, true, &words)] {
        let notice = first_told(follow, &clients);
        assert_eq!((&notice["reason"], &notice["rule"]), (&json!("syn-rate"), &json!(1)), "{notice}");
        assert_eq!((&notice["source"], &notice["destination_port"]), (&json!("10.99.0.2"), &json!(80)), "{notice}");
    }

    let objects = place.fief().args(["explain", "--json"]).ends().objects();
    let count = |reason: &str| {
        let verdict = objects.iter().find(|object| object["record"] == "verdict" && object["reason"] == reason);
        verdict.and_then(|verdict| verdict["count"].as_u64()).unwrap_or(0)
    };
    assert!(count("syn-taken") >= 1 && count("syn-rate") >= 1, "{objects:?}");
    assert_eq!(objects[0]["interfaces"], json!(["sv"]));
    let shown = place.shown("all");
    assert!(shown["verdicts"].as_array().is_some_and(|verdicts| verdicts.len() >= 2), "{shown}");
    let dry = place.fief().args(["explain", "--from", "10.99.0.2", "--json"]).ends().objects().remove(0);
    assert_eq!((&dry["client_rule"], &dry["container"]), (&json!(1), &json!("all")), "the policy in force");
    assert_eq!(
        (&dry["live"]["guarded"], &dry["live"]["rates"][0]["of"]),
        (&json!(true), &json!("client-rule")),
        "{dry}"
    );
    let page = place.fief().args(["explain", "--from", "10.99.0.2"]).ends().stdout;
    assert!(page.contains("shared by all that it matches") && page.contains("proven"), "{page}");

    let mut follow = place.fief().args(["explain", "--follow"]);
    let follow = follow.command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("fief starts");
    let waits = || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", follow.id())).unwrap_or_default();
        maps.contains("bpf-map")
    };
    wait_until(Duration::from_secs(20), waits).expect("it reads notices");
    assert_eq!(place.fief().args(["down"]).ends().code, 0);
    let ended = follow.wait_with_output().expect("our child");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("nothing is in force"), "{ended:?}");
}
