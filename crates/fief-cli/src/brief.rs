// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The few lines on what is in force with which `fief apply` and `fief run` end their start, and which `fief status --brief`
//! prints: the mode, who serves each listener, what is enforced, what does not work.

use fief_control::{ListenerStatus, ServerStatus, Status};
use fief_policy::Mode;

use crate::output::printable;

/// A line each. A listener that nobody serves has its line among the problems, with what to do.
pub fn lines(status: &Status) -> Vec<String> {
    let mut lines: Vec<String> = status.mode.map(mode).into_iter().collect();
    lines.extend(status.listeners.iter().filter(|listener| !listener.servers.is_empty()).map(served));
    let lists =
        [("enforced", &status.enforced), ("kept, not enforced", &status.unenforced), ("problem", &status.problems)];
    for (what, list) in lists {
        lines.extend(list.iter().map(|of| format!("{what}: {}", printable(of))));
    }
    lines
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Enforce => "mode: enforce".to_owned(),
        Mode::Monitor => "mode: monitor; what would be refused is counted, and passes".to_owned(),
    }
}

fn served(listener: &ListenerStatus) -> String {
    format!("{} on {}: {}", printable(&listener.name), listener.address, servers(&listener.servers))
}

/// Each process once: workers and classes have a socket each.
pub fn servers(servers: &[ServerStatus]) -> String {
    let mut servers: Vec<String> = servers.iter().map(server).collect();
    servers.sort();
    servers.dedup();
    servers.join(", ")
}

fn server(ServerStatus { pid, program, unit, managed, .. }: &ServerStatus) -> String {
    let managed = if *managed { "managed" } else { "not managed" };
    let of = unit.as_ref().map_or_else(String::new, |unit| format!(" of {}", printable(unit)));
    match pid {
        Some(pid) => format!("{} (process {pid}{of}, {managed})", printable(program)),
        None => format!("{} ({managed})", printable(program)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_policy::Serve;

    #[test]
    fn each_listener_has_one_line() {
        let server = |pid| ServerStatus {
            address: "0.0.0.0:80".parse().expect("an address"),
            class: None,
            pid,
            program: "nginx".into(),
            unit: pid.map(|_| "nginx.service".into()),
            managed: pid.is_some(),
        };
        let listener = |name: &str, servers| ListenerStatus {
            name: name.into(),
            address: "0.0.0.0:80".parse().expect("an address"),
            serve: Serve::Shim,
            mode: Mode::Enforce,
            classes: fief_control::Classes::default(),
            servers,
        };
        let status = Status {
            in_force: true,
            policy: None,
            since: None,
            mode: Some(Mode::Enforce),
            sha256: None,
            origin: None,
            builds: [7, 7],
            failures: Vec::new(),
            interfaces: Vec::new(),
            unguarded: Vec::new(),
            listeners: vec![
                listener("web", vec![server(Some(812)), server(Some(812)), server(None)]),
                listener("api", Vec::new()),
            ],
            units: Vec::new(),
            charged: true,
            enforced: vec!["the rules of web".into()],
            scheduler: fief_control::SchedulerView::Off,
            unenforced: vec!["shop: cpu.share".into()],
            problems: vec!["api: nothing listens on 0.0.0.0:80\u{1b}".into()],
        };
        assert_eq!(
            lines(&status),
            [
                "mode: enforce",
                "web on 0.0.0.0:80: nginx (not managed), nginx (process 812 of nginx.service, managed)",
                "enforced: the rules of web",
                "kept, not enforced: shop: cpu.share",
                "problem: api: nothing listens on 0.0.0.0:80\\u{1b}",
            ]
        );
    }
}
