// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent as its readers meet it: scrapers, users without root, and clients who mean ill.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fief_testkit::{Feature, require, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::place::Place;
use crate::started::{Ended, fief_in, for_everybody};

/// One that every Debian has.
pub const GROUP: &str = "games";

/// Ends with its test.
pub struct Agent {
    pub child: Child,
    pub socket: PathBuf,
    pub address: Option<SocketAddr>,
}

impl Agent {
    pub fn start(place: &Place, words: &[&str]) -> Self {
        let mut fief = Command::new(env!("CARGO_BIN_EXE_fief"));
        place.namespace.enter(fief.env("FIEF_SCOPE", &place.scope));
        Self::of(fief, words)
    }

    /// By a command that ends in `fief`.
    pub fn of(mut fief: Command, words: &[&str]) -> Self {
        fief.arg("agent").args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = fief.spawn().expect("fief starts");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it serves");
        assert!(line.starts_with("serves "), "{line}");
        let socket = line.trim_end().rsplit(" at ").next().expect("a path").into();
        let mut address = None;
        if words.contains(&"--listen") {
            line.clear();
            said.read_line(&mut line).expect("it serves");
            let at = line.trim_end().rsplit("http://").next().and_then(|url| url.strip_suffix("/metrics"));
            address = Some(at.and_then(|at| at.parse().ok()).unwrap_or_else(|| panic!("{line}")));
        }
        Self { child, socket, address }
    }

    /// The metrics.
    pub fn scrape(&self) -> String {
        scrape(self, "").1
    }

    /// What it says of a container's charges in a millisecond.
    pub fn charges(&self, container: &str) -> String {
        let question = format!("{{\"container\":\"{container}\",\"lasts\":{{\"secs\":0,\"nanos\":1000000}}}}");
        let stream = UnixStream::connect(&self.socket).expect("it serves");
        get(stream, "/charges", &format!("Question: {question}\r\n")).1
    }

    /// Of one line of its status in /proc.
    fn number(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.split_whitespace().find_map(|word| word.parse().ok()).expect("a number")
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs").count()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Head and body of an answer that ends with its connection.
fn get(mut stream: impl Read + Write, path: &str, headers: &str) -> (String, String) {
    stream.write_all(format!("GET {path} HTTP/1.0\r\n{headers}\r\n").as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    (head.to_owned(), body.to_owned())
}

fn scrape(agent: &Agent, headers: &str) -> (String, String) {
    get(UnixStream::connect(&agent.socket).expect("it serves"), "/metrics", headers)
}

/// What Prometheus' own tool finds wrong with it; `None`: it is not here.
fn complaints(metrics: &str) -> Option<String> {
    if !require(Feature::Promtool) {
        return None;
    }
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("it starts");
    promtool.stdin.take().expect("a pipe").write_all(metrics.as_bytes()).expect("it reads");
    let ended: Ended = promtool.wait_with_output().expect("it ends").into();
    Some(format!("{}{}", ended.stdout, ended.stderr))
}

#[test]
fn metrics_are_what_prometheus_takes() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["--listen", "127.0.0.1:0", "--textfile", folder.path().to_str().expect("text")];
    let mut agent = Agent::start(&place, &words);
    let (head, text) = scrape(&agent, "");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    for series in [
        "fief_in_force 1\n",
        "fief_container_cpu_seconds_total{container=\"shop/gold\",kind=\"thread\"} ",
        "fief_container_threads{container=\"shop\"} 0\n",
        "fief_core_errors_total{error=\"table_full\"} 0\n",
        "fief_containers_summed 0\n",
    ] {
        assert!(text.contains(series), "{series} in {text}");
    }
    if let Some(complaints) = complaints(&text) {
        assert_eq!(complaints, "", "{text}");
    }
    let (head, open) = scrape(&agent, "Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(open.ends_with("\n# EOF\n") && open.contains("# UNIT fief_container_cpu_seconds seconds\n"), "{open}");

    let address = agent.address.expect("it listens");
    let by_port = |path: &str, headers: &str| {
        let stream =
            place.namespace.run(|| TcpStream::connect(address)).expect("in the namespace").expect("it listens");
        get(stream, path, headers)
    };
    assert!(by_port("/metrics", "Host: localhost\r\n").1.contains("fief_in_force 1\n"));
    assert!(by_port("/metrics", "Host: evil.example\r\n").0.starts_with("HTTP/1.1 421 "));
    assert!(by_port("/snapshot", "").0.starts_with("HTTP/1.1 404 "), "names of all containers are for readers");

    let file = fs::read_to_string(folder.path().join("fief.prom")).expect("it is written at the start");
    assert!(file.contains("fief_in_force 1\n"), "{file}");
    if let Some(complaints) = complaints(&file) {
        assert_eq!(complaints, "");
    }
    kill(Pid::from_raw(agent.child.id() as i32), Signal::SIGTERM).expect("it runs");
    assert!(agent.child.wait().expect("our child").success());
    assert!(!folder.path().join("fief.prom").exists() && !agent.socket.exists(), "nothing of it is left");
    assert!(!agent.socket.with_extension("agent.lock").exists(), "nothing of it is left");
}

#[test]
fn an_agent_serves_whatever_is_in_force_and_nothing_else() {
    let Some(place) = Place::new() else { return };
    let agent = Agent::start(&place, &[]);
    assert!(scrape(&agent, "").1.contains("fief_in_force 0\n"));
    place.apply();
    assert!(scrape(&agent, "").1.contains("fief_in_force 1\n"));
    assert_eq!(place.fief().arg("down").ends().code, 0);
    wait_until(Duration::from_secs(10), || scrape(&agent, "").1.contains("fief_in_force 0\n")).expect("it is down");
}

#[test]
fn it_listens_to_this_machine_alone() {
    let Some(place) = Place::new() else { return };
    let ended = place.fief().args(["agent", "--listen", "0.0.0.0:9758"]).ends();
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("listen on 127.0.0.1"), "{ended:?}");
    let ended = place.fief().args(["agent", "--group", "no-such-group"]).ends();
    assert!(ended.stderr.contains("there is no group no-such-group; make it: groupadd"), "{ended:?}");
}

/// `fief` as somebody who is not root and, if a member, has the group of the agent beside their own.
/// `fief` of a user who is not root.
pub fn nobodys(place: &Place, program: &Path, is_member: bool, words: &[&str]) -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", "65534", "--regid", "65534", "--inh-caps=-all"]);
    setpriv.args(if is_member { ["--groups", GROUP] } else { ["--groups", "65534"] });
    setpriv.arg(program).args(words).env("FIEF_SCOPE", &place.scope).stdin(Stdio::null());
    setpriv
}

fn as_nobody(place: &Place, program: &Path, is_member: bool, words: &[&str]) -> Ended {
    nobodys(place, program, is_member, words).output().expect("setpriv starts").into()
}

#[test]
fn members_of_the_group_read_and_others_do_not() {
    let Some(place) = Place::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let program = for_everybody(folder.path());
    place.apply();
    let read = |is_member, words: &[&str]| as_nobody(&place, &program, is_member, words);
    let without = read(true, &["ls"]);
    assert!(without.code == 1 && without.stderr.contains("no agent serves; become root"), "{without:?}");
    let unknown = read(true, &["status"]);
    assert_eq!((unknown.code, &unknown.stderr), (1, &without.stderr), "a policy is in force");

    let agent = Agent::start(&place, &["--group", GROUP]);
    assert_eq!(fs::metadata(&agent.socket).expect("there").permissions().mode() & 0o777, 0o660);
    let same = |words: &[&str]| (read(true, words).objects(), place.fief().args(words).ends().objects());
    let (by_agent, by_root) = same(&["ls", "--json"]);
    let paths = |objects: &[serde_json::Value]| objects.iter().map(|one| one["container"].clone()).collect::<Vec<_>>();
    assert_eq!(paths(&by_agent), paths(&by_root));
    let (mut by_agent, mut by_root) = same(&["status", "--json"]);
    for status in by_agent.iter_mut().chain(&mut by_root) {
        // which count on between the two
        status.as_object_mut().expect("an object").remove("failures").expect("it is told");
    }
    assert_eq!(by_agent, by_root);
    assert_eq!(read(true, &["usage", "shop", "--json"]).objects()[0]["container"], "shop");
    assert_eq!(read(true, &["show", "shop/gold", "--json"]).objects()[0]["container"], "shop/gold");
    assert_eq!(read(true, &["explain", "--json"]).objects()[0]["record"], "front");
    let costs = read(true, &["explain", "--costliest", "--json", "--interval", "0.1", "--count", "1"]).objects();
    assert_eq!((&costs[0]["record"], &costs[0]["kind"]), (&"costs".into(), &"client".into()), "{costs:?}");
    let charge = |container, more: &[&str]| read(true, &[&["explain", "--charge", container], more].concat());
    let charges = charge("system", &["--json", "--interval", "0.1", "--count", "2"]).objects();
    assert_eq!((&charges[0]["record"], &charges[0]["container"]), (&"charge".into(), &"system".into()), "{charges:?}");
    let mut looks: Vec<_> = charges.iter().map(|charge| charge["from_ns"].as_u64().expect("a time")).collect();
    looks.dedup();
    assert_eq!(looks.len(), 2, "{charges:?}");
    let unknown = charge("shop/gol", &[]);
    assert!(unknown.code == 1 && unknown.stderr.contains("did you mean shop/gold?"), "{unknown:?}");
    let long = charge("shop", &["--interval", "6"]);
    assert!(long.code == 2 && long.stderr.contains("5 s at a time"), "{long:?}");
    let explain = ["explain", "--from", "10.1.2.3", "--request", "GET /x", "--header", "User-Agent: \u{e9}", "--json"];
    let (mut by_agent, mut by_root) = same(&explain);
    for explained in by_agent.iter_mut().chain(&mut by_root) {
        assert!(explained["live"].as_object_mut().expect("an object").remove("taken_ns").is_some());
    }
    assert_eq!(by_agent, by_root);
    assert_eq!(
        read(true, &["explain", "--from", "10.1.2.3"]).stdout,
        place.fief().args(["explain", "--from", "10.1.2.3"]).ends().stdout
    );
    let (unknown, own) = (
        read(true, &["explain", "wbe", "--from", "10.1.2.3"]),
        place.fief().args(["explain", "wbe", "--from", "10.1.2.3"]).ends(),
    );
    assert_eq!((unknown.code, &unknown.stderr), (1, &own.stderr), "{unknown:?}");
    let top = read(true, &["top", "--plain", "--interval", "0.05", "--count", "1"]);
    assert!(top.code == 0 && top.stdout.contains("gold"), "{top:?}");

    // by the kernel, and by the agent should somebody open the socket to all
    for mode in [0o660, 0o666] {
        fs::set_permissions(&agent.socket, fs::Permissions::from_mode(mode)).expect("root");
        let refused = read(false, &["ls"]);
        let says = refused.stderr.contains("the agent serves root and the members of its group");
        assert!(refused.code == 1 && says, "{mode:o}: {refused:?}");
    }
    let change = read(true, &["down"]);
    assert!(change.code == 1 || change.stdout.contains("nothing"), "{change:?}");
    assert!(!place.containers().is_empty(), "it is in force still");
    assert_eq!(place.fief().arg("down").ends().code, 0);
    let nothing = read(true, &["status"]);
    assert!(nothing.code == 3 && nothing.stderr.starts_with("fief: nothing is in force"), "{nothing:?}");
}

#[test]
fn clients_who_mean_ill_keep_nobody_from_reading() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let agent = Agent::start(&place, &["--listen", "127.0.0.1:0"]);
    let address = agent.address.expect("it listens");
    let dial = || place.namespace.run(|| TcpStream::connect(address)).expect("in the namespace").expect("it listens");
    let (threads, before) = (agent.number("Threads:"), agent.number("VmRSS:"));
    // some send nothing, some a part, some garbage, some ask and read nothing
    let sends: [&[u8]; 4] =
        [b"", b"GET /metrics HTTP/1.1\r\nA: ", b"\x00\xff\x16\x03", b"GET /metrics HTTP/1.1\r\n\r\n"];
    let mut held = Vec::new();
    for number in 0..400 {
        let mut stream = dial();
        let _ = stream.write_all(sends[number % 4]);
        let mut local = UnixStream::connect(&agent.socket).expect("it serves");
        let _ = local.write_all(sends[number % 4]);
        held.push((stream, local));
        if number % 100 == 99 {
            // one whose request comes in two parts, with another one's between them
            let mut slow = dial();
            slow.write_all(b"GET /metrics HTTP/1.0\r\n").expect("it is let in");
            assert!(get(dial(), "/metrics", "").1.contains("fief_in_force 1\n"), "{number}");
            slow.write_all(b"\r\n").expect("the oldest gave way, not this one");
            let mut answer = String::new();
            slow.read_to_string(&mut answer).expect("text");
            assert!(answer.contains("fief_in_force 1\n"), "{number}: {answer}");
            assert!(scrape(&agent, "").1.contains("fief_in_force 1\n"), "{number}");
        }
    }
    // a look has a thread or two for a moment
    assert!(agent.number("Threads:") < threads + 10, "{threads} before");
    assert!(agent.descriptors() < 700, "{}", agent.descriptors());
    let grown = agent.number("VmRSS:").saturating_sub(before);
    assert!(grown < 16 * 1024, "{grown} KiB more");
    drop(held);
    wait_until(Duration::from_secs(20), || agent.descriptors() < 100).expect("all are let go of");
}

/// Questions are read by root's process: what is no question is refused, no answer tells more than how it stands with a client,
/// and a client that asks without end delays no scrape and no other reader.
#[test]
fn questions_that_mean_ill_are_refused() {
    let Some(place) = Place::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let program = for_everybody(folder.path());
    place.apply();
    let agent = Agent::start(&place, &["--listen", "127.0.0.1:0", "--group", GROUP]);
    let ask = |question: &str| {
        let stream = UnixStream::connect(&agent.socket).expect("it serves");
        get(stream, "/client", &format!("Question: {question}\r\n"))
    };
    let deep = format!("{}{}", "[".repeat(4_000), "]".repeat(3_000));
    let long = format!(r#"{{"from":"10.0.0.1","listener":"{}"}}"#, "a".repeat(7_000));
    for wrong in [
        "",
        "{}",
        "null",
        "\u{0}\u{1}",
        r#"{"from":"10.0.0.1/8"}"#,
        r#"{"from":"10.0.0.1","policy":"/etc/shadow"}"#,
        r#"{"from":"10.0.0.1","sent":{"http":{"head":1}}}"#,
        r#"{"from":"10.0.0.1","level":"none"}"#,
        &deep,
    ] {
        let (head, body) = ask(wrong);
        assert!(head.starts_with("HTTP/1.1 400 "), "{wrong}: {head}");
        assert!(body.len() < 4_096, "{body}");
    }
    let watch = |question: &str| {
        let stream = UnixStream::connect(&agent.socket).expect("it serves");
        get(stream, "/charges", &format!("Question: {question}\r\n")).0
    };
    for wrong in [
        "",
        r#"{"container":"shop"}"#,
        r#"{"container":"shop","lasts":{"secs":3600,"nanos":0}}"#,
        r#"{"container":"shop","lasts":{"secs":18446744073709551615,"nanos":999999999}}"#,
        r#"{"container":"shop","lasts":{"secs":0,"nanos":0}}"#,
    ] {
        assert!(watch(wrong).starts_with("HTTP/1.1 400 "), "{wrong}");
    }
    let slow = |question: &str| {
        let mut answer = ask(question);
        while answer.0.starts_with("HTTP/1.1 429 ") {
            std::thread::yield_now();
            answer = ask(question);
        }
        answer
    };
    assert!(slow(&long).0.starts_with("HTTP/1.1 422 "));
    assert!(slow(r#"{"from":"10.0.0.1","to":"10.0.0.1:9"}"#).1.contains("no listener of the policy is at"));
    let (head, body) = slow(r#"{"from":"10.0.0.1"}"#);
    assert!(head.starts_with("HTTP/1.1 200 ") && body.contains("\"client_rule\":"), "{head} {body}");
    assert!(!body.contains("[container"), "the text of the policy is root's");
    let by_port = place.namespace.run(|| TcpStream::connect(agent.address.expect("it listens")));
    let by_port = get(
        by_port.expect("in the namespace").expect("it listens"),
        "/client",
        "Question: {\"from\":\"10.0.0.1\"}\r\n",
    );
    assert!(by_port.0.starts_with("HTTP/1.1 404 "), "{by_port:?}");
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    ask(r#"{"from":"10.0.0.1"}"#);
                }
            });
        }
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                watch(r#"{"container":"shop","lasts":{"secs":0,"nanos":200000000}}"#);
            }
        });
        for _ in 0..20 {
            assert!(scrape(&agent, "").1.contains("fief_in_force 1\n"));
        }
        // root watches by itself, and waits for one of the pauses
        let root = place.fief().args(["explain", "--charge", "shop", "--interval", "0.1", "--count", "1"]).ends();
        // those ask as root
        let member = as_nobody(&place, &program, true, &["explain", "--from", "10.0.0.1"]);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!((root.code, member.code), (0, 0), "{root:?} {member:?}");
    });
    assert!(ask("\u{e9}{").0.starts_with("HTTP/1.1 400 "), "it lives");
}

#[test]
fn a_hundred_scrapes_at_once_are_answered() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let agent = Agent::start(&place, &[]);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let scrapes: Vec<_> = (0..100).map(|_| scope.spawn(|| scrape(&agent, "").1)).collect();
        scrapes.into_iter().map(|scrape| scrape.join().expect("an answer")).collect()
    });
    assert!(answers.iter().all(|answer| answer.contains("fief_in_force 1\n") && answer.ends_with('\n')));
}

#[test]
fn one_agent_serves_and_the_next_takes_the_place_of_one_that_was_killed() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let mut first = Agent::start(&place, &[]);
    let second = place.fief().arg("agent").ends();
    assert!(second.code == 1 && second.stderr.contains("an agent serves already"), "{second:?}");
    first.child.kill().expect("it runs");
    first.child.wait().expect("our child");
    assert!(first.socket.exists(), "it had no time to remove it");
    assert_eq!(place.fief().arg("ls").ends().code, 0, "what is in force stays");
    let next = Agent::start(&place, &[]);
    assert!(scrape(&next, "").1.contains("fief_in_force 1\n"));
}

#[test]
fn a_record_survives_the_agent_that_is_killed() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().to_str().expect("text");
    let mut agent = Agent::start(&place, &["--record", record, "--record-interval", "0.05"]);
    let readings = || {
        let days = fief_in(&place.scope).args(["replay", record, "--json"]).ends().objects();
        days.iter().filter_map(|day| day["readings"].as_u64()).sum::<u64>()
    };
    wait_until(Duration::from_secs(20), || readings() >= 5).expect("it records");
    let other = place.fief().args(["record", record, "--count", "1"]).ends();
    assert!(other.stderr.contains("another process records into"), "{other:?}");
    agent.child.kill().expect("it runs");
    agent.child.wait().expect("our child");
    let seen = readings();
    let usage = fief_in(&place.scope).args(["usage", "shop", "--json", "--replay", record]).ends();
    assert_eq!(usage.objects()[0]["container"], "shop", "{usage:?}");
    assert_eq!(place.fief().args(["record", record, "--interval", "0.05", "--count", "3"]).ends().code, 0);
    assert_eq!(readings(), seen + 3);
}
