// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record as its readers have it: history reads as the present does, and a bill adds up.

use std::collections::BTreeMap;
use std::path::Path;

use crate::place::Place;
use crate::started::{Ended, fief};

fn record(place: &Place, folder: &Path, count: &str) -> Ended {
    place.fief().arg("record").arg(folder).args(["--interval", "0.1", "--count", count]).ends()
}

#[test]
fn history_reads_as_the_present_does() {
    let Some(place) = Place::new() else { return };
    place.apply();
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
    let busy: Vec<u64> =
        lines.objects().chunks(2).map(|pair| pair.iter().filter_map(|one| one["thread_ns"].as_u64()).sum()).collect();
    let of = |name: &str| day[0][name].as_str().expect("a time").parse::<jiff::Timestamp>().expect("a time");
    let tenths = (of("to").as_millisecond() - of("from").as_millisecond()) / 100;
    assert!(
        busy.len() as i64 >= tenths && tenths >= 5 && busy.is_sorted() && busy[0] < busy[busy.len() - 1],
        "{busy:?}"
    );
    let top = replay(&["top", "--plain", "--at", from, "--interval", "0.3", "--count", "2"]);
    assert!(top.code == 0 && top.stdout.matches("CONTAINER").count() == 2, "{top:?}");

    let early = replay(&["usage", "--at", "2020-01-01T00:00:00Z"]);
    assert!(early.code == 1 && early.stderr.contains("nothing is recorded at 2020-01-01T00:00:00Z"), "{early:?}");
    assert_eq!(fief().args(["usage", "--at", from]).ends().code, 2, "a time needs a record");
    let none = tempfile::tempdir().expect("a folder");
    let nothing = fief().args(["usage", "--replay"]).arg(none.path()).ends();
    assert!(nothing.stderr.contains("`fief record"), "{nothing:?}");
}

#[test]
fn a_bill_adds_up_to_what_was_used() {
    let Some(place) = Place::new() else { return };
    place.apply();
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(record(&place, folder.path(), "12").code, 0);
    let totals = |at: &str| {
        let words = ["usage", "--json", "--at", at, "--replay"];
        let objects = fief().args(words).arg(folder.path()).ends().objects();
        objects
            .iter()
            .map(|one| one["thread_ns"].as_u64().expect("an integer") + one["receive_ns"].as_u64().expect("an integer"))
            .sum::<u64>()
    };
    let day = fief().arg("replay").arg(folder.path()).arg("--json").ends().objects();
    let time = |name: &str| day[0][name].as_str().expect("a time").to_owned();
    let used = totals(&time("to")) - totals(&time("from"));

    let bill = |words: &[&str]| fief().arg("bill").arg(folder.path()).args(words).ends();
    let sum = |objects: &[serde_json::Value]| {
        let cpu = |one: &serde_json::Value| {
            one["thread_ns"].as_u64().expect("an integer") + one["receive_ns"].as_u64().expect("an integer")
        };
        objects.iter().map(cpu).sum::<u64>()
    };
    let whole = bill(&["--format", "json"]).objects();
    let parts = bill(&["--format", "json", "--interval", "0.25"]).objects();
    assert_eq!((sum(&whole), sum(&parts)), (used, used));
    let intervals: BTreeMap<_, _> = parts.iter().map(|one| (one["from"].to_string(), ())).collect();
    assert!(intervals.len() >= 4, "{intervals:?}");

    let csv = bill(&["--format", "csv"]).stdout;
    let mut lines = csv.lines();
    assert!(lines.next().expect("names").starts_with("from,to,container,thread_ns,receive_ns,"), "{csv}");
    let cpu = lines
        .map(|line| line.split(',').skip(3).take(2).map(|cell| cell.parse::<u64>().expect("a number")).sum::<u64>());
    assert_eq!(cpu.sum::<u64>(), used);
}
