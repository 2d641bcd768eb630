// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record as a whole: what was written is read, whatever happened to the writer, the disk and the file.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fief_control::Snapshot;
use fief_testkit::{Feature, require};

use super::{Folder, Kept, Recorder, RecorderOptions};
use crate::series::tests::{container, snapshot};

const SECOND: Duration = Duration::from_secs(1);
/// 2026-11-25T23:59:00Z
const BEGIN: u64 = 1_795_651_140;
const ROOM: RecorderOptions = RecorderOptions { interval: SECOND, most_bytes: 1 << 30 };

fn moment(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + SECOND * (BEGIN + second) as u32
}

/// What is there in a second: some containers that change, come and go.
fn there(second: u64) -> Arc<Snapshot> {
    let mut there: Vec<_> =
        (8..40).map(|id| container(&format!("shop/c{id}"), id, Some(0), second * u64::from(id % 7))).collect();
    if second % 3 == 1 {
        there.push(container(&format!("shop/#{second}"), 1000 + second as u32, Some(8), second));
    }
    let mut snapshot = snapshot(there);
    snapshot.taken_ns = second * 1_000_000_000;
    Arc::new(snapshot)
}

fn write(folder: &Path, seconds: std::ops::Range<u64>) {
    let mut recorder = Recorder::open(Folder::of(folder), ROOM).expect("a folder");
    for second in seconds {
        assert_eq!(recorder.add(moment(second), Some(there(second))).expect("room"), Kept::Written);
    }
}

/// The seconds of a record, each of which is as it was.
fn read(folder: &Path) -> Vec<u64> {
    let mut player = Folder::of(folder).play(0).expect("a record");
    let mut seconds = Vec::new();
    while player.step(u64::MAX).expect("a record") {
        let Some(reading) = player.reading() else { continue };
        let second = reading.time_ms / 1000 - BEGIN;
        assert_eq!(format!("{:?}", reading.snapshot), format!("{:?}", there(second)), "{second}");
        seconds.push(second);
    }
    seconds
}

fn file(folder: &Path, day: u32) -> std::path::PathBuf {
    folder.join(format!("2026-11-{day}.fief"))
}

#[test]
fn every_second_is_read_as_it_was_over_midnight() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 0..130);
    assert!(file(folder.path(), 25).exists() && file(folder.path(), 26).exists());
    assert_eq!(read(folder.path()), (0..130).collect::<Vec<_>>());
    for second in [0, 1, 59, 60, 61, 129] {
        let player = Folder::of(folder.path()).at((BEGIN + second) * 1000 + 999).expect("a record");
        let reading = player.reading().expect("known");
        assert_eq!(format!("{:?}", reading.snapshot), format!("{:?}", there(second)), "{second}");
    }
    let before = Folder::of(folder.path()).at((BEGIN - 1) * 1000).expect("a record");
    assert!(before.reading().is_none());
}

#[test]
fn a_file_that_is_cut_anywhere_replays_up_to_the_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 0..20);
    let whole = fs::read(file(folder.path(), 25)).expect("a file");
    let mut seen = 20;
    for cut in (0..whole.len()).rev().step_by(7) {
        fs::write(file(folder.path(), 25), &whole[..cut]).expect("written");
        let seconds = read(folder.path());
        assert_eq!(seconds, (0..seconds.len() as u64).collect::<Vec<_>>(), "cut at {cut}");
        assert!(seconds.len() <= seen, "cut at {cut}");
        seen = seconds.len();
        // and it goes on
        if cut % 5 == 0 {
            write(folder.path(), 30..33);
            let seconds = read(folder.path());
            assert_eq!(seconds[seconds.len() - 3..], [30, 31, 32], "cut at {cut}");
            assert_eq!(seconds.len(), seen + 3, "cut at {cut}");
        }
    }
    assert_eq!(seen, 0);
}

#[test]
fn damage_in_the_middle_hides_no_more_than_its_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 0..10);
    let first = fs::metadata(file(folder.path(), 25)).expect("a file").len() as usize;
    write(folder.path(), 10..20); // its own whole reading first
    let mut bytes = fs::read(file(folder.path(), 25)).expect("a file");
    // a head and a payload
    for at in [2, first - 10] {
        bytes[at] ^= 0xff;
    }
    fs::write(file(folder.path(), 25), &bytes).expect("written");
    assert_eq!(read(folder.path()), (10..20).collect::<Vec<_>>());
}

#[test]
fn a_time_when_nothing_was_in_force_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut recorder = Recorder::open(Folder::of(folder.path()), ROOM).expect("a folder");
    recorder.add(moment(0), Some(there(0))).expect("room");
    for second in 1..4 {
        recorder.add(moment(second), None).expect("room");
    }
    recorder.add(moment(4), Some(there(4))).expect("room");
    recorder.finish(moment(4)).expect("room"); // in the same moment
    assert_eq!(read(folder.path()), [0, 4]);
    let known =
        |second: u64| Folder::of(folder.path()).at((BEGIN + second) * 1000).expect("a record").reading().is_some();
    assert_eq!([0, 1, 3, 4, 5].map(known), [true, false, false, true, false]);
}

/// Somebody without privilege may rename containers as fast as they like: that costs the rest of the day, and no earlier one.
#[test]
fn a_day_that_takes_its_part_ends_and_the_days_before_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let few = RecorderOptions { most_bytes: 20_000, ..ROOM };
    let mut recorder = Recorder::open(Folder::of(folder.path()), few).expect("a folder");
    let size = || Folder::of(folder.path()).size().expect("a folder");
    let mut kept = Vec::new();
    for second in 0..120 {
        kept.push(recorder.add(moment(second), Some(there(second))).expect("written"));
        let days = if second < 60 { 1 } else { 2 };
        assert!(size() <= days * few.most_bytes / 8, "{second}: {}", size());
    }
    for day in kept.chunks(60) {
        assert_eq!((day[0], day[59]), (Kept::Written, Kept::NoRoom), "a day begins, and is full");
    }
    let seconds = read(folder.path());
    assert!(seconds.starts_with(&[0]) && seconds.contains(&60), "{seconds:?}");
}

/// After one that is too long the next would fit, and after that the next long one would be told of anew.
#[test]
fn a_day_that_was_full_once_is_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let few = RecorderOptions { most_bytes: 20_000, ..ROOM };
    let mut recorder = Recorder::open(Folder::of(folder.path()), few).expect("a folder");
    // names that no compression makes short
    let name = |id: u32| format!("{:x}", u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let of = |many: u32| Arc::new(snapshot((8..8 + many).map(|id| container(&name(id), id, Some(0), 1)).collect()));
    let kept = [(0, 1), (1, 2_000), (2, 1), (3, 2_000), (60, 1)]
        .map(|(second, many)| recorder.add(moment(second), Some(of(many))).expect("written"));
    assert_eq!(kept, [Kept::Written, Kept::NoRoom, Kept::NoRoom, Kept::NoRoom, Kept::Written]);
}

#[test]
fn the_oldest_days_make_room_for_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let few = RecorderOptions { most_bytes: 20_000, ..ROOM };
    // each as large as a day may be
    for day in 17..25 {
        fs::write(file(folder.path(), day), [0; 2_500]).expect("written");
    }
    let mut recorder = Recorder::open(Folder::of(folder.path()), few).expect("a folder");
    assert_eq!(recorder.add(moment(0), Some(there(0))).expect("written"), Kept::Written);
    assert!(!file(folder.path(), 17).exists() && file(folder.path(), 18).exists());
    assert_eq!(read(folder.path()), [0]);
}

#[test]
fn a_clock_that_is_set_back_hides_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut recorder = Recorder::open(Folder::of(folder.path()), ROOM).expect("a folder");
    for (clock, second) in [(10, 10), (11, 11), (9, 11), (12, 12)] {
        recorder.add(moment(clock), Some(there(second))).expect("room");
    }
    assert_eq!(read(folder.path()), [10, 11, 11, 12]);
}

/// A small file system of its own, taken away on drop.
pub(super) struct Disk(tempfile::TempDir);

impl Disk {
    pub(super) fn of(options: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        nix::mount::mount(Some("none"), folder.path(), Some("tmpfs"), nix::mount::MsFlags::empty(), Some(options))
            .expect("root mounts");
        Self(folder)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_loses_readings_and_nothing_that_was_written() {
    if !require(Feature::Root) {
        return;
    }
    let disk = Disk::of("size=64k");
    let folder = disk.path();
    let mut recorder = Recorder::open(Folder::of(folder), ROOM).expect("a folder");
    recorder.add(moment(0), Some(there(0))).expect("room");
    let rest = folder.join("rest");
    let fill = OpenOptions::new().create(true).append(true).open(&rest).expect("a file");
    let zeros = [0_u8; 4096];
    while std::io::Write::write(&mut &fill, &zeros).is_ok() {}
    let failed = (1..400).filter(|&second| recorder.add(moment(second), Some(there(second))).is_err()).count();
    assert!(failed > 0, "it never was full");
    let before = read(folder);
    assert_eq!(before[0], 0);
    drop(fill);
    fs::remove_file(&rest).expect("there");
    for second in 400..403 {
        recorder.add(moment(second), Some(there(second))).expect("room again");
    }
    let after = read(folder);
    assert_eq!(after[..before.len()], before);
    assert_eq!(after[after.len() - 3..], [400, 401, 402]);
    assert_eq!(after.len() + failed, 403);
}
