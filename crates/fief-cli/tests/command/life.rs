// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a policy at the command line: what is said when it comes into force, and when it is taken down.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use fief_control::{Hierarchy, Version};
use fief_testkit::{Cgroup, NetNs};
use serde_json::json;

use crate::place::Place;
use crate::started::{Ended, SHOP, fief_in, policy};

#[test]
fn apply_ends_with_who_serves_the_listeners() {
    let Some(place) = Place::new() else { return };
    let shop = policy(SHOP);
    let apply = || place.fief().args(["apply", "--containers", "256"]).arg(shop.path()).ends();
    let alone = apply();
    assert!(alone.stdout.contains("\nmode: enforce\n"), "{alone:?}");
    assert!(alone.stdout.contains("\nkept, not enforced: shop: cpu.share\n"), "{alone:?}");
    assert!(alone.stdout.contains("\nproblem: web: nothing listens on 0.0.0.0:80;"), "{alone:?}");

    let bind = || TcpListener::bind("0.0.0.0:80").expect("nobody else is in the namespace");
    let _listener = place.namespace.run(bind).expect("a namespace");
    let (served, pid) = (apply(), std::process::id());
    assert!(served.stdout.contains("\nweb on 0.0.0.0:80: "), "{served:?}");
    assert!(served.stdout.contains(&format!(" (process {pid}, not managed)\n")), "{served:?}");
    assert!(!served.stdout.contains("nothing listens"), "{served:?}");
    let brief = place.fief().args(["status", "--brief"]).ends();
    let of_brief = brief.stdout.split_once('\n').expect("a heading").1;
    assert!(served.stdout.ends_with(of_brief) && of_brief.starts_with("mode: "), "{brief:?}");

    let json = place.fief().args(["apply", "--json"]).arg(shop.path()).ends();
    let object = json.objects().remove(0);
    assert_eq!((json.objects().len(), json.stderr.as_str()), (1, ""));
    let listener = &object["status"]["listeners"][0];
    assert_eq!((&listener["listener"], &listener["servers"][0]["pid"]), (&json!("web"), &json!(pid)), "{object}");
}

#[test]
fn status_tells_what_is_in_force_since_when_and_by_whom() {
    let Some(place) = Place::new() else { return };
    let shop = policy(SHOP);
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later").as_secs();
    assert_eq!(place.fief().args(["apply", "--containers", "256"]).arg(shop.path()).ends().code, 0);
    let shown = || {
        let mut status = place.fief().args(["status", "--json"]).ends().objects().remove(0);
        // a busy machine may have a switch that no program saw
        let failures = status.as_object_mut().and_then(|status| status.remove("failures"));
        assert!(failures.is_some_and(|failures| failures.is_object()), "{status}");
        status
    };
    let status = shown();
    let sum = Ended::from(Command::new("sha256sum").arg(shop.path()).output().expect("it starts"));
    assert_eq!(status["sha256"].as_str(), sum.stdout.split(' ').next(), "{status}");
    assert!(status["since_s"].as_u64().expect("a time") >= before, "{status}");
    let with = status["applied_with"].as_str().expect("words");
    assert!(with.contains(" apply ") && with.ends_with(shop.path().to_str().expect("text")), "{status}");
    assert_eq!(status["applied_file"].as_str(), shop.path().to_str(), "{status}");
    assert!(status["applied_by"].as_str().expect("a user").starts_with("root"), "{status}");
    assert_eq!(status["build"], status["own_build"], "{status}");
    let page = place.fief().arg("status").ends().stdout;
    assert!(page.contains(&format!("\nsha256 {}\n", status["sha256"].as_str().expect("a hash"))), "{page}");
    // a policy that does not come into force leaves what is known of the other
    let wrong = policy(
        &SHOP
            .replace("version = 1", "version = 1\n[front]\ninterfaces = [\"nowhere0\"]")
            .replace("address =", "admit = true\naddress ="),
    );
    assert_eq!(place.fief().arg("apply").arg(wrong.path()).ends().code, 1);
    assert_eq!(shown(), status);
}

#[test]
fn down_says_what_it_took_down_and_then_that_nothing_is_in_force() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let down = place.fief().arg("down").ends();
    assert_eq!(down.code, 0, "{down:?}");
    assert_eq!(down.stdout, "took down 2 containers, 1 listener (web) and 0 managed units\n");
    let again = place.fief().arg("down").ends();
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.stdout.starts_with("nothing is in force"), "{again:?}");
    let object = place.fief().args(["down", "--json"]).ends().objects().remove(0);
    assert_eq!((&object["was_in_force"], &object["containers"]), (&json!(false), &json!(0)), "{object}");
}

#[test]
fn a_policy_that_takes_a_units_container_is_refused_with_the_command_that_helps() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let unit = Cgroup::new("homeless").expect("a cgroup");
    let folder = unit.path().to_str().expect("text");
    assert_eq!(place.fief().args(["manage", folder, "--container", "shop/gold"]).ends().code, 0);
    let other = policy(&SHOP.replace("shop/gold", "shop/silver"));
    let apply = |words: &[&str]| place.fief().arg("apply").args(words).arg(other.path()).ends();
    let command = ["manage", "--container", "shop", folder];
    let before = all_of(&place);
    let [refused, dry] = [&[][..], &["--dry-run"]].map(apply);
    assert!(refused.code == 1 && refused.stdout.is_empty(), "{refused:?}");
    for help in
        [format!("\n  {folder} is at home in shop/gold: `fief {}`", command.join(" ")), "`fief apply --let-go".into()]
    {
        assert!(refused.stderr.contains(&help), "{help}: {refused:?}");
    }
    assert_eq!((dry.code, &dry.stderr), (1, &refused.stderr), "{dry:?}");
    assert!(
        dry.stdout.contains("would refuse it") && dry.stdout.contains(&format!("let go: unit {folder} ")),
        "{dry:?}"
    );
    let object = apply(&["--dry-run", "--json"]).objects().remove(0);
    assert_eq!((&object["refused"], &object["units"][0]["home"]), (&json!(true), &json!(null)), "{object}");
    assert_eq!(all_of(&place), before);
    // as it is told: then the policy comes into force, and back again
    assert_eq!(place.fief().args(command).ends().code, 0);
    assert_eq!([&[][..], &["--dry-run"]].map(|words| apply(words).code), [0, 0]);
    place.apply();
    assert_eq!(place.fief().args(["manage", folder, "--container", "shop/gold"]).ends().code, 0);
    let one = |name: &str| apply(&["--dry-run", &format!("--let-go={name}")]).code;
    assert_eq!((one(folder), one("another.service")), (0, 1), "of one unit the others are not let go");
    assert_eq!(apply(&["--dry-run", "--let-go"]).code, 0);
    let applied = apply(&["--let-go"]);
    let told = format!("\nproblem: {folder} is at home in shop/gold, which the policy no longer names");
    assert!(
        applied.stdout.contains(&told) && applied.stdout.contains(&format!("`fief manage {folder} --container")),
        "{applied:?}"
    );
    assert_eq!(place.fief().args(["manage", folder, "--container", "shop/silver"]).ends().code, 0);
    let status = place.fief().arg("status").ends();
    assert!(!status.stdout.contains("at home in"), "{status:?}");
}

/// One that the front door wants to be 1.
const SYSCTL: &str = "/proc/sys/net/ipv4/conf/lo/forwarding";

fn read_in(place: &Place, file: &str) -> String {
    let mut command = Command::new("cat");
    place.namespace.enter(command.arg(file));
    String::from_utf8(command.output().expect("cat starts").stdout).expect("text").trim().to_owned()
}

#[test]
fn down_gives_back_the_sysctls_of_an_apply_that_was_killed_early() {
    let Some(place) = Place::new() else { return };
    place.namespace.sysctl("net.ipv4.conf.lo.forwarding", "1").expect("set");
    let netns = std::fs::metadata(place.namespace.path()).expect("it is there").ino();
    let folder = Path::new("/run/fief").join(&place.scope);
    std::fs::create_dir_all(&folder).expect("made");
    let note = format!("netns = {netns}\nnet.ipv4.conf.lo.forwarding = 0\n");
    std::fs::write(folder.join("sysctls"), note).expect("written");
    let down = place.fief().arg("down").ends();
    assert!(down.code == 0 && down.stdout.starts_with("nothing is in force"), "{down:?}");
    assert_eq!(read_in(&place, SYSCTL), "0");
    assert!(!folder.exists());
}

/// A kill came after its first step, and its number is another process's by now, as this one's.
#[test]
fn what_a_killed_down_has_left_is_removed_whoever_has_its_number() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let pins = |name: &str| Path::new("/sys/fs/bpf").join(name);
    let left = pins(&format!("{}~{}", place.scope, std::process::id()));
    std::fs::rename(pins(&place.scope), &left).expect("as it takes them out of force");
    let down = place.fief().arg("down").ends();
    assert!(down.code == 0 && down.stdout.starts_with("nothing is in force"), "{down:?}");
    assert!(!left.exists());
}

#[test]
fn what_cannot_be_counted_is_taken_down_all_the_same() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let pins = Path::new("/sys/fs/bpf").join(&place.scope);
    std::fs::remove_file(pins.join("maps/units")).expect("it tells which cgroups are managed");
    let down = place.fief().arg("down").ends();
    assert_eq!(down.code, 0, "{down:?}");
    assert!(!pins.exists());
}

/// The last step of an apply fails: groups of an earlier one are in a hierarchy that is read-only now.
#[test]
fn a_policy_is_in_force_if_what_is_behind_that_fails_and_says_so() {
    let (Some(place), Ok(hierarchy)) = (Place::new(), Hierarchy::find()) else { return };
    if hierarchy.version == Version::V2 {
        return; // there is nothing to remove before there are groups
    }
    let links = || place.namespace.ip("-o link").expect("links");
    let before = (read_in(&place, SYSCTL), links());
    let left = hierarchy.top.join("fief").join(&place.scope);
    std::fs::create_dir_all(&left).expect("made");
    let queued = policy(&SHOP.replace("classes = \"listeners\"", "queue = true"));
    let script =
        "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" && exec \"$0\" apply --containers 256 \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fief")]).arg(&hierarchy.top).arg(queued.path());
    place.namespace.enter(command.env("FIEF_SCOPE", &place.scope));
    let applied = Ended::from(command.output().expect("unshare starts"));
    std::fs::remove_dir(&left).expect("it is empty");
    // other installations may be there
    let _ = std::fs::remove_dir(hierarchy.top.join("fief"));
    let told = format!("{}{}", applied.stdout, applied.stderr);
    assert!(applied.code == 0 && told.contains("cannot remove the cgroup"), "{applied:?}");
    assert!(!place.fief().arg("status").ends().stderr.contains("nothing is in force"));
    assert_ne!(read_in(&place, SYSCTL), before.0);
    assert_ne!(links(), before.1);
    assert_eq!(place.fief().arg("down").ends().code, 0);
    assert_eq!((read_in(&place, SYSCTL), links()), before);
}

/// What is in force, as far as any command lists it, and every file of it.
fn all_of(place: &Place) -> Vec<String> {
    let mut all: Vec<String> =
        [&["ls", "--json"][..], &["status", "--json"], &["explain", "--from", "10.1.0.1", "--json"]]
            .map(|words| place.fief().args(words).ends().stdout)
            .into();
    // what is known of a client comes with the time of the reading
    let explained = all[2].split_once(",\"live\":").map(|(policy, _)| policy.to_owned());
    all[2] = explained.unwrap_or_else(|| all[2].clone());
    // counts go on, whoever looks
    if let Ok(mut status) = serde_json::from_str::<serde_json::Value>(&all[1]) {
        status.as_object_mut().and_then(|status| status.remove("failures"));
        all[1] = status.to_string();
    }
    for root in ["/sys/fs/bpf", "/run/fief"] {
        let found =
            Command::new("find").arg(format!("{root}/{}", place.scope)).args(["-printf", "%p %s %T@\n"]).output();
        all.push(String::from_utf8(found.expect("find starts").stdout).expect("text"));
    }
    let lock = std::path::PathBuf::from(format!("/run/fief/{}.lock", place.scope));
    all.push(lock.exists().to_string());
    all
}

#[test]
fn a_dry_run_tells_what_would_change_and_changes_nothing() {
    let Some(place) = Place::new() else { return };
    let other = policy(
        &SHOP
            .replace("shop/gold", "shop/silver")
            .replace("[listener.web]", "[listener.shop]")
            .replace("listener.web.", "listener.shop."),
    );
    let dry = |words: &[&str]| place.fief().args(["apply", "--dry-run"]).args(words).arg(other.path()).ends();
    let empty = all_of(&place);
    let first = dry(&[]);
    assert_eq!((first.code, all_of(&place)), (0, empty), "{first:?}");
    assert!(first.stdout.contains("nothing is in force now\nmade: shop, shop/silver\n"), "{first:?}");

    place.apply();
    let before = all_of(&place);
    let (told, object) = (dry(&[]), dry(&["--json"]).objects().remove(0));
    assert_eq!(all_of(&place), before);
    assert_eq!(told.code, 0, "{told:?}");
    for line in [
        "made: shop/silver",
        "kept: shop",
        "ended: shop/gold",
        "new listener: shop on 0.0.0.0:80 (nobody listens there now)",
    ] {
        assert!(told.stdout.lines().any(|own| own == line), "{line} in {}", told.stdout);
    }
    let listeners = object["listeners"].as_array().expect("listeners");
    let changes: Vec<_> = listeners.iter().map(|of| (&of["listener"], &of["change"])).collect();
    assert_eq!(changes, [(&json!("shop"), &json!("new")), (&json!("web"), &json!("lost"))]);
    assert_eq!(object["ended"], json!([{ "container": "shop/gold", "held": false, "below": "shop" }]));

    let same = policy(SHOP);
    let same = place.fief().args(["apply", "--dry-run"]).arg(same.path()).ends();
    assert!(same.stdout.ends_with("`fief apply` would change nothing\n"), "{same:?}");
}

#[test]
fn apply_from_another_network_namespace_asks_first() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let shop = policy(SHOP);
    let other = NetNs::new("cli").expect("a namespace");
    let apply = |words: &[&str]| {
        let mut fief = fief_in(&place.scope).arg("apply").args(words).arg(shop.path());
        other.enter(fief.command());
        fief.ends()
    };
    for words in [&[][..], &["--dry-run"]] {
        let refused = apply(words);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains(&format!("(/run/netns/{})", place.namespace.name())), "{refused:?}");
        assert!(refused.stderr.contains("`fief apply --here`"), "{refused:?}");
    }
    assert_eq!(apply(&["--here"]).code, 0);
    assert_eq!(apply(&[]).code, 0);
}
