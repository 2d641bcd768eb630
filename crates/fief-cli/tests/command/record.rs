// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record as its readers have it: history reads as the present does, and a bill adds up.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ::fief::Usage;
use fief_agent::record::Folder;
use fief_control::Snapshot;
use fief_testkit::{Feature, Process, require, wait_until};
use serde_json::Value;

use crate::place::Place;
use crate::started::{Ended, SHOP, fief, policy};

const SOON: Duration = Duration::from_secs(30);

fn record(place: &Place, folder: &Path, count: &str) -> Ended {
    place.fief().arg("record").arg(folder).args(["--interval", "0.1", "--count", count]).ends()
}

#[test]
fn history_reads_as_the_present_does() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let _managed = place.manage("shop");
    let folder = tempfile::tempdir().expect("a folder");
    let recorded = record(&place, folder.path(), "10");
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let replay = |words: &[&str]| fief().args(words).arg("--replay").arg(folder.path()).ends();

    let now = place.fief().args(["usage", "--json"]).ends().objects();
    let then = replay(&["usage", "--json"]).objects();
    let keys =
        |objects: &[serde_json::Value]| objects[0].as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&then), keys(&now));
    assert_eq!(then.len(), now.len());
    let listed = replay(&["ls"]).stdout;
    assert!(listed.contains("gold") && listed.contains("idle"), "{listed}");

    let day = fief().arg("replay").arg(folder.path()).arg("--json").ends().objects();
    let readings: u64 = day.iter().filter_map(|day| day["readings"].as_u64()).sum();
    assert_eq!(readings, 10, "{day:?}");
    let from = day[0]["from"].as_str().expect("a time");
    let lines = replay(&["usage", "idle", "root", "--json", "--interval", "0.1", "--at", from]);
    assert_eq!(lines.code, 0, "it ends where the record does: {lines:?}");
    let objects = lines.objects();
    let number = |one: &Value, name: &str| one[name].as_u64().expect("an integer");
    let taken: Vec<u64> = objects.iter().map(|one| number(one, "taken_ns")).collect();
    let busy: Vec<u64> = objects.chunks(2).map(|pair| pair.iter().map(|one| number(one, "thread_ns")).sum()).collect();
    // From the first of ten turns to the last one there are nine tenths of a second, less what the first one was late. In between the
    // sum may fall: what a CPU seemed to do that stood still is taken back.
    assert!(busy.len() >= 8 && taken.is_sorted() && busy[0] < busy[busy.len() - 1], "{busy:?}, taken at {taken:?}");
    let top = replay(&["top", "--plain", "--at", from, "--interval", "0.3", "--count", "2"]);
    assert!(top.code == 0 && top.stdout.matches("CONTAINER").count() == 2, "{top:?}");

    let early = replay(&["usage", "--at", "2020-01-01T00:00:00Z"]);
    assert!(early.code == 1 && early.stderr.contains("nothing is recorded at 2020-01-01T00:00:00Z"), "{early:?}");
    assert_eq!(fief().args(["usage", "--at", from]).ends().code, 2, "a time needs a record");
    let none = tempfile::tempdir().expect("a folder");
    let nothing = fief().args(["usage", "--replay"]).arg(none.path()).ends();
    assert!(nothing.stderr.contains("`fief record"), "{nothing:?}");
}

type Counter = (&'static str, fn(&Usage) -> u64);

/// Every counter that a bill tells.
const COUNTERS: [Counter; ::fief::COUNTERS] = [
    ("thread_ns", |u| u.thread_ns),
    ("receive_ns", |u| u.receive_ns),
    ("user_ns", |u| u.user_ns),
    ("system_ns", |u| u.system_ns),
    ("packets_in", |u| u.packets_in),
    ("bytes_in", |u| u.bytes_in),
    ("packets_out", |u| u.packets_out),
    ("bytes_out", |u| u.bytes_out),
    ("disk_read_bytes", |u| u.disk_read_bytes),
    ("disk_write_bytes", |u| u.disk_write_bytes),
    ("minor_faults", |u| u.minor_faults),
    ("major_faults", |u| u.major_faults),
    ("syns_seen", |u| u.syns_seen),
    ("syns_dropped", |u| u.syns_dropped),
    ("accepts", |u| u.accepts),
];

type Totals = BTreeMap<&'static str, u64>;

/// Of all containers.
fn totals(snapshot: &Snapshot) -> Totals {
    let sum = |read: fn(&Usage) -> u64| snapshot.containers.iter().map(|view| read(&view.usage)).sum();
    COUNTERS.iter().map(|(name, read)| (*name, sum(*read))).collect()
}

/// Of the lines of a command.
fn sums(objects: &[Value]) -> Totals {
    let sum = |name: &str| objects.iter().map(|one| one[name].as_u64().expect("an integer")).sum();
    COUNTERS.iter().map(|(name, _)| (*name, sum(name))).collect()
}

/// What a record has by its readings alone: of the first installation since the first reading, of those that began later all. Beside it
/// how many ended within, and the last reading.
fn used(folder: &Path) -> (Totals, usize, Totals) {
    let mut player = Folder::of(folder).play(0).expect("a record");
    let (mut first, mut ended) = (None, Vec::new());
    while player.step(u64::MAX).expect("a record") {
        ended.extend(player.take_ended().map(|last| totals(&last)));
        if let (None, Some(reading)) = (&first, player.reading()) {
            first = Some(totals(reading.snapshot));
        }
    }
    let (first, last) = (first.expect("a reading"), totals(player.known().expect("a reading")));
    let used = |name| ended.iter().chain([&last]).map(|end| end[name]).sum::<u64>() - first[name];
    (COUNTERS.iter().map(|(name, _)| (*name, used(*name))).collect(), ended.len(), last)
}

/// A server in a container, until it has answered some requests.
fn serve(place: &Place, container: &str) {
    let words = ["exec", "--container", container, "--", "python3", "-m", "http.server", "80"];
    let mut fief = place.fief().args(words);
    fief.command().stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Process::start(std::mem::replace(fief.command(), Command::new("true"))).expect("fief starts");
    server.ask_first(SOON);
    let ask = || {
        let mut stream = TcpStream::connect("127.0.0.1:80").ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok().filter(|_| answer.contains(" 200 OK"))
    };
    let mut answers = 0;
    wait_until(SOON, || {
        answers += usize::from(place.namespace.run(ask).expect("in the namespace").is_some());
        answers >= 3
    })
    .expect("it answers");
    server.stop(SOON).expect("it ends");
}

/// In which the kernel tells what all CPUs did.
const TICK_NS: u64 = 10_000_000;

/// What the hypervisor had of them up to now, by the kernel's account.
fn stolen_ns() -> u64 {
    let all = std::fs::read_to_string("/proc/stat").expect("procfs");
    let ticks = all.split_whitespace().nth(8).and_then(|ticks| ticks.parse::<u64>().ok());
    ticks.expect("the first line is of all CPUs") * TICK_NS
}

/// Of a bill.
const INTERVAL: Duration = Duration::from_millis(250);

/// Over containers that were made and ended, that pass their usage up or not, and over the end of an installation and the next one.
#[test]
fn a_bill_adds_up_to_what_was_used() {
    let Some(place) = Place::new().filter(|_| require(Feature::Python)) else { return };
    let stolen_before = stolen_ns();
    let apply = |text: &str| {
        let file = policy(text);
        let ended = place.fief().args(["apply", "--containers", "256"]).arg(file.path()).ends();
        assert_eq!(ended.code, 0, "{ended:?}");
    };
    apply(SHOP);
    let folder = tempfile::tempdir().expect("a folder");
    let mut recorder = place.fief().arg("record").arg(folder.path()).args(["--interval", "0.1"]);
    recorder.command().stdout(Stdio::null());
    let recorder = Process::start(std::mem::replace(recorder.command(), Command::new("true"))).expect("fief starts");
    let readings = || {
        let days = fief().arg("replay").arg(folder.path()).arg("--json").ends().objects();
        days.iter().filter_map(|day| day["readings"].as_u64()).sum::<u64>()
    };
    // of the two, the second one began after what was done before
    let goes_on = || {
        let before = readings();
        wait_until(SOON, || readings() >= before + 2).expect("it records");
    };
    goes_on();
    apply(&format!("{SHOP}\n[container.\"shop/guest\"]\npass-up = true\n[container.\"shop/other\"]\n"));
    serve(&place, "shop/guest");
    let work = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; cat /proc/self/maps > /dev/null";
    let worked = place.fief().args(["exec", "--container", "shop/other", "--", "sh", "-c", work]).ends();
    assert_eq!(worked.code, 0, "{worked:?}");
    // an interval of the bill ends while they are there
    goes_on();
    std::thread::sleep(INTERVAL);
    goes_on();
    apply(SHOP);
    let is_gone = || place.containers().iter().all(|path| !["shop/guest", "shop/other"].contains(&path.as_str()));
    wait_until(SOON, is_gone).expect("nobody names them any more");
    goes_on();
    assert_eq!(place.fief().arg("down").ends().code, 0);
    apply(SHOP);
    serve(&place, "shop/gold");
    goes_on();
    recorder.stop(SOON).expect("it ends");

    let (used, ended, last) = used(folder.path());
    assert_eq!(ended, 1, "one installation ended within the record");
    for name in ["thread_ns", "packets_in", "bytes_in", "packets_out", "bytes_out", "minor_faults", "accepts"] {
        assert!(used[name] > 0, "{name} is not tried: {used:?}");
    }
    let replayed = fief().args(["usage", "--json", "--replay"]).arg(folder.path()).ends();
    assert_eq!(sums(&replayed.objects()), last);

    let bill = |words: &[&str]| fief().arg("bill").arg(folder.path()).args(words).ends();
    let whole = bill(&["--format", "json"]).objects();
    let parts = bill(&["--format", "json", "--interval", &INTERVAL.as_secs_f64().to_string()]).objects();
    // A reading has the time of a CPU that stands still, which is taken from what its container uses later. Of one that uses nothing more
    // it stays in the bill.
    let too_much = stolen_ns() - stolen_before + TICK_NS;
    let is_used = |sums: &Totals| {
        for (name, sum) in sums {
            let most = used[name] + if ["thread_ns", "receive_ns"].contains(name) { too_much } else { 0 };
            assert!((used[name]..=most).contains(sum), "{name}: {sum} of {}, {too_much} stolen", used[name]);
        }
    };
    is_used(&sums(&whole));
    is_used(&sums(&parts));
    for container in ["shop/guest", "shop/other"] {
        assert!(parts.iter().any(|line| line["container"] == container && line["thread_ns"].as_u64() > Some(0)));
    }
    let intervals: BTreeSet<_> = parts.iter().map(|one| one["from"].to_string()).collect();
    assert!(intervals.len() >= 4, "{intervals:?}");

    let csv = bill(&["--format", "csv"]).stdout;
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().expect("names").split(',').collect();
    assert_eq!(names, [&["from", "to", "container"][..], &COUNTERS.map(|(name, _)| name)].concat());
    let mut columns = [0; ::fief::COUNTERS];
    for line in lines {
        let cells = line.split(',').skip(3).map(|cell| cell.parse::<u64>().expect("a number"));
        columns.iter_mut().zip(cells).for_each(|(sum, cell)| *sum += cell);
    }
    assert_eq!(COUNTERS.iter().map(|(name, _)| *name).zip(columns).collect::<Totals>(), sums(&whole));
}
