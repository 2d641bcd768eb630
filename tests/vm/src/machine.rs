// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest as a whole machine: Debian with systemd as its PID 1, and Fief by its package. Its life before a reboot and after it.
//! What is checked is the same as in namespaces (`tests/netns/tests/services.rs`), here with a kernel that boots, and its scheduler.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};

use fief_control::Fief;
use fief_tests_netns::machine::{
    Machine, package_is_installed, package_is_purged, package_is_upgraded_under_load, policy_is_in_force_after_a_boot,
    service_is_restarted, services_are_started,
};
use fief_tests_netns::two_classes;

use crate::report::{Found, Report};
use crate::schedule::STATE;
use crate::types;

const SCOPE: &str = "fief";
/// Seconds between requests: what clients take of the emulated CPU, the verifier lacks.
const PAUSE: &str = "1";

struct Guest(Fief);

impl Guest {
    fn new() -> Self {
        Self(Fief::with_scope(SCOPE))
    }

    /// The policy has shares: where the kernel can, the scheduler is Fief's. Says who enforces them.
    fn is_scheduled(&self) -> String {
        // its exit code tells of problems: without the kernel's modules Fief cannot see who listens
        let said = self.run("fief status --json").stdout;
        let status: serde_json::Value = serde_json::from_slice(&said).expect("an object");
        let (by, enabled) = (&status["cpu_enforced_by"], std::fs::read_to_string(STATE));
        let refused = (enabled.is_ok() && by == "cgroup-v2").then(types::broken).flatten();
        match (enabled, refused) {
            (Ok(_), Some(why)) => return format!("shares held by {by}: {why}"),
            (Ok(state), None) => assert_eq!((state.trim(), by.as_str()), ("enabled", Some("scheduler")), "{status}"),
            (Err(_), _) => assert_eq!(by, "cgroup-v2", "{status}"),
        }
        format!("shares held by {by}")
    }

    /// What the upgrade's apply said of the exchange of schedulers. Nothing where it had none to exchange.
    fn gap(&self) -> String {
        if std::fs::read_to_string(STATE).is_ok_and(|state| state.trim() == "enabled") {
            let told = "journalctl -q -u fief -o cat | grep -o 'its own had the CPUs for .* ms'";
            let said = self.must(&format!("for look in $(seq 60); do {told} && exit 0; sleep 1; done; exit 1"));
            return format!(" ({})", said.trim());
        }
        String::new()
    }
}

impl Machine for Guest {
    fn fief(&self) -> &Fief {
        &self.0
    }

    fn run(&self, line: &str) -> Output {
        Command::new("sh").args(["-c", line]).env("FIEF_SCOPE", SCOPE).output().expect("there is a shell")
    }

    fn said(&self) -> String {
        String::new() // it is with the caller, outside
    }
}

/// From the first boot to the reboot.
pub fn begin(report: &mut Report) {
    let guest = Guest::new();
    let shares = two_classes("address = \"0.0.0.0:80\"\nclasses = \"listeners\"")
        .replace("10.77.1.0/24", "127.0.0.2")
        .replace("version = 1", "version = 1\nschedule = \"auto\"")
        .replace("[container.shop]", "[container.shop]\ncpu.share = \"50%\"");
    std::fs::write("/etc/fief/policy.toml", shares).expect("the disk takes a file");
    let steps: [(&str, &dyn Fn() -> String); 5] = [
        ("a package starts nothing", &|| {
            package_is_installed(&guest);
            "installed".to_owned()
        }),
        ("its services put the policy in force, with a server in it and readers that are not root", &|| {
            services_are_started(&guest);
            guest.is_scheduled()
        }),
        ("what happens is in the journal", &|| {
            guest.must("fief ban 192.0.2.7 --for 1h");
            let told = "journalctl -q -t fief-agent FIEF_EVENT=shut-out FIEF_SOURCE=192.0.2.7 -o json | grep -q .";
            guest.must(&format!("for look in $(seq 60); do {told} && exit 0; sleep 1; done; exit 1"));
            guest.must("fief pardon 192.0.2.7");
            "a ban".to_owned()
        }),
        ("a restarted server is in its policy", &|| {
            service_is_restarted(&guest);
            "in its classes".to_owned()
        }),
        ("a reload and an upgrade of the package lose no request", &|| {
            let answers = package_is_upgraded_under_load(&guest, PAUSE);
            format!("{answers} answers, {}{}", guest.is_scheduled(), guest.gap())
        }),
    ];
    all(report, &steps);
}

/// After the reboot.
pub fn go_on(report: &mut Report) {
    let guest = Guest::new();
    let steps: [(&str, &dyn Fn() -> String); 3] = [
        ("the policy is in force after a reboot", &|| {
            policy_is_in_force_after_a_boot(&guest);
            guest.is_scheduled()
        }),
        ("a restarted server is in its policy again", &|| {
            service_is_restarted(&guest);
            "in its classes".to_owned()
        }),
        ("a purged package leaves the server alone", &|| {
            package_is_purged(&guest);
            let left = std::fs::read_to_string(STATE).is_ok_and(|state| state.trim() == "enabled");
            assert!(!left, "the scheduler stays");
            "it serves".to_owned()
        }),
    ];
    all(report, &steps);
}

/// Each needs the one before: what comes after a failed one is not made.
fn all(report: &mut Report, steps: &[(&str, &dyn Fn() -> String)]) {
    for (name, step) in steps {
        let mut failed = false;
        report.check(name, || {
            let found: Found = catch_unwind(AssertUnwindSafe(step)).map_err(|_| "see above".to_owned());
            failed = found.is_err();
            found
        });
        if failed {
            return;
        }
    }
}
