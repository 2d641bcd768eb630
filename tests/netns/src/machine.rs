// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine whose PID 1 is systemd, and the life of Fief's package on it. Two kinds of machines live it: namespaces of this kernel
//! (`tests/services.rs`), and a guest with a kernel of its own (`tests/vm`).

use std::process::Output;

use fief_bpf::upgrade::{pretend_another_build, program_id};
use fief_control::Fief;
use fief_testkit::wait_until;

use crate::SOON;

/// How packages are installed: nothing but Fief's is the test's matter.
const INSTALL: &str = "dpkg --install --no-triggers --force-depends";

/// Systemd runs on it, with nginx; the policy is [`crate::two_classes`] of clients 127.0.0.2 and all others.
pub trait Machine {
    /// What is in force on it.
    fn fief(&self) -> &Fief;

    /// Runs a line of a shell on it, with FIEF_SCOPE set.
    fn run(&self, line: &str) -> Output;

    /// What its console says.
    fn said(&self) -> String;

    fn does(&self, line: &str) -> bool {
        self.run(line).status.success()
    }

    fn must(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        assert!(status.success(), "{line}: {}{}\n{}", text(&stdout), text(&stderr), self.complaints());
        text(&stdout)
    }

    /// What systemd and its services say.
    fn complaints(&self) -> String {
        let journal = "journalctl --no-pager --lines 40; systemctl --no-pager status 'fief*' nginx; fief status";
        self.said() + &text(&self.run(journal).stdout)
    }

    /// Connections that a class was given so far.
    fn accepts(&self, path: &str) -> u64 {
        let snapshot = self.fief().snapshot().unwrap();
        snapshot.containers.iter().find(|view| view.path == path).map_or(0, |view| view.usage.accepts)
    }

    /// What it has used, with its classes.
    fn cpu_ns(&self, path: &str) -> u64 {
        let snapshot = self.fief().snapshot().unwrap();
        let of = |own: &str| own == path || own.starts_with(&format!("{path}/"));
        snapshot.containers.iter().filter(|view| of(&view.path)).map(|view| view.usage.cpu_ns()).sum()
    }

    fn class_listeners(&self) -> usize {
        self.fief().snapshot().unwrap().class_listeners.len()
    }

    /// A request of each class is answered and counted, by a server whose classes have listening sockets of their own.
    fn serves_by_class(&self) {
        wait_until(SOON, || self.class_listeners() == 2)
            .unwrap_or_else(|_| panic!("not two classes: {}", self.complaints()));
        let before = ["shop/high", "shop/low"].map(|path| self.accepts(path));
        self.must("curl -sf --interface 127.0.0.2 -o /dev/null http://127.0.0.1/");
        self.must("curl -sf --interface 127.0.0.3 -o /dev/null http://127.0.0.1/");
        assert_eq!(["shop/high", "shop/low"].map(|path| self.accepts(path)), before.map(|count| count + 1));
    }

    /// The number of a service's process.
    fn main_pid(&self, service: &str) -> String {
        self.must(&format!("systemctl show --property MainPID --value {service}"))
    }

    /// The agent tells of the policy, perhaps after a moment.
    fn tells_by_metrics(&self) {
        let scraped = "curl -sf --unix-socket /run/fief/$FIEF_SCOPE.agent http://fief/metrics";
        let serves = format!("{scraped} | grep -qx 'fief_in_force 1'");
        wait_until(SOON, || self.does(&serves)).unwrap_or_else(|_| panic!("no metrics: {}", self.complaints()));
    }

    /// Requests that were answered, and whatever else came.
    fn answers(&self) -> (usize, Vec<String>) {
        let codes = self.must("cat /run/codes");
        let (good, bad): (Vec<&str>, Vec<&str>) = codes.lines().partition(|code| *code == "200");
        (good.len(), bad.into_iter().map(str::to_owned).collect())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The package (`/srv/first.deb`) starts nothing.
pub fn package_is_installed(machine: &impl Machine) {
    machine.must(&format!("{INSTALL} /srv/first.deb"));
    assert!(!machine.fief().installed() && !machine.does("systemctl is-active fief"), "it starts nothing");
    assert!(!machine.does("systemctl is-enabled fief") && !machine.does("systemctl is-enabled fief-agent"));
}

/// Its services are enabled and nginx is put under the policy. Members of the package's group may read it, and nobody else.
pub fn services_are_started(machine: &impl Machine) {
    machine
        .must("systemctl enable --now fief fief-agent && fief unit nginx --container shop && systemctl restart nginx");
    machine.serves_by_class();
    machine.tells_by_metrics();
    let member = "setpriv --reuid 65534 --regid 65534 --groups fief fief ls";
    assert!(machine.must(member).contains("shop"));
    assert!(!machine.does("setpriv --reuid 65534 --regid 65534 --clear-groups fief ls"));
}

/// Each start of the service is in the policy, and the one before is forgotten.
pub fn service_is_restarted(machine: &impl Machine) {
    machine.must("systemctl restart nginx");
    machine.serves_by_class();
    assert_eq!(machine.fief().snapshot().unwrap().units.len(), 1, "the cgroup before is forgotten");
}

/// Clients ask, each `pause` seconds, while the policy is reloaded, the package is upgraded (`/srv/later.deb`) and the new programs
/// take over: each is answered. Says how many.
pub fn package_is_upgraded_under_load(machine: &impl Machine, pause: &str) -> usize {
    let ask = "curl -s -o /dev/null --max-time 5 -w \"%{http_code}\\n\" --interface 127.0.0.$client http://127.0.0.1/";
    let asks = format!("for client in 2 3; do {ask}; done; sleep {pause}");
    machine.must("rm -f /run/enough /run/codes");
    machine.must(&format!(
        "systemd-run --quiet --unit load sh -c 'while [ ! -e /run/enough ]; do {asks}; done > /run/codes'"
    ));
    let more_answers = |count| {
        let (served, _) = machine.answers();
        wait_until(SOON, || machine.answers().0 >= served + count)
            .unwrap_or_else(|_| panic!("no more answers: {:?} {}", machine.answers(), machine.complaints()));
    };
    // again and again, until somebody was answered meanwhile
    let reload_under_load = || {
        let (served, _) = machine.answers();
        wait_until(SOON, || {
            machine.must("systemctl reload fief");
            machine.answers().0 > served
        })
        .unwrap_or_else(|_| panic!("nobody asks: {:?} {}", machine.answers(), machine.complaints()));
    };
    wait_until(SOON, || machine.does("test -s /run/codes")).unwrap();
    let (agent, server) = (machine.main_pid("fief-agent"), machine.main_pid("nginx"));
    let program = || program_id(machine.fief().pins(), "switch_charges").unwrap();
    let (before, used) = (program(), machine.cpu_ns("shop"));
    reload_under_load();
    more_answers(4);

    machine.must(&format!("{INSTALL} /srv/later.deb"));
    assert_eq!((program(), machine.main_pid("nginx")), (before, server.clone()), "an upgrade touches nothing in force");
    assert_ne!(machine.main_pid("fief-agent"), agent, "the agent is of the new version");
    machine.tells_by_metrics();
    pretend_another_build(machine.fief().pins()).unwrap();
    reload_under_load();
    assert_ne!(program(), before, "the new version's programs have taken over");
    more_answers(8);
    machine.must("touch /run/enough");
    wait_until(SOON, || !machine.does("systemctl --quiet is-active load")).unwrap();
    let (served, bad) = machine.answers();
    assert!(bad.is_empty(), "{served} answers, and {bad:?}");
    assert!(machine.cpu_ns("shop") >= used, "accounts go on");
    assert_eq!(machine.main_pid("nginx"), server);
    machine.serves_by_class();
    served
}

/// What was enabled is there.
pub fn policy_is_in_force_after_a_boot(machine: &impl Machine) {
    machine.must("systemctl is-active fief fief-agent nginx");
    machine.serves_by_class();
    machine.tells_by_metrics();
}

/// The package says what it takes back, and the server serves on.
pub fn package_is_purged(machine: &impl Machine) {
    let purged = machine.must("dpkg --purge fief");
    for words in ["nginx.service could not start without", "stopping fief-agent.service", "stopping fief.service"] {
        assert!(purged.contains(words), "{purged}");
    }
    assert!(!machine.fief().installed() && !machine.does("command -v fief"));
    machine.must("systemctl restart nginx && curl -sf -o /dev/null http://127.0.0.1/");
}
