// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units whose container a policy takes away, and their drop-ins.

use std::path::PathBuf;
use std::process::Command;

use fief_testkit::cgroup2_mount;
use serde_json::json;

use crate::place::Place;
use crate::started::{Ended, SHOP, policy};

/// Its cgroup is where systemd has one of this name; its drop-in, in a folder in place of /etc. A systemd that runs here would be
/// asked for the unit and knows none of this name, so the command sees none.
#[test]
fn a_unit_goes_where_its_drop_in_says_when_its_container_goes() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let etc = tempfile::tempdir().expect("a folder");
    let unit = Unit::new(&format!("{}.service", place.scope));
    let folder = unit.0.to_str().expect("text");
    let name = unit.0.file_name().and_then(|name| name.to_str()).expect("text");
    let units = etc.path().join("systemd/system");
    std::fs::create_dir_all(&units).expect("made");
    std::fs::write(units.join(name), "[Service]\nExecStart=/usr/bin/server\n").expect("written");
    let in_etc = |words: &[&str]| {
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$1\" /etc && shift && \
                      { ! [ -d /run/systemd ] || mount -t tmpfs none /run/systemd; } && exec \"$0\" \"$@\"";
        command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fief")]).arg(etc.path()).args(words);
        place.namespace.enter(command.env("FIEF_SCOPE", &place.scope));
        Ended::from(command.output().expect("unshare starts"))
    };
    let managed = place.fief().args(["manage", "--follow", folder, "--container", "shop/gold"]).ends();
    assert_eq!(managed.code, 0, "{managed:?}");
    assert_eq!(in_etc(&["unit", name, "--container", "shop/gold"]).code, 0);
    let other = policy(&SHOP.replace("shop/gold", "shop/silver"));
    let apply = |words: &[&str]| in_etc(&[&["apply"], words, &[other.path().to_str().expect("text")]].concat());
    let refused = apply(&[]);
    assert!(refused.code == 1 && refused.stderr.contains("the policy has no container shop/gold"), "{refused:?}");
    assert!(refused.stderr.ends_with(&format!("`fief unit --container shop {name}`\n")), "{refused:?}");
    assert_eq!(in_etc(&["unit", "--container", "shop", name]).code, 0);
    let object = apply(&["--dry-run", "--json"]).objects().remove(0);
    assert_eq!((&object["refused"], &object["units"][0]["home"]), (&json!(false), &json!("shop")), "{object}");
    let applied = apply(&[]);
    let told = format!("note: {folder} is at home in shop now and no longer in shop/gold, as its drop-in says\n");
    assert!(applied.code == 0 && applied.stdout.contains(&told), "{applied:?}");
    assert!(!applied.stdout.contains("no longer names"), "{applied:?}");
    assert!(!place.containers().contains(&"shop/gold".to_owned()), "nobody holds it: {:?}", place.containers());
}

/// A cgroup as systemd makes one for a service.
struct Unit(PathBuf);

impl Unit {
    fn new(name: &str) -> Self {
        let folder = cgroup2_mount().expect("it is mounted").join("system.slice").join(name);
        std::fs::create_dir_all(&folder).expect("made");
        Self(folder)
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).expect("nobody is in it");
        // of a machine without systemd it is ours
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}
