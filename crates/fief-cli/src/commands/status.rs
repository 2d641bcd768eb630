// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief status`: whether what is in force does what it says.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::look::Reader;
use crate::output::{Align, Output, Table, printable};
use crate::quantity;
use crate::{brief, cli};
use fief_control::{ListenerStatus, ServerStatus, Status};
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
    interfaces: &'a [String],
    listeners: Vec<Listener<'a>>,
    units: Vec<String>,
    /// Who holds shares, weights and limits of the CPU.
    cpu_enforced_by: Option<&'static str>,
    enforced: &'a [String],
    unenforced: &'a [String],
    problems: &'a [String],
}

#[derive(Serialize)]
struct Listener<'a> {
    listener: &'a str,
    address: String,
    serve: Serve,
    mode: Mode,
    servers: Vec<Server<'a>>,
}

#[derive(Serialize)]
pub struct Server<'a> {
    address: String,
    pid: Option<i32>,
    program: &'a str,
    managed: bool,
}

impl<'a> Object<'a> {
    pub fn of(status: &'a Status) -> Self {
        let since = status.since.and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
        Self {
            healthy: status.problems.is_empty(),
            policy: status.policy.as_ref().map(|path| path.to_string_lossy().into_owned()),
            since_s: since.map(|since| since.as_secs()),
            mode: status.mode,
            current: status.current,
            interfaces: &status.interfaces,
            listeners: status.listeners.iter().map(Listener::of).collect(),
            units: status.units.iter().map(|unit| unit.to_string_lossy().into_owned()).collect(),
            cpu_enforced_by: status.scheduler.word(),
            enforced: &status.enforced,
            unenforced: &status.unenforced,
            problems: &status.problems,
        }
    }
}

impl<'a> Listener<'a> {
    fn of(listener: &'a ListenerStatus) -> Self {
        let ListenerStatus { name, address, serve, mode, servers } = listener;
        let servers = servers.iter().map(Server::of);
        Self { listener: name, address: address.to_string(), serve: *serve, mode: *mode, servers: servers.collect() }
    }
}

impl<'a> Server<'a> {
    pub fn of(server: &'a ServerStatus) -> Self {
        let ServerStatus { address, pid, program, managed } = server;
        Self { address: address.to_string(), pid: *pid, program, managed: *managed }
    }
}

fn heading(status: &Status, now: SystemTime) -> String {
    let age = status.since.and_then(|since| now.duration_since(since).ok());
    let since = age.map_or_else(String::new, |age| format!(" for {}", time(age)));
    let text = match &status.policy {
        Some(path) => format!("its text is {}", path.display()),
        None => "its text was removed".to_owned(),
    };
    format!("a policy is in force{since}; {}", printable(&text))
}

fn page(status: &Status, now: SystemTime) -> String {
    let mut page = heading(status, now) + "\n";
    if status.mode == Some(Mode::Monitor) {
        page.push_str("it is on trial: what would be refused is counted, and passes\n");
    }
    if !status.interfaces.is_empty() {
        page.push_str(&format!("the front door is at {}\n", printable(&status.interfaces.join(", "))));
    }
    for unit in &status.units {
        page.push_str(&format!("managed: {}\n", printable(&unit.to_string_lossy())));
    }
    if !status.listeners.is_empty() {
        page.push_str(&format!("\n{}", listeners(&status.listeners)));
    }
    let lists =
        [("enforced", &status.enforced), ("kept, not enforced", &status.unenforced), ("problem", &status.problems)];
    for (what, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        page.push('\n');
        list.iter().for_each(|of| page.push_str(&format!("{what}: {}\n", printable(of))));
    }
    page
}

fn listeners(listeners: &[ListenerStatus]) -> Table {
    let mut table = Table::new(&[
        ("LISTENER", Align::Left),
        ("ADDRESS", Align::Left),
        ("SERVER", Align::Left),
        ("PID", Align::Right),
        ("LISTENS ON", Align::Left),
        ("MANAGED", Align::Left),
    ]);
    for listener in listeners {
        let (name, address) = (listener.name.clone(), listener.address.to_string());
        // workers have a socket each
        let mut servers: Vec<_> = listener.servers.iter().collect();
        servers.dedup_by(|one, other| (one.pid, one.address, one.managed) == (other.pid, other.address, other.managed));
        for server in &servers {
            table.push([
                name.clone(),
                address.clone(),
                server.program.clone(),
                quantity::or_dash(server.pid.map(|pid| pid.to_string())),
                server.address.to_string(),
                if server.managed { "yes" } else { "no" }.into(),
            ]);
        }
        if servers.is_empty() {
            table.push([name, address, "nobody".into(), "-".into(), "-".into(), "-".into()]);
        }
    }
    table
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
    use fief_control::SchedulerView;

    fn status() -> Status {
        let server = ServerStatus {
            address: "0.0.0.0:80".parse().expect("an address"),
            pid: Some(812),
            program: "nginx".into(),
            managed: true,
        };
        let listener = |name: &str, port: u16, servers| ListenerStatus {
            name: name.into(),
            address: ([0, 0, 0, 0], port).into(),
            serve: Serve::Shim,
            mode: Mode::Enforce,
            servers,
        };
        Status {
            policy: Some("/run/fief/fief/policy.0.toml".into()),
            since: Some(SystemTime::UNIX_EPOCH),
            mode: Some(Mode::Monitor),
            current: true,
            interfaces: vec!["eth0".into()],
            listeners: vec![listener("web", 80, vec![server.clone(), server]), listener("api", 8080, Vec::new())],
            units: vec!["/sys/fs/cgroup/web".into()],
            scheduler: SchedulerView::On { counts: Vec::new() },
            enforced: vec!["the rules of web".into()],
            unenforced: vec!["shop: cpu.share".into()],
            problems: vec!["api: nothing listens on 0.0.0.0:8080".into()],
        }
    }

    #[test]
    fn the_page_tells_who_serves_and_what_is_wrong() {
        let page = page(&status(), SystemTime::UNIX_EPOCH + Duration::from_secs(3_720));
        assert!(page.starts_with("a policy is in force for 1 h 2 min; its text is /run/fief"), "{page}");
        let line =
            |of: &str| page.lines().find(|line| line.starts_with(of)).unwrap_or_else(|| panic!("{of} in {page}"));
        assert!(line("web").ends_with("nginx   812  0.0.0.0:80  yes"), "{page}");
        assert_eq!(page.matches("nginx").count(), 1, "{page}");
        assert!(line("api").contains("nobody"), "{page}");
        assert!(page.contains("\nit is on trial: "), "{page}");
        assert!(page.contains("\n\nenforced: the rules of web\n"), "{page}");
        assert!(page.contains("\nkept, not enforced: shop: cpu.share\n"), "{page}");
        assert!(page.ends_with("\nproblem: api: nothing listens on 0.0.0.0:8080\n"), "{page}");
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
        for part in [&object, listener, &listener["servers"][0]] {
            for name in part.as_object().expect("an object").keys() {
                assert!(page.contains(&format!("`{name}`")), "{name} is missing");
            }
        }
    }
}
