// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the container of a unit is called that is managed without the name of one: after its cgroup, which somebody else may have named.

use std::fs;
use std::path::Path;

use fief_control::{ErrorKind, Fief, ManageOptions, Managed, Result, Target};
use fief_testkit::{Cgroup, cgroup2_mount};
use fief_tests_netns::{Installation, Setup};

fn manage(fief: &Fief, cgroup: &Path) -> Result<Managed> {
    fief.manage(&Target::Cgroup(cgroup.to_owned()), &ManageOptions::default())
}

/// Paths of the containers, and how many cgroups are managed.
fn there(fief: &Fief) -> (Vec<String>, usize) {
    let now = fief.snapshot().unwrap();
    (now.containers.into_iter().map(|view| view.path).collect(), now.units.len())
}

#[test]
fn no_unit_gets_for_its_name_what_fief_itself_keeps() {
    let installation = Installation::with(&Setup::default());
    let fief = installation.fief();
    let outer = Cgroup::new("outer").unwrap();
    let before = there(fief);
    for name in ["root", "system", "idle", "steal", "unattributed", "retired", "user"] {
        let folder = outer.path().join(name);
        fs::create_dir(&folder).unwrap();
        let refused = manage(fief, &folder).expect_err(name);
        assert_eq!(refused.kind(), ErrorKind::Permission, "{refused}");
        assert!(refused.advice().is_some_and(|advice| advice.contains("--container")), "{refused}");
        assert_eq!(there(fief), before, "{name}");
    }
    installation.manage(&outer.path().join("user"), Some("unit"), false);
    // the policy's is meant, where it has one of that name
    let folder = outer.path().join("unit");
    fs::create_dir(&folder).unwrap();
    assert_eq!(manage(fief, &folder).unwrap().container, "unit");
    assert_eq!(there(fief), (before.0, before.1 + 2));
}

#[test]
fn a_unit_with_a_long_name_of_another_alphabet_has_one_container() {
    let installation = Installation::with(&Setup::default());
    let fief = installation.fief();
    let outer = Cgroup::new("outer").unwrap();
    let folder = outer.path().join("ü".repeat(20));
    fs::create_dir(&folder).unwrap();
    let name = "ü".repeat(15);
    assert_eq!(manage(fief, &folder).unwrap().container, name);
    let once = there(fief);
    assert!(once.0.contains(&name), "{once:?}");
    assert_eq!(manage(fief, &folder).unwrap().container, name);
    assert_eq!(there(fief), once);
}

#[test]
fn a_unit_without_a_name_that_can_be_shown_is_refused() {
    let installation = Installation::with(&Setup::default());
    let fief = installation.fief();
    let outer = Cgroup::new("outer").unwrap();
    let folder = outer.path().join("\u{1b}\u{7f}");
    fs::create_dir(&folder).unwrap();
    let before = there(fief);
    let refused = manage(fief, &folder).unwrap_err();
    assert!(refused.advice().is_some_and(|advice| advice.contains("--container")), "{refused}");
    assert_eq!(there(fief), before);
    installation.manage(&folder, Some("unit"), false);
}

/// Beside a unit: for that alone it would be refused too, and no fault of this test's hooks the machine.
#[test]
fn the_root_of_all_cgroups_is_no_unit() {
    let installation = Installation::with(&Setup::default());
    let refused = manage(installation.fief(), &cgroup2_mount().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("the root cgroup"), "{refused}");
}
