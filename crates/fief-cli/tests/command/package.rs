// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Debian packages: what they install, and what they take back before the program goes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use fief_testkit::{Feature, require};

use crate::place::Place;
use crate::started::Ended;

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

fn ended(command: &mut Command) -> Ended {
    command.output().expect("it starts").into()
}

/// The programs that are built here; in the place of the lab, where it is not built, lies another program.
fn programs(folder: &Path) {
    let fief = Path::new(env!("CARGO_BIN_EXE_fief"));
    let lab = fief.with_file_name("fief-lab");
    symlink(fief, folder.join("fief")).expect("a name for it");
    symlink(if lab.exists() { &lab } else { Path::new("/usr/bin/true") }, folder.join("fief-lab"))
        .expect("a name for it");
}

fn packages(folder: &Path) -> [PathBuf; 2] {
    programs(folder);
    let made = ended(Command::new(packaging("deb")).arg(folder).arg(folder).env("DEBEMAIL", "fief@example.com"));
    assert_eq!(made.code, 0, "{made:?}");
    let paths: Vec<&str> = made.stdout.lines().filter_map(|line| line.strip_prefix("made ")).collect();
    [paths[0].into(), paths[1].into()]
}

/// Files below a folder, as they are found from there.
fn files(folder: &Path, below: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(below).expect("a folder").flatten() {
        match entry.file_type().expect("it is there").is_dir() {
            true => files(folder, &entry.path(), found),
            false => found.push(entry.path().strip_prefix(folder).expect("below").display().to_string()),
        }
    }
}

/// Of the packages, without dpkg's own.
fn installed(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    files(root, root, &mut found);
    found.retain(|file| !file.starts_with("var/") && !file.starts_with("usr/share/doc/"));
    found.sort();
    found
}

fn pages() -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let man = ended(Command::new(env!("CARGO_BIN_EXE_fief")).arg("man").arg(folder.path()));
    assert_eq!(man.code, 0, "{man:?}");
    let mut pages = Vec::new();
    files(folder.path(), folder.path(), &mut pages);
    pages.iter().map(|page| format!("usr/share/man/man1/{page}.gz")).collect()
}

#[test]
fn packages_install_what_an_operator_needs_and_leave_nothing() {
    if !require(Feature::Root) || !require(Feature::Dpkg) {
        return;
    }
    let (built, root) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let [fief, lab] = packages(built.path());
    for package in [&fief, &lab] {
        let depends = ended(Command::new("dpkg-deb").arg("--field").arg(package).arg("Depends")).stdout;
        let is_libc = |name: &str| name.trim().starts_with("libc6 (>= ");
        assert!(depends.split(',').any(is_libc), "{}: {depends}", package.display());
    }
    let root = root.path();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).expect("made");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("made");
    fs::write(root.join("var/lib/dpkg/status"), "").expect("written");
    let dpkg = |words: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", root.display())).args(["--force-depends", "--force-script-chrootless"]);
        // whatever this machine leaves out of what it installs
        dpkg.args(["--path-include=*", "--log=/dev/null"]);
        let done = ended(dpkg.args(words));
        assert_eq!(done.code, 0, "{done:?}");
    };
    dpkg(&["--install", fief.to_str().expect("text"), lab.to_str().expect("text")]);

    let mut expected = [
        "usr/bin/fief",
        "usr/bin/fief-lab",
        "usr/include/fief.h",
        "usr/include/fief_policy.h",
        "usr/lib/systemd/system/fief-agent.service",
        "usr/lib/systemd/system/fief.service",
        "usr/lib/sysusers.d/fief.conf",
        "usr/share/bash-completion/completions/fief",
        "usr/share/fief/grafana/fief.json",
        "usr/share/fief/policy.schema.json",
        "usr/share/fief/python/fief.py",
        "usr/share/fish/vendor_completions.d/fief.fish",
        "usr/share/pkgconfig/fief.pc",
        "usr/share/zsh/vendor-completions/_fief",
    ]
    .map(str::to_owned)
    .to_vec();
    expected.extend(pages());
    expected.sort();
    assert_eq!(installed(root), expected);
    assert!(root.join("usr/share/doc/fief/examples/shop.toml").exists());
    let program = root.join("usr/bin/fief");
    assert!(is_smaller(&program, &built.path().join("fief")));
    let version = ended(Command::new(&program).arg("--version")).stdout;
    assert_eq!(version.trim(), format!("fief {}", env!("CARGO_PKG_VERSION")));

    dpkg(&["--purge", "fief-lab", "fief"]);
    assert_eq!(installed(root), [""; 0]);

    if require(Feature::Lintian) {
        let said =
            ended(Command::new("lintian").args(["--allow-root", "--fail-on", "error,warning"]).args([&fief, &lab]));
        assert_eq!((said.code, said.stdout.as_str()), (0, ""), "{said:?}");
    }
}

fn is_smaller(one: &Path, other: &Path) -> bool {
    let bytes = |path: &Path| fs::metadata(path).expect("there").len();
    bytes(one) < bytes(other)
}

#[test]
fn installing_leaves_out_what_only_debuggers_read() {
    let (built, root) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    programs(built.path());
    let mut install = Command::new(packaging("install"));
    let done = ended(install.arg("fief").args([built.path(), root.path()]).arg("/opt/fief"));
    assert_eq!(done.code, 0, "{done:?}");
    let program = root.path().join("opt/fief/bin/fief");
    assert!(is_smaller(&program, &built.path().join("fief")));
    assert_eq!(ended(Command::new(&program).arg("--version")).code, 0, "it runs");
}

#[test]
fn installing_asks_for_no_tool_of_tests_and_experiments() {
    let top = packaging("..");
    let planned = |goal: &str| ended(Command::new("make").args(["-n", goal, "PREFIX=/opt/fief"]).current_dir(&top));
    let install = planned("install");
    assert!(install.code == 0 && install.stdout.contains("packaging/install fief "), "{install:?}");
    assert!(!install.stdout.contains("fief-lab"), "{install:?}");
    let deps = install.stdout.lines().find(|line| line.contains("packaging/deps")).expect("it looks for what it needs");
    assert!(deps.ends_with(" build"), "{deps}");
    let lab = planned("install-lab");
    assert!(lab.code == 0 && lab.stdout.contains("packaging/install fief-lab "), "{lab:?}");
}

/// The script that dpkg runs before it removes or replaces the package, with the programs of a folder.
fn prerm(word: &str, programs: &Path) -> Command {
    let mut command = Command::new("unshare");
    // what this machine has of its own is none of the script's business
    let hidden = "mount -t tmpfs none /etc && exec \"$@\"";
    command.args(["--mount", "sh", "-c", hidden, "sh", "sh"]).arg(packaging("debian/fief.prerm")).arg(word);
    let paths = std::env::var("PATH").expect("there is one");
    command.env("PATH", format!("{}:{paths}", programs.display())).env("DPKG_ROOT", "");
    command
}

#[test]
fn removing_the_package_takes_down_what_is_in_force_and_says_so() {
    let Some(place) = Place::new() else { return };
    let programs = tempfile::tempdir().expect("a folder");
    symlink(env!("CARGO_BIN_EXE_fief"), programs.path().join("fief")).expect("a name for it");
    // the machine's own service is not this one's
    symlink("/bin/false", programs.path().join("systemctl")).expect("a name for it");
    place.apply();
    let run = |word: &str| {
        let mut command = prerm(word, programs.path());
        place.namespace.enter(command.env("FIEF_SCOPE", &place.scope));
        ended(&mut command)
    };
    let upgraded = run("upgrade");
    assert_eq!((upgraded.code, upgraded.stdout.as_str()), (0, ""), "{upgraded:?}");
    assert!(place.containers().contains(&"shop".to_owned()));
    let removed = run("remove");
    assert_eq!(removed.code, 0, "{removed:?}");
    assert!(removed.stdout.contains("taking down the policy that is in force"), "{removed:?}");
    assert_eq!(place.fief().arg("status").ends().code, 3);
    let again = run("remove");
    assert_eq!((again.code, again.stdout.as_str()), (0, ""), "{again:?}");
}

#[test]
fn removing_the_package_gives_services_their_own_start_back() {
    if !require(Feature::Root) {
        return;
    }
    let (programs, image) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    symlink(env!("CARGO_BIN_EXE_fief"), programs.path().join("fief")).expect("a name for it");
    let units = image.path().join("etc/systemd/system");
    fs::create_dir_all(&units).expect("made");
    fs::write(units.join("web.service"), "[Service]\nExecStart=/usr/bin/web\n").expect("written");
    let mut unit = Command::new(env!("CARGO_BIN_EXE_fief"));
    assert_eq!(ended(unit.args(["unit", "web", "--root"]).arg(image.path())).code, 0);
    let removed = ended(prerm("remove", programs.path()).env("DPKG_ROOT", image.path()));
    assert_eq!(removed.code, 0, "{removed:?}");
    assert!(removed.stdout.contains("web.service could not start without the program"), "{removed:?}");
    assert!(!units.join("web.service.d").exists());
}
