// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `packaging/fief.service` and `packaging/fief-agent.service`: systemd reads them, they may do little beside their work, and their
//! work they may do.

use std::process::Command;

use fief_testkit::{Feature, require};

use crate::agent::{Agent, GROUP};
use crate::place::Place;
use crate::started::{Ended, SHOP, policy};

struct Service {
    name: &'static str,
    text: &'static str,
    /// Tenths of what systemd calls the exposure.
    exposure: u32,
}

/// The service keeps these: the user root and the files of that user, SYS_ADMIN, NET_ADMIN, the machine's network, and writing to cgroups and sysctls.
const BOOT: Service =
    Service { name: "fief.service", text: include_str!("../../../../packaging/fief.service"), exposure: 39 };
/// Likewise, without what is written.
const AGENT: Service = Service {
    name: "fief-agent.service",
    text: include_str!("../../../../packaging/fief-agent.service"),
    exposure: 39,
};

impl Service {
    fn analyzed(&self, words: &[&str]) -> Ended {
        // the service with the program that is built here
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(self.name);
        std::fs::write(&file, self.text.replace("/usr/bin/fief", env!("CARGO_BIN_EXE_fief"))).expect("written");
        Command::new("systemd-analyze").args(words).arg(&file).output().expect("it starts").into()
    }

    /// The command with no more capabilities than the service has.
    fn bounded(&self, place: &Place) -> Command {
        let names =
            self.text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("it is bounded");
        let names = names.to_lowercase().replace("cap_", "+").replace(' ', ",");
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set=-all,{names}")).arg("--no-new-privs").arg(env!("CARGO_BIN_EXE_fief"));
        command.env("FIEF_SCOPE", &place.scope);
        place.namespace.enter(&mut command);
        command
    }
}

#[test]
fn systemd_reads_the_services() {
    if !require(Feature::SystemdAnalyze) {
        return;
    }
    for service in [BOOT, AGENT] {
        let said = service.analyzed(&["verify", "--recursive-errors=no", "--man=no"]);
        assert_eq!((said.code, said.stderr.contains(service.name)), (0, false), "{said:?}");
    }
}

#[test]
fn the_services_are_exposed_to_little() {
    if !require(Feature::SystemdAnalyze) {
        return;
    }
    for service in [BOOT, AGENT] {
        let threshold = format!("--threshold={}", service.exposure);
        let said = service.analyzed(&["security", "--offline=yes", "--no-pager", &threshold]);
        assert_eq!(said.code, 0, "{}", said.stdout);
    }
}

#[test]
fn the_capabilities_of_the_service_are_enough_for_its_work() {
    let Some(place) = Place::new() else { return };
    let bounded = |words: &[&str]| Ended::from(BOOT.bounded(&place).args(words).output().expect("setpriv starts"));
    place.namespace.ip("link add sv type veth peer name cv").expect("a pair of interfaces");
    place.namespace.ip("link set sv up").expect("up");
    let guarded = policy(&SHOP.replace("classes = \"listeners\"", "queue = true\nlrp.when = \"always\""));
    for _ in 0..2 {
        let applied = bounded(&["apply", guarded.path().to_str().expect("text")]);
        assert_eq!((applied.code, applied.stderr.as_str()), (0, ""), "{applied:?}");
    }
    // cgroups lie in a folder that not even its owner may write
    let shared = policy("version = 1\nschedule = \"cgroup\"\n[container.shop]\ncpu.share = \"60%\"\n");
    let applied = bounded(&["apply", shared.path().to_str().expect("text")]);
    assert!(applied.code == 0 && applied.stdout.contains("\nenforced: cpu.share"), "{applied:?}");
    let down = bounded(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
}

#[test]
fn the_capabilities_of_the_agents_service_are_enough_to_read() {
    let Some(place) = Place::new() else { return };
    place.namespace.ip("link add sv type veth peer name cv").expect("a pair of interfaces");
    place.namespace.ip("link set sv up").expect("up");
    let guarded = policy(&SHOP.replace("classes = \"listeners\"", "queue = true"));
    assert_eq!(place.fief().arg("apply").arg(guarded.path()).ends().code, 0);
    let agent = Agent::of(AGENT.bounded(&place), &["--group", GROUP]);
    let charges = agent.charges("shop");
    assert!(charges.contains("\"sources\":"), "{charges}");
    let by_agent = agent.scrape();
    assert!(
        by_agent.contains("fief_in_force 1\n") && by_agent.contains("fief_queue_places{listener=\"web\"}"),
        "{by_agent}"
    );
    let status = place.fief().args(["status", "--json"]).ends().objects().remove(0);
    let problems = status["problems"].as_array().expect("a list").len();
    assert!(by_agent.contains(&format!("fief_problems {problems}\n")), "{status} {by_agent}");
}
