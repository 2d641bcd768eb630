// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units whose container a policy takes away, their drop-ins, and what servers leave in cgroups that Fief made.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fief_testkit::{cgroup2_mount, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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

const SOON: Duration = Duration::from_secs(20);

/// Leaves a process in its cgroup when it ends.
const LEAVES: &str = "sleep 1000 & trap 'exit 0' TERM; echo $$; while :; do sleep 0.01; done";

#[test]
fn what_a_server_has_left_in_its_cgroup_hinders_no_policy() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let mut fief = place.fief().args(["exec", "--container", "shop/gold", "--", "sh", "-c", LEAVES]);
    let mut exec = fief.command().stdout(Stdio::piped()).spawn().expect("it starts");
    let mut server = String::new();
    BufReader::new(exec.stdout.take().expect("a pipe")).read_line(&mut server).expect("it runs");
    let ends = || kill(Pid::from_raw(exec.id().cast_signed()), Signal::SIGTERM).expect("our child");
    let other = policy(&SHOP.replace("shop/gold", "shop/silver"));
    let apply = || place.fief().arg("apply").arg(other.path()).ends();
    let refused = apply();
    assert!(refused.code == 1 && refused.stderr.contains("exec-"), "the server runs: {refused:?}");
    ends();
    let server = Path::new("/proc").join(server.trim());
    wait_until(SOON, || !server.exists()).expect("it ends");
    assert_eq!(place.units().len(), 1, "somebody is left");
    let applied = apply();
    assert_eq!(applied.code, 0, "{applied:?}");
    assert!(applied.stdout.contains("which the policy no longer names"), "it is told: {applied:?}");
    ends();
    assert_eq!(exec.wait().expect("it ends with the last of them").code(), Some(0));
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
