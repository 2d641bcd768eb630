// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chunks of a day's file: their heads, their checksums, and where the readable part of a file ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes before the payload.
pub(super) const HEAD: usize = 28;
/// Begins each, so that one is found behind damage.
const MAGIC: [u8; 4] = *b"FiEf";
/// No reading of the largest table is as long.
const LONGEST: u32 = 1 << 30;
/// Bytes that are searched at once, at first and at most: most chunks of a busy record are shorter than the former.
const PARTS: [usize; 2] = [4 * 1024, 64 * 1024];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole reading: what comes before is not needed.
    Whole = 0,
    /// What has changed since the chunk before.
    Change = 1,
    /// From here on nothing is in force, or nobody records.
    Nothing = 2,
}

/// Where one is, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) offset: u64,
    /// Since 1970.
    pub(super) time_ms: u64,
    pub(super) kind: Kind,
    length: u32,
    checksum: u32,
}

impl Chunk {
    /// The offset of what comes after it.
    pub(super) fn end(&self) -> u64 {
        self.offset + HEAD as u64 + u64::from(self.length)
    }

    /// The next one at an offset or behind it: what is damaged is passed over. `None`: there is none.
    pub(super) fn next(file: &File, size: u64, offset: u64) -> io::Result<Option<Self>> {
        Self::within(file, size, offset, size)
    }

    /// The first one that begins at `from` or behind it, and before `to`.
    pub(super) fn within(file: &File, size: u64, from: u64, to: u64) -> io::Result<Option<Self>> {
        if let Some(chunk) = Self::at(file, size, from)?.filter(|chunk| chunk.offset < to) {
            return Ok(Some(chunk));
        }
        let (mut from, mut part) = (from + 1, vec![0; PARTS[0]]);
        while from < to && from + HEAD as u64 <= size {
            // one may begin in the last byte and lie across the end
            let most = (size - from).min(to - from + (MAGIC.len() - 1) as u64);
            let length = most.min(part.len() as u64) as usize;
            read(file, &mut part[..length], from)?;
            for at in (0..length.saturating_sub(MAGIC.len() - 1)).filter(|&at| part[at..].starts_with(&MAGIC)) {
                if let Some(chunk) = Self::at(file, size, from + at as u64)? {
                    return Ok(Some(chunk));
                }
            }
            from += (length - (MAGIC.len() - 1)) as u64;
            part.resize(PARTS[1], 0);
        }
        Ok(None)
    }

    /// `None`: the file ends before, or what is there is none.
    pub(super) fn at(file: &File, size: u64, offset: u64) -> io::Result<Option<Self>> {
        if size < offset + HEAD as u64 {
            return Ok(None);
        }
        let mut head = [0; HEAD];
        read(file, &mut head, offset)?;
        let (begin, rest) = head.split_at(8);
        if begin[..4] != MAGIC || begin[4..] != crc32fast::hash(rest).to_le_bytes() {
            return Ok(None);
        }
        let [checksum, length, time, kind] = [0..4, 4..8, 8..16, 16..20].map(|range| &rest[range]);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let kind = match number(kind) {
            0 => Kind::Whole,
            1 => Kind::Change,
            2 => Kind::Nothing,
            _ => return Ok(None),
        };
        let (length, checksum) = (number(length) as u32, number(checksum) as u32);
        let chunk = Self { offset, time_ms: number(time), kind, length, checksum };
        Ok((length <= LONGEST && chunk.end() <= size).then_some(chunk))
    }

    /// `None`: it is damaged.
    pub(super) fn payload(&self, file: &File) -> io::Result<Option<Vec<u8>>> {
        let mut payload = vec![0; self.length as usize];
        read(file, &mut payload, self.offset + HEAD as u64)?;
        Ok((self.checksum == crc32fast::hash(&payload)).then_some(payload))
    }
}

/// Every byte of a record comes through here, so that tests count them.
fn read(file: &File, part: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(test)]
    tests::READ.with(|read| read.set((read.get().0 + 1, read.get().1 + part.len())));
    file.read_exact_at(part, offset)
}

/// A chunk as it is written.
pub(super) fn bytes(time_ms: u64, kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut rest = Vec::with_capacity(HEAD);
    rest.extend(crc32fast::hash(payload).to_le_bytes());
    rest.extend((payload.len() as u32).to_le_bytes());
    rest.extend(time_ms.to_le_bytes());
    rest.extend((kind as u32).to_le_bytes());
    let mut bytes = Vec::with_capacity(HEAD + payload.len());
    bytes.extend(MAGIC);
    bytes.extend(crc32fast::hash(&rest).to_le_bytes());
    bytes.extend(rest);
    bytes.extend(payload);
    bytes
}

/// The chunks of a file by their heads.
pub(super) struct Chunks<'f> {
    file: &'f File,
    size: u64,
    offset: u64,
}

impl<'f> Chunks<'f> {
    pub(super) fn of(file: &'f File, offset: u64) -> io::Result<Self> {
        Ok(Self { file, size: file.metadata()?.len(), offset })
    }
}

impl Iterator for Chunks<'_> {
    type Item = io::Result<Chunk>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = Chunk::next(self.file, self.size, self.offset).transpose()?;
        if let Ok(chunk) = &chunk {
            self.offset = chunk.end();
        }
        Some(chunk)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How often this thread read, and how many bytes.
        pub(super) static READ: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    /// Does something, and counts the reads of this thread meanwhile.
    pub(in crate::record) fn reads<T>(act: impl FnOnce() -> T) -> (T, usize, usize) {
        READ.set((0, 0));
        let done = act();
        let (times, bytes) = READ.get();
        (done, times, bytes)
    }

    #[test]
    fn a_file_that_is_cut_anywhere_has_the_chunks_before_the_cut() {
        let whole = bytes(1000, Kind::Whole, b"abc");
        let both = [whole.clone(), bytes(2000, Kind::Change, b"defg")].concat();
        for cut in 0..=both.len() {
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(&both[..cut], 0).expect("written");
            let chunks: Vec<_> = Chunks::of(&file, 0).expect("a size").map(|chunk| chunk.expect("read")).collect();
            assert_eq!(chunks.len(), usize::from(cut >= whole.len()) + usize::from(cut == both.len()), "{cut}");
            for chunk in chunks {
                assert!(chunk.payload(&file).expect("read").is_some(), "{cut}");
            }
        }
    }

    #[test]
    fn a_byte_that_is_another_is_seen_and_hides_no_other_chunk() {
        let good = bytes(1000, Kind::Whole, b"abc");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(&bad, 0).expect("written");
            file.write_all_at(&good, bad.len() as u64).expect("written");
            let chunks = Chunks::of(&file, 0).expect("a size");
            let payloads = chunks.filter_map(|chunk| chunk.expect("read").payload(&file).expect("read"));
            assert_eq!(payloads.count(), 1, "{at}: the next one is found");
        }
    }
}
