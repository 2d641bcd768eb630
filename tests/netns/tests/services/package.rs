// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Debian package on a machine that systemd runs: installed, used, upgraded under load, rebooted, purged.

use std::path::{Path, PathBuf};
use std::process::Command;

use fief_testkit::{Feature, require};
use fief_tests_netns::fief_binary;
use fief_tests_netns::machine::{
    Machine, package_is_installed, package_is_purged, package_is_upgraded_under_load, policy_is_in_force_after_a_boot,
    services_are_started,
};

use super::Namespaces;

/// The package of the program that is built here, and the same as of a later version.
fn packages(folder: &Path) -> PathBuf {
    let made = folder.join("packages");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machine/packages");
    let output = Command::new(script).arg(fief_binary()).arg(&made).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    made
}

#[test]
fn a_package_is_upgraded_under_load_and_in_force_after_a_reboot() {
    if ![Feature::Dpkg, Feature::Systemd].into_iter().all(require) {
        return;
    }
    let Some(mut machine) = Namespaces::boot_with(|folder| vec![packages(folder)]) else { return };
    package_is_installed(&machine);
    services_are_started(&machine);
    package_is_upgraded_under_load(&machine, "0");
    // what it does before it ends is systemd's matter
    let _ = machine.run("systemctl reboot");
    machine.comes_up();
    policy_is_in_force_after_a_boot(&machine);
    package_is_purged(&machine);
}
