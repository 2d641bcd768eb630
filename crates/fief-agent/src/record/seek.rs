// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places in a day's file, found by few reads: the whole reading to begin with, the first reading and the last.
//!
//! Problem: a day has a chunk for each second, 86,400 and more. How: a chunk is found from any offset, by its magic and its checksum, and
//! times only grow, so that a binary search finds a time; from there the search for a whole reading goes back in windows that double.
//! Nothing is kept beside the file that could be out of date after a crash. Limits: where a clock was set back by more than a minute, a
//! time may be there twice, and either is found. A payload that has the bytes of a head would be taken for a chunk: a head has bytes of
//! zero, which no name of a container has.

use std::fs::File;
use std::io;

use super::chunk::{Chunk, Chunks, Kind};

/// Bytes that the search back begins with.
const WINDOW: u64 = 4 * 1024;

/// The offset of the last whole reading that is not later than a time.
pub(super) fn whole_before(file: &File, time_ms: u64) -> io::Result<Option<u64>> {
    let size = file.metadata()?.len();
    let Some(last) = last_until(file, size, time_ms)? else { return Ok(None) };
    let whole = last_where(file, last.end(), |chunk| chunk.kind == Kind::Whole && chunk.time_ms <= time_ms)?;
    Ok(whole.map(|chunk| chunk.offset))
}

/// The first reading.
pub(super) fn first(file: &File) -> io::Result<Option<Chunk>> {
    Chunks::of(file, 0)?.find(|chunk| chunk.as_ref().map_or(true, is_reading)).transpose()
}

/// The last reading.
pub(super) fn last(file: &File) -> io::Result<Option<Chunk>> {
    last_where(file, file.metadata()?.len(), is_reading)
}

pub(super) fn is_reading(chunk: &Chunk) -> bool {
    chunk.kind != Kind::Nothing
}

/// The last chunk that is not later than a time.
fn last_until(file: &File, size: u64, time_ms: u64) -> io::Result<Option<Chunk>> {
    // what begins before `from` is not later, and the first that begins at `to` or behind it is, or there is none
    let (mut found, mut from, mut to) = (None, 0, size);
    while from < to {
        // mostly the neighbour of what was found ends the search, which else would go on byte by byte
        if let Some(next) = Chunk::at(file, size, from)? {
            if next.time_ms > time_ms {
                break;
            }
            (found, from) = (Some(next), next.end());
        }
        let middle = from + to.saturating_sub(from) / 2;
        match Chunk::within(file, size, middle, to)?.filter(|chunk| chunk.time_ms <= time_ms) {
            Some(chunk) => (found, from) = (Some(chunk), chunk.end()),
            None => to = middle,
        }
    }
    Ok(found)
}

/// The last chunk that begins before an offset and is as it is asked for.
fn last_where(file: &File, mut end: u64, is_it: impl Fn(&Chunk) -> bool) -> io::Result<Option<Chunk>> {
    let (size, mut window) = (file.metadata()?.len(), WINDOW);
    while end > 0 {
        let (begin, mut found) = (end.saturating_sub(window), None);
        let mut from = begin;
        while let Some(chunk) = Chunk::within(file, size, from, end)? {
            from = chunk.end();
            if is_it(&chunk) {
                found = Some(chunk);
            }
        }
        if found.is_some() {
            return Ok(found);
        }
        (end, window) = (begin, window.saturating_mul(2));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::{Duration, Instant, SystemTime};

    use super::super::chunk::{self, tests::reads};
    use super::super::{Folder, Recorder, RecorderOptions};
    use super::*;
    use crate::series::tests::{container, snapshot};
    use fief_control::Snapshot;

    const SECOND: Duration = Duration::from_secs(1);
    const SECONDS: u64 = 86_400;
    /// 2026-11-25T00:00:00Z
    const MIDNIGHT: u64 = 1_795_564_800;

    /// What `whole_before` is to find: by looking at each.
    fn whole_by_all(file: &File, time_ms: u64) -> Option<u64> {
        let chunks = Chunks::of(file, 0).expect("a size").map(|chunk| chunk.expect("read"));
        let earlier = chunks.take_while(|chunk| chunk.time_ms <= time_ms);
        earlier.filter(|chunk| chunk.kind == Kind::Whole).last().map(|chunk| chunk.offset)
    }

    /// Chunks a second apart with a whole one each `every`, and nothing of their readings.
    fn day(begin: u64, seconds: u64, every: u64) -> Vec<u8> {
        let chunk = |second| {
            let kind = if second % every == 0 { Kind::Whole } else { Kind::Change };
            chunk::bytes((begin + second) * 1000, kind, &[second as u8; 60][..(second % 50 + 10) as usize])
        };
        (0..seconds).flat_map(chunk).collect()
    }

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(bytes, 0).expect("written");
        file
    }

    #[test]
    fn what_is_found_is_what_looking_at_each_finds_however_the_file_is_damaged() {
        let good = day(100, 60, 7);
        let check = |bytes: &[u8], about: usize| {
            let file = file(bytes);
            for time in [0, 99_999, 100_000, 106_999, 107_000, 130_500, 158_000, 159_000, u64::MAX] {
                let found = whole_before(&file, time).expect("read");
                assert_eq!(found, whole_by_all(&file, time), "{about}: {time}");
            }
            let readings = || Chunks::of(&file, 0).expect("a size").map(|chunk| chunk.expect("read"));
            assert_eq!(first(&file).expect("read"), readings().next(), "{about}");
            assert_eq!(last(&file).expect("read"), readings().last(), "{about}");
        };
        for at in (0..=good.len()).step_by(3) {
            check(&good[..at], at); // cut there
            let mut bad = good.clone();
            bad.iter_mut().skip(at).step_by(397).for_each(|byte| *byte ^= 0x55);
            check(&bad, at);
            bad.splice(at..(at + 500).min(good.len()), []);
            check(&bad, at);
        }
    }

    #[test]
    fn long_chunks_and_long_times_of_nothing_hide_no_whole_reading() {
        let chunks = [
            (1, Kind::Whole, 10),
            (2, Kind::Change, 3 << 20),
            (3, Kind::Nothing, 0),
            (9_000, Kind::Whole, 5 << 20),
            (9_001, Kind::Change, 70_000),
            (9_002, Kind::Nothing, 0),
        ];
        let bytes = chunks.map(|(second, kind, length)| chunk::bytes(second * 1000, kind, &vec![7; length])).concat();
        let file = file(&bytes);
        for time in [0, 1000, 1999, 2000, 3000, 8_999_999, 9_000_000, 9_001_000, 9_002_000, 9_999_000] {
            assert_eq!(whole_before(&file, time).expect("read"), whole_by_all(&file, time), "{time}");
        }
        assert_eq!(last(&file).expect("read").map(|chunk| chunk.time_ms), Some(9_001_000));
    }

    fn there(second: u64) -> Arc<Snapshot> {
        let mut snapshot =
            snapshot(vec![container("shop", 8, None, 1000 * second), container("b", 9, None, second / 7)]);
        snapshot.taken_ns = second * 1_000_000_000;
        Arc::new(snapshot)
    }

    fn recorded(folder: &Path) {
        let options = RecorderOptions { interval: SECOND, most_bytes: 1 << 40 };
        let mut recorder = Recorder::open(Folder::of(folder), options).expect("a folder");
        for second in 0..SECONDS {
            let now = SystemTime::UNIX_EPOCH + SECOND * (MIDNIGHT + second) as u32;
            recorder.add(now, Some(there(second))).expect("room");
        }
    }

    #[test]
    fn any_second_of_a_record_of_many_days_is_read_by_few_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        for before in 1..5 {
            let other = folder.path().join(format!("2026-11-{}.fief", 25 - before));
            fs::write(other, day(MIDNIGHT - before * SECONDS, SECONDS, 600)).expect("written");
        }
        recorded(folder.path());
        let record = Folder::of(folder.path());
        for second in [0, 1, 599, 600, 43_217, 71_999, SECONDS - 1] {
            let (begun, at) = (Instant::now(), (MIDNIGHT + second) * 1000 + 500);
            let (_, searched, searched_bytes) = reads(|| record.play(at).expect("a record"));
            let (player, times, bytes) = reads(|| record.at(at).expect("a record"));
            eprintln!(
                "second {second}: {searched} reads, {searched_bytes} bytes to find it, {times} reads, {bytes} bytes to read it, {:?}",
                begun.elapsed()
            );
            let reading = player.reading().expect("known");
            assert_eq!(format!("{:?}", reading.snapshot), format!("{:?}", there(second)), "{second}");
            // ten minutes are played, with a head and a payload for each second
            assert!(searched < 1_500 && searched_bytes < 1 << 20, "{second}: {searched} reads, {searched_bytes} bytes");
            assert!(times < searched + 2 * 601, "{second}: {times} reads");
        }
        let (times_of, reads, _) = reads(|| record.span_ms().expect("a record"));
        assert_eq!(times_of, Some(((MIDNIGHT - 4 * SECONDS) * 1000, (MIDNIGHT + SECONDS - 1) * 1000)));
        assert!(reads < 2_000, "{reads} reads");
    }
}
