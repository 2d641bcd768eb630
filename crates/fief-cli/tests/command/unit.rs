// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drop-ins that `fief unit` writes, into the image of a machine and for what systemd itself says of them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use fief_testkit::{Feature, require};

use crate::place::Place;
use crate::started::{Ended, SHOP, fief, policy};

const NGINX: &str = "[Unit]\nDescription=web\n[Service]\nType=forking\nExecStart=/usr/bin/true -g 'daemon on;'\n";
const DROP_IN: &str = "etc/systemd/system/nginx.service.d/zz-fief.conf";

struct Image(tempfile::TempDir);

impl Image {
    fn new() -> Self {
        let image = Self(tempfile::tempdir().expect("a folder"));
        image.write("usr/lib/systemd/system/nginx.service", NGINX);
        image
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn write(&self, below: &str, text: &str) {
        fs::create_dir_all(self.path(below).parent().expect("a folder")).expect("made");
        fs::write(self.path(below), text).expect("written");
    }

    fn unit(&self, words: &[&str]) -> Ended {
        fief().arg("unit").args(words).arg("--root").arg(self.0.path()).ends()
    }
}

#[test]
fn a_drop_in_is_written_once_and_undone_once() {
    let image = Image::new();
    let first = image.unit(&["nginx", "--container", "shop", "--listener", "web"]);
    assert!(first.code == 0 && first.stdout.starts_with("wrote "), "{first:?}");
    assert!(first.stdout.contains("kept waiting if its listener has restart = \"10s\"\n"), "{first:?}");
    let text = fs::read_to_string(image.path(DROP_IN)).expect("written");
    let start =
        "ExecStart=/usr/bin/fief exec --here --container shop --listener web -- /usr/bin/true -g 'daemon on;'\n";
    assert!(text.ends_with(&format!("[Service]\nExecStart=\n{start}")), "{text}");
    let again = image.unit(&["nginx.service", "--container", "shop", "--listener", "web"]);
    assert!(again.code == 0 && again.stdout.ends_with("is as it should be\n"), "{again:?}");
    let other = image.unit(&["nginx", "--container", "tenant"]);
    assert!(other.code == 0 && other.stdout.starts_with("replaced "), "{other:?}");
    let undone = image.unit(&["nginx", "--undo"]);
    assert!(undone.code == 0 && undone.stdout.starts_with("removed "), "{undone:?}");
    assert!(!image.path("etc/systemd/system/nginx.service.d").exists());
    let undone = image.unit(&["nginx", "--undo"]);
    assert!(undone.code == 0 && undone.stdout.starts_with("there is no "), "{undone:?}");
}

#[test]
fn printing_writes_nothing() {
    let image = Image::new();
    let printed = image.unit(&["nginx", "--container", "shop", "--print"]);
    assert!(printed.code == 0 && printed.stdout.contains("\nExecStart=/usr/bin/fief exec "), "{printed:?}");
    assert!(!image.path("etc").exists());
}

#[test]
fn what_is_not_ours_or_not_there_is_said() {
    let image = Image::new();
    image.write(DROP_IN, "[Service]\nNice=5\n");
    for words in [&["nginx", "--container", "shop"][..], &["nginx", "--undo"]] {
        let refused = image.unit(words);
        assert_eq!(refused.code, 1);
        assert!(refused.stderr.contains("was not written by `fief unit`"), "{refused:?}");
    }
    assert_eq!(fs::read_to_string(image.path(DROP_IN)).expect("there"), "[Service]\nNice=5\n");
    let unknown = image.unit(&["ngnix", "--container", "shop"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("there is no unit ngnix.service"), "{unknown:?}");
}

/// `fief unit` of the shop's server, where files that it writes are seen by nobody else.
fn unit_in(place: &Place, words: &[&str]) -> Ended {
    let script = "mount -t tmpfs none /etc && mkdir -p /etc/systemd/system && echo \"$1\" > /etc/systemd/system/nginx.service \
                  && { [ ! -d /run/systemd ] || mount -t tmpfs none /run/systemd; } && shift && exec \"$0\" unit nginx \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fief"), NGINX]).args(words);
    place.namespace.enter(command.env("FIEF_SCOPE", &place.scope));
    command.output().expect("unshare starts").into()
}

#[test]
fn what_fief_exec_would_refuse_is_refused_before_it_is_written() {
    let Some(place) = Place::new() else { return };
    let nothing = unit_in(&place, &["--container", "shop", "--listener", "web"]);
    assert_eq!(nothing.code, 0, "{nothing:?}");
    assert!(nothing.stdout.contains("nobody knows whether there is"), "{nothing:?}");
    place.apply();
    let known = unit_in(&place, &["--container", "shop", "--listener", "web"]);
    assert!(known.code == 0 && known.stdout.contains("if its listener web has restart = \"10s\"\n"), "{known:?}");
    let waited = policy(&SHOP.replace("0.0.0.0:80\"", "0.0.0.0:80\"\nrestart = \"10s\""));
    let applied = place.fief().arg("apply").arg(waited.path()).ends();
    assert_eq!(applied.code, 0, "{applied:?}");
    let waits = unit_in(&place, &["--container", "shop", "--listener", "web"]);
    assert!(waits.code == 0 && !waits.stdout.contains("restart ="), "{waits:?}");
    let cases = [
        (&["--container", "/shop"][..], "did you mean shop?"),
        (&["--container", "system"], "no thread can be in the container system"),
        (&["--listener", "wbe"], "did you mean web?"),
    ];
    for (words, why) in cases {
        let refused = unit_in(&place, words);
        assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{words:?} {refused:?}");
        assert!(refused.stderr.contains(why), "{words:?} {refused:?}");
    }
    let copies = policy(&SHOP.replace("classes = \"listeners\"", "copies = \"per-class\""));
    let applied = place.fief().arg("apply").arg(copies.path()).ends();
    assert_eq!(applied.code, 0, "{applied:?}");
    let refused = unit_in(&place, &[]);
    assert!(refused.code == 1 && refused.stderr.contains("copies of the server"), "{refused:?}");
    assert_eq!(unit_in(&place, &["--container", "shop"]).code, 0);
}

/// One that was killed may have written the drop-in, and not told systemd. `systemctl` is a script that says a line each time.
#[test]
fn systemd_is_told_again_of_a_drop_in_that_is_there() {
    if !require(Feature::Root) {
        return;
    }
    let machine = tempfile::tempdir().expect("a folder");
    let systemctl = machine.path().join("systemctl");
    let unit = machine.path().join("nginx.service");
    fs::write(&unit, NGINX).expect("written");
    let told = format!("#!/bin/sh\ncase $1 in show) echo FragmentPath={};; *) echo \"$1\";; esac\n", unit.display());
    // another process writes it: one that another test forks meanwhile would keep it open for writing, and it could not be started
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    assert!(Command::new("sh").args(["-c", write]).arg(&systemctl).arg(&told).status().expect("sh starts").success());
    let script = "mount -t tmpfs none /etc && mount -t tmpfs none /run && mkdir -p /run/systemd/system \
                  && \"$0\" unit nginx && \"$0\" unit nginx && \"$0\" unit nginx --undo && \"$0\" unit nginx --undo";
    let path = std::env::var("PATH").expect("a path");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fief")]);
    command.env("PATH", format!("{}:{path}", machine.path().display()));
    let ended = Ended::from(command.output().expect("unshare starts"));
    assert_eq!((ended.code, ended.stdout.matches("daemon-reload\n").count()), (0, 4), "{ended:?}");
}

/// Where nothing is in force, with files of its own: `down`, `down --json`, and `down` as systemd calls it.
#[test]
fn down_names_the_units_that_do_not_start_without_a_policy_unless_systemd_stops_it() {
    let Some(place) = Place::new() else { return };
    let script = "mount -t tmpfs none /etc && mount -t tmpfs none /run && mount -t bpf none /sys/fs/bpf \
                  && mkdir -p /run/systemd/system /etc/systemd/system && echo \"$1\" > /etc/systemd/system/nginx.service \
                  && \"$0\" unit nginx --root / > /dev/null && \"$0\" down && \"$0\" down --json \
                  && SERVICE_RESULT=success \"$0\" down";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fief"), NGINX]);
    place.namespace.enter(command.env("FIEF_SCOPE", &place.scope));
    let ended = Ended::from(command.output().expect("unshare starts"));
    assert_eq!(ended.code, 0, "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let [nothing, page, json, by_systemd] = lines[..] else { panic!("{ended:?}") };
    assert_eq!([nothing, by_systemd], ["nothing is in force"; 2]);
    assert!(page.contains("these units do not start: nginx.service; `systemctl restart fief`"), "{page}");
    assert!(json.contains("\"stranded_units\":[\"nginx.service\"]"), "{json}");
}

/// systemd is asked whether it can read what we wrote.
#[test]
fn systemd_reads_the_unit_with_its_drop_in() {
    if !require(Feature::SystemdAnalyze) {
        return;
    }
    let image = Image::new();
    for hardening in ["", "User=www-data\n"] {
        image.write("usr/lib/systemd/system/nginx.service", &format!("{NGINX}{hardening}"));
        assert_eq!(image.unit(&["nginx", "--container", "100%-$shop"]).code, 0);
        let text = fs::read_to_string(image.path(DROP_IN)).expect("written");
        // the program that is verified to be there
        image.write(DROP_IN, &text.replace("/usr/bin/fief", env!("CARGO_BIN_EXE_fief")));
        let folder = image.path("etc/systemd/system");
        fs::copy(image.path("usr/lib/systemd/system/nginx.service"), folder.join("nginx.service")).expect("copied");
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--recursive-errors=no", "--man=no"]).arg(folder.join("nginx.service"));
        let said = Ended::from(verify.output().expect("it starts"));
        assert_eq!((said.code, said.stderr.contains("nginx.service")), (0, false), "{said:?}\n{text}");
        fs::remove_file(folder.join("nginx.service")).expect("removed");
    }
}
