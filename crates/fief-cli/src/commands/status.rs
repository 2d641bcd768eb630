// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief status`: whether what is in force does what it says.

mod listeners;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::charged::NOT_CHARGED;
use crate::failure::{Failure, Result};
use crate::look::Reader;
use crate::output::{Output, printable};
use crate::{brief, cli};
use fief_control::{ListenerStatus, Origin, ServerStatus, Status, UnguardedInterface, WhyUnguarded};
use fief_policy::{Mode, Serve};

/// Something that is in force does not work.
const DEGRADED: u8 = 1;
/// As systemctl has it for what does not run.
const NOTHING: u8 = 3;

pub fn run(args: &cli::Status, output: &mut Output) -> Result<()> {
    let reader = Reader::open()?;
    let Some(status) = reader.status()? else {
        return Err(reader.nothing().with_code(NOTHING));
    };
    match args {
        cli::Status { json: true, .. } => output.json(&Object::of(&status))?,
        cli::Status { brief: true, .. } => {
            output.line(heading(&status, SystemTime::now()))?;
            brief::lines(&status).iter().try_for_each(|line| output.line(line))?;
        }
        _ => output.text(page(&status, SystemTime::now()))?,
    }
    match status.problems.is_empty() {
        true => Ok(()),
        false => output.flush().and(Err(Failure::told(DEGRADED))),
    }
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
pub struct Object<'a> {
    /// Nothing is wrong.
    healthy: bool,
    policy: Option<String>,
    /// Seconds since 1970.
    since_s: Option<u64>,
    mode: Option<Mode>,
    current: bool,
    sha256: Option<&'a str>,
    /// Who applied it, how, and by which process.
    applied_by: Option<&'a str>,
    applied_with: Option<&'a str>,
    /// The file that was read then.
    applied_file: Option<String>,
    applied_pid: Option<u32>,
    /// Says of the kernel or the front door that it answers connection requests, and why.
    answers: &'a [String],
    /// Of the programs in force, and of this command's.
    build: String,
    own_build: String,
    /// Of the records that both sides share.
    abi: u32,
    failures: BTreeMap<&'static str, u64>,
    interfaces: &'a [String],
    unguarded_interfaces: Vec<Unguarded<'a>>,
    listeners: Vec<Listener<'a>>,
    units: Vec<String>,
    /// Somebody needs it.
    cpu_charged: bool,
    /// Who holds shares, weights and limits of the CPU.
    cpu_enforced_by: Option<&'static str>,
    enforced: &'a [String],
    unenforced: &'a [String],
    problems: &'a [String],
}

#[derive(Serialize)]
struct Unguarded<'a> {
    interface: &'a str,
    why: WhyUnguarded,
}

#[derive(Serialize)]
struct Listener<'a> {
    listener: &'a str,
    address: String,
    serve: Serve,
    mode: Mode,
    classes: usize,
    /// Of them, those with a listening socket of their own.
    class_sockets: usize,
    shim_loaded: bool,
    /// Whether it is there; none: the policy asks for none.
    queue: Option<bool>,
    servers: Vec<Server<'a>>,
}

#[derive(Serialize)]
pub struct Server<'a> {
    address: String,
    /// Whose copy of the server it is.
    class: Option<&'a str>,
    pid: Option<i32>,
    program: &'a str,
    /// Of systemd.
    unit: Option<&'a str>,
    managed: bool,
}

impl<'a> Object<'a> {
    pub fn of(status: &'a Status) -> Self {
        let since = status.since.and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
        let origin = status.origin.as_ref();
        Self {
            healthy: status.problems.is_empty(),
            policy: status.policy.as_ref().map(|path| path.to_string_lossy().into_owned()),
            since_s: since.map(|since| since.as_secs()),
            mode: status.mode,
            current: status.is_current(),
            sha256: status.sha256.as_deref(),
            applied_by: origin.map(|origin| origin.by.as_str()),
            applied_with: origin.map(|origin| origin.command.as_str()),
            applied_file: origin
                .and_then(|origin| origin.file.as_ref())
                .map(|file| file.to_string_lossy().into_owned()),
            applied_pid: origin.map(|origin| origin.pid),
            answers: origin.map(|origin| origin.answers.as_slice()).unwrap_or_default(),
            build: build(status.builds[0]),
            own_build: build(status.builds[1]),
            abi: fief_control::ABI_VERSION,
            failures: status.failures.iter().copied().collect(),
            interfaces: &status.interfaces,
            unguarded_interfaces: status
                .unguarded
                .iter()
                .map(|open| Unguarded { interface: &open.name, why: open.why })
                .collect(),
            listeners: status.listeners.iter().map(Listener::of).collect(),
            units: status.units.iter().map(|unit| unit.to_string_lossy().into_owned()).collect(),
            cpu_charged: status.charged,
            cpu_enforced_by: status.scheduler.word(),
            enforced: &status.enforced,
            unenforced: &status.unenforced,
            problems: &status.problems,
        }
    }
}

impl<'a> Listener<'a> {
    fn of(listener: &'a ListenerStatus) -> Self {
        let ListenerStatus { name, address, serve, mode, classes, servers } = listener;
        Self {
            listener: name,
            address: address.to_string(),
            serve: *serve,
            mode: *mode,
            classes: classes.count,
            class_sockets: classes.with_socket,
            shim_loaded: classes.shim,
            queue: classes.queue,
            servers: servers.iter().map(Server::of).collect(),
        }
    }
}

impl<'a> Server<'a> {
    pub fn of(server: &'a ServerStatus) -> Self {
        let ServerStatus { address, class, pid, program, unit, managed } = server;
        Self {
            address: address.to_string(),
            class: class.as_deref(),
            pid: *pid,
            program,
            unit: unit.as_deref(),
            managed: *managed,
        }
    }
}

fn heading(status: &Status, now: SystemTime) -> String {
    if !status.in_force {
        return "no policy is in force".to_owned();
    }
    let age = status.since.and_then(|since| now.duration_since(since).ok());
    let since = age.map_or_else(String::new, |age| format!(" for {}", time(age)));
    let file = status.origin.as_ref().and_then(|origin| origin.file.as_ref());
    let from = file.map_or_else(String::new, |file| format!(", as it was read from {}", file.display()));
    let text = match &status.policy {
        Some(path) => format!("its text is kept in {}", path.display()),
        None => "its text was removed".to_owned(),
    };
    format!("a policy is in force{since}{}; {}", printable(&from), printable(&text))
}

fn build(number: u32) -> String {
    format!("{number:08x}")
}

/// Who applied it and what came of that, and what of it is the kernel's now.
fn origin(status: &Status) -> String {
    let mut page = String::new();
    if let Some(Origin { by, command, file: _, pid, answers }) = &status.origin {
        page.push_str(&format!("applied by {}: {} (process {pid})\n", printable(by), printable(command)));
        answers.iter().for_each(|answer| page.push_str(&format!("{}\n", printable(answer))));
    }
    if let Some(hash) = &status.sha256 {
        page.push_str(&format!("sha256 {hash}\n"));
    }
    let [there, own] = status.builds.map(build);
    let whose = if status.is_current() { "as this command's".to_owned() } else { format!("this command's is {own}") };
    page.push_str(&format!("programs of build {there}, {whose}; records of version {}\n", fief_control::ABI_VERSION));
    for (what, count) in &status.failures {
        page.push_str(&format!("failed: {what}, {count} times\n"));
    }
    page
}

fn page(status: &Status, now: SystemTime) -> String {
    let mut page = heading(status, now) + "\n" + &origin(status);
    if status.mode == Some(Mode::Monitor) {
        page.push_str("it is on trial: what would be refused is counted, and passes\n");
    }
    if !status.interfaces.is_empty() {
        page.push_str(&format!("the front door is at {}\n", printable(&status.interfaces.join(", "))));
    }
    for open in &status.unguarded {
        page.push_str(&format!("{}\n", printable(&unguarded(open))));
    }
    for unit in &status.units {
        page.push_str(&format!("managed: {}\n", printable(&unit.to_string_lossy())));
    }
    if !status.charged {
        page.push_str(&format!("{NOT_CHARGED}\n"));
    }
    if !status.listeners.is_empty() {
        page.push_str(&format!("\n{}", listeners::table(&status.listeners)));
    }
    let lists =
        [("enforced", &status.enforced), ("kept, not enforced", &status.unenforced), ("problem", &status.problems)];
    for (what, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        page.push('\n');
        list.iter().for_each(|of| page.push_str(&format!("{what}: {}\n", printable(of))));
    }
    page
}

fn unguarded(UnguardedInterface { name, why }: &UnguardedInterface) -> String {
    let why = match why {
        WhyUnguarded::Loopback => "only this machine's own connections come in there",
        WhyUnguarded::NotNamed => "[front].interfaces names others",
        WhyUnguarded::CameLater => "it came up after the policy; apply the policy again",
    };
    format!("not guarded: {name} ({why})")
}

/// Days and hours say more than seconds.
fn time(age: Duration) -> String {
    let (minutes, hours, days) = (age.as_secs() / 60, age.as_secs() / 3600, age.as_secs() / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{} s", age.as_secs()),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, _) => format!("{hours} h {} min", minutes % 60),
        (days, hours, _) => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_control::{Classes, SchedulerView};

    fn status() -> Status {
        let server = ServerStatus {
            address: "0.0.0.0:80".parse().expect("an address"),
            class: None,
            pid: Some(812),
            program: "nginx".into(),
            unit: Some("nginx.service".into()),
            managed: true,
        };
        let listener = |name: &str, port: u16, servers| ListenerStatus {
            name: name.into(),
            address: ([0, 0, 0, 0], port).into(),
            serve: Serve::Shim,
            mode: Mode::Enforce,
            classes: Classes { count: 2, with_socket: 2, shim: true, queue: None },
            servers,
        };
        Status {
            in_force: true,
            policy: Some("/run/fief/fief/policy.0.toml".into()),
            since: Some(SystemTime::UNIX_EPOCH),
            mode: Some(Mode::Monitor),
            sha256: Some("abc".into()),
            origin: Some(Origin {
                by: "root".into(),
                command: "fief apply shop.toml".into(),
                file: Some("/etc/shop.toml".into()),
                pid: 7,
                answers: vec!["the kernel answers".into()],
            }),
            builds: [0xb01d, 0xb01d],
            failures: vec![("table_full", 3)],
            interfaces: vec!["eth0".into()],
            unguarded: vec![
                UnguardedInterface { name: "lo".into(), why: WhyUnguarded::Loopback },
                UnguardedInterface { name: "late0".into(), why: WhyUnguarded::CameLater },
                UnguardedInterface { name: "eth1".into(), why: WhyUnguarded::NotNamed },
            ],
            listeners: vec![listener("web", 80, vec![server.clone(), server]), listener("api", 8080, Vec::new())],
            units: vec!["/sys/fs/cgroup/web".into()],
            charged: true,
            scheduler: SchedulerView::On { counts: Vec::new(), combined: Vec::new() },
            enforced: vec!["the rules of web".into()],
            unenforced: vec!["shop: cpu.share".into()],
            problems: vec!["api: nothing listens on 0.0.0.0:8080".into()],
        }
    }

    #[test]
    fn the_page_tells_who_serves_and_what_is_wrong() {
        let page = page(&status(), SystemTime::UNIX_EPOCH + Duration::from_secs(3_720));
        let heading =
            "a policy is in force for 1 h 2 min, as it was read from /etc/shop.toml; its text is kept in /run/fief/";
        assert!(page.starts_with(heading), "{page}");
        let line =
            |of: &str| page.lines().find(|line| line.starts_with(of)).unwrap_or_else(|| panic!("{of} in {page}"));
        let applied = "\napplied by root: fief apply shop.toml (process 7)\nthe kernel answers\nsha256 abc\n";
        assert!(page.contains(applied), "{page}");
        assert!(page.contains("\nprograms of build 0000b01d, as this command's; records of version "), "{page}");
        assert!(page.contains("\nfailed: table_full, 3 times\n"), "{page}");
        assert!(page.contains("\nthe front door is at eth0\nnot guarded: lo (only this machine's own"), "{page}");
        assert!(line("not guarded: late0").ends_with("apply the policy again)"), "{page}");
        assert!(line("not guarded: eth1").ends_with("names others)"), "{page}");
        assert!(line("web").contains("2 by the shim"), "{page}");
        assert!(line("web").ends_with("nginx   812  nginx.service  0.0.0.0:80  yes"), "{page}");
        assert_eq!(page.matches("nginx ").count(), 1, "{page}");
        assert!(line("api").contains("asked: shim    nobody"), "{page}");
        assert!(page.contains("\nit is on trial: "), "{page}");
        assert!(page.contains("\n\nenforced: the rules of web\n"), "{page}");
        assert!(page.contains("\nkept, not enforced: shop: cpu.share\n"), "{page}");
        assert!(page.ends_with("\nproblem: api: nothing listens on 0.0.0.0:8080\n"), "{page}");
    }

    #[test]
    fn what_is_left_of_a_killed_apply_is_no_policy_in_force() {
        let page = page(&Status { in_force: false, policy: None, ..status() }, SystemTime::UNIX_EPOCH);
        assert!(page.starts_with("no policy is in force\n"), "{page}");
    }

    #[test]
    fn where_no_cpu_time_is_charged_that_is_said() {
        let of = |charged| page(&Status { charged, ..status() }, SystemTime::UNIX_EPOCH);
        assert!(of(false).contains("\nno CPU time is charged: ") && !of(true).contains("charged"));
    }

    #[test]
    fn ages_are_short() {
        let of = |seconds| time(Duration::from_secs(seconds));
        assert_eq!([of(5), of(600), of(3_600), of(90_000)], ["5 s", "10 min", "1 h 0 min", "1 d 1 h"]);
    }

    #[test]
    fn every_name_of_the_object_is_in_the_documentation() {
        let page = include_str!("../../../../docs/cli.md");
        let status = status();
        let object = serde_json::to_value(Object::of(&status)).expect("texts and numbers");
        let listener = &object["listeners"][0];
        for part in [&object, listener, &listener["servers"][0], &object["unguarded_interfaces"][0]] {
            for name in part.as_object().expect("an object").keys() {
                assert!(page.contains(&format!("`{name}`")), "{name} is missing");
            }
        }
    }
}
