// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `packaging/fief.service`: systemd reads it, it may do little beside its work, and its work it may do.

use std::path::Path;
use std::process::Command;

use fief_testkit::{Feature, require};

use crate::place::Place;
use crate::started::{Ended, SHOP, policy};

const SERVICE: &str = include_str!("../../../../packaging/fief.service");
const NAME: &str = "fief.service";

/// Tenths of what systemd calls the exposure. What is left: root and his files, SYS_ADMIN, NET_ADMIN, the machine's network, and
/// writing to cgroups and sysctls.
const EXPOSURE: u32 = 39;

fn systemd_analyze(words: &[&str], folder: &Path) -> Ended {
    let mut command = Command::new("systemd-analyze");
    command.args(words).arg(folder.join(NAME)).output().expect("it starts").into()
}

/// The service with the program that is built here.
fn service() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let text = SERVICE.replace("/usr/bin/fief", env!("CARGO_BIN_EXE_fief"));
    std::fs::write(folder.path().join(NAME), text).expect("written");
    folder
}

#[test]
fn systemd_reads_the_service_of_the_boot() {
    if !require(Feature::SystemdAnalyze) {
        return;
    }
    let folder = service();
    let said = systemd_analyze(&["verify", "--recursive-errors=no", "--man=no"], folder.path());
    assert_eq!((said.code, said.stderr.contains(NAME)), (0, false), "{said:?}");
}

#[test]
fn the_service_of_the_boot_is_exposed_to_little() {
    if !require(Feature::SystemdAnalyze) {
        return;
    }
    let (folder, threshold) = (service(), format!("--threshold={EXPOSURE}"));
    let said = systemd_analyze(&["security", "--offline=yes", "--no-pager", &threshold], folder.path());
    assert_eq!(said.code, 0, "{}", said.stdout);
}

#[test]
fn the_capabilities_of_the_service_are_enough_for_its_work() {
    let Some(place) = Place::new() else { return };
    let names = SERVICE.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("it is bounded");
    let names = names.to_lowercase().replace("cap_", "+").replace(' ', ",");
    let bounded = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set=-all,{names}")).arg("--no-new-privs");
        command.arg(env!("CARGO_BIN_EXE_fief")).args(words).env("FIEF_SCOPE", &place.scope);
        place.namespace.enter(&mut command);
        Ended::from(command.output().expect("setpriv starts"))
    };
    place.namespace.ip("link add sv type veth peer name cv").expect("a pair of interfaces");
    place.namespace.ip("link set sv up").expect("up");
    let guarded = policy(&SHOP.replace("address =", "queue = true\nlrp.when = \"always\"\naddress ="));
    for _ in 0..2 {
        let applied = bounded(&["apply", guarded.path().to_str().expect("text")]);
        assert_eq!((applied.code, applied.stderr.as_str()), (0, ""), "{applied:?}");
    }
    let down = bounded(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
}
