// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An agent that is to write where there is no room: metrics and reading go on, and it writes once there is.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fief_testkit::wait_until;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::agent::Agent;
use crate::place::Place;
use crate::started::fief_in;

const DEADLINE: Duration = Duration::from_secs(60);

/// 64 KiB and three files, taken away on drop.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Some("size=64k,nr_inodes=4");
        mount(Some("none"), folder.path(), Some("tmpfs"), MsFlags::empty(), options).expect("root mounts");
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn fill(&self) {
        for name in ["1", "2", "3"] {
            let mut file = fs::File::create(self.path().join(name)).expect("it is left");
            while file.write_all(&[0; 4096]).is_ok() {}
        }
    }

    fn empty(&self) {
        ["1", "2", "3"].into_iter().for_each(|name| fs::remove_file(self.path().join(name)).expect("there"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(self.path(), MntFlags::MNT_DETACH);
    }
}

/// With this standard error.
fn agent(place: &Place, words: &[&str], said: fs::File) -> Agent {
    let mut fief = Command::new(env!("CARGO_BIN_EXE_fief"));
    fief.env("FIEF_SCOPE", &place.scope).stderr(said);
    place.namespace.enter(&mut fief);
    Agent::of(fief, words)
}

fn failures(agent: &Agent) -> u64 {
    let metrics = agent.scrape();
    assert!(metrics.contains("fief_in_force 1\n"), "{metrics}");
    let count = metrics.lines().find_map(|line| line.strip_prefix("fief_record_failures_total "));
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{metrics}"))
}

#[test]
fn an_agent_whose_disk_is_full_at_its_start_serves_says_so_once_and_records_later() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let disk = Disk::new();
    disk.fill();
    let record = disk.path().join("record");
    let said = tempfile::NamedTempFile::new().expect("a file");
    let words = ["--record", record.to_str().expect("text"), "--record-interval", "0.2"];
    let agent = agent(&place, &words, said.reopen().expect("there"));
    wait_until(DEADLINE, || failures(&agent) >= 3).expect("each turn that keeps nothing is counted");
    let warnings = || fs::read_to_string(said.path()).expect("text");
    let full = warnings();
    assert!(full.lines().count() == 1 && full.contains("No space left on device"), "{full}");
    disk.empty();
    let readings = || {
        let days = fief_in(&place.scope).args(["replay", "--json"]).arg(&record).ends();
        days.code == 0 && days.objects().iter().any(|day| day["readings"].as_u64() > Some(0))
    };
    wait_until(DEADLINE, readings).expect("it has room now");
    assert_eq!(warnings(), full, "nothing more is to be said");
}

#[test]
fn an_agent_whose_standard_error_is_on_the_full_disk_too_serves_and_counts() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let disk = Disk::new();
    disk.fill();
    let record = disk.path().join("record");
    let words = ["--record", record.to_str().expect("text"), "--record-interval", "0.2"];
    let said = fs::OpenOptions::new().append(true).open(disk.path().join("1")).expect("it is there");
    let agent = agent(&place, &words, said);
    wait_until(DEADLINE, || failures(&agent) >= 3).expect("it goes on behind the first");
}

#[test]
fn an_agent_whose_file_of_metrics_has_no_room_serves_says_so_once_and_writes_it_later() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let disk = Disk::new();
    disk.fill();
    let said = tempfile::NamedTempFile::new().expect("a file");
    let words = ["--textfile", disk.path().to_str().expect("text"), "--interval", "0.2"];
    let agent = agent(&place, &words, said.reopen().expect("there"));
    assert!(agent.scrape().contains("fief_in_force 1\n"));
    let warnings = || fs::read_to_string(said.path()).expect("text");
    let full = warnings();
    assert!(full.lines().count() == 1 && full.contains("cannot write the metrics into"), "{full}");
    disk.empty();
    wait_until(DEADLINE, || disk.path().join("fief.prom").exists()).expect("it has room now");
    assert_eq!(warnings(), full, "nothing more is to be said");
}

#[test]
fn numbers_of_an_agent_that_was_killed_go_also_where_the_next_does_not_start() {
    let Some(place) = Place::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let old = folder.path().join("fief.prom");
    fs::write(&old, "fief_in_force 1\n").expect("written");
    let serving = Agent::start(&place, &[]);
    let textfile = ["agent", "--listen", "0.0.0.0:9758", "--textfile"];
    let ended = place.fief().args(textfile).arg(folder.path()).ends();
    assert!(ended.stderr.contains("an agent serves already") && old.exists(), "it may be that one's: {ended:?}");
    drop(serving);
    let ended = place.fief().args(textfile).arg(folder.path()).ends();
    assert!(ended.code == 1 && ended.stderr.contains("listen on 127.0.0.1") && !old.exists(), "{ended:?}");
}

#[test]
fn what_is_no_folder_is_an_error_at_the_start() {
    let Some(place) = Place::new() else { return };
    let file = tempfile::NamedTempFile::new().expect("a file");
    for wrong in [file.path().to_owned(), file.path().join("record")] {
        for (option, why) in [("--record", "cannot make"), ("--textfile", "cannot write the metrics into")] {
            let ended = place.fief().args(["agent", option]).arg(&wrong).ends();
            assert!(ended.code == 1 && ended.stderr.contains(why), "{option}: {ended:?}");
        }
    }
}
