// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A case: bytes of a client, where they are cut, and whether the end of the stream follows at once. As text, a line of
//! `seeds.txt`:
//!
//! ```text
//! name: GET /secret HTTP/1.1\r\nHost:\r\n plain.example\r\n\r\n
//! ```
//!
//! `\r`, `\n`, `\t`, `\\`, `\xNN` stand for a byte, `\{5*text}` for a text five times, `\|` for a cut, and `\.` at the end
//! says that nothing follows but the end of the stream, where otherwise a marker request does. `\~` at the end says that the
//! pieces and the marker are sent slowly.

use std::fmt::Write;

/// What a client sends after an answered first request, or first of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Case {
    pub bytes: Vec<u8>,
    /// Places where a new segment begins; ascending, within the bytes.
    pub cuts: Vec<usize>,
    /// No marker request follows.
    pub ends: bool,
    /// Each piece, and the marker, waits until the server has had time for what is before it.
    pub slow: bool,
}

/// A line of `seeds.txt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    pub name: String,
    pub case: Case,
}

/// The standing table, the review's finds first.
pub fn seeds() -> Vec<Seed> {
    read_all(include_str!("seeds.txt")).collect()
}

/// The seeds of a text.
pub(crate) fn read_all(text: &'static str) -> impl Iterator<Item = Seed> {
    lines(text).map(|line| seed(line).unwrap_or_else(|why| panic!("{line}: {why}")))
}

/// Seeds and mutations whose failures are open; each with a reason behind it.
pub fn known() -> Vec<String> {
    let names = lines(include_str!("known.txt")).map(|line| line.split_once(':').map_or(line, |(name, _)| name));
    names.map(str::to_owned).collect()
}

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn seed(line: &str) -> Result<Seed, String> {
    let (name, text) = line.split_once(": ").ok_or("no name before a colon")?;
    Ok(Seed { name: name.to_owned(), case: Case::read(text)? })
}

impl Case {
    /// One piece, and the marker follows.
    pub fn whole(bytes: impl Into<Vec<u8>>) -> Case {
        Case { bytes: bytes.into(), ..Case::default() }
    }

    /// Reads the text form.
    pub fn read(text: &str) -> Result<Case, String> {
        let mut case = Case::default();
        let text = text.as_bytes();
        let at = case.read_into(text, 0, false)?;
        debug_assert_eq!(at, text.len());
        Ok(case)
    }

    fn read_into(&mut self, text: &[u8], mut at: usize, nested: bool) -> Result<usize, String> {
        while at < text.len() {
            let byte = text[at];
            at += 1;
            if nested && byte == b'}' {
                return Ok(at);
            }
            if byte != b'\\' {
                self.bytes.push(byte);
                continue;
            }
            let escaped = *text.get(at).ok_or("a backslash at the end")?;
            at += 1;
            match escaped {
                b'r' => self.bytes.push(b'\r'),
                b'n' => self.bytes.push(b'\n'),
                b't' => self.bytes.push(b'\t'),
                b'\\' | b'}' => self.bytes.push(escaped),
                b'|' => self.cuts.push(self.bytes.len()),
                b'.' => self.ends = true,
                b'~' => self.slow = true,
                b'x' => {
                    let digits = text.get(at..at + 2).and_then(|digits| std::str::from_utf8(digits).ok());
                    let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                    self.bytes.push(byte.ok_or("two digits after \\x")?);
                    at += 2;
                }
                b'{' => {
                    let star = text[at..].iter().position(|&byte| byte == b'*').ok_or("no * after \\{")?;
                    let count = std::str::from_utf8(&text[at..at + star]).ok().and_then(|text| text.parse().ok());
                    let count: usize = count.ok_or("no number after \\{")?;
                    let mut inner = Case::default();
                    at = inner.read_into(text, at + star + 1, true)?;
                    for _ in 0..count {
                        self.cuts.extend(inner.cuts.iter().map(|cut| cut + self.bytes.len()));
                        self.bytes.extend(&inner.bytes);
                    }
                }
                other => return Err(format!("no such escape: \\{}", other as char)),
            }
        }
        if nested { Err("\\{ without }".into()) } else { Ok(at) }
    }

    /// The text form.
    pub fn write(&self) -> String {
        let mut text = String::new();
        let mut at = 0;
        while at < self.bytes.len() {
            if self.cuts.contains(&at) {
                text.push_str("\\|");
            }
            let next_cut = self.cuts.iter().copied().find(|&cut| cut > at).unwrap_or(usize::MAX);
            let rest = &self.bytes[at..self.bytes.len().min(next_cut)];
            let one = |bytes: &[u8]| bytes.iter().map(|&byte| escape(byte)).collect::<String>();
            match repeated(rest) {
                Some((unit, count)) => {
                    write!(text, "\\{{{count}*{}}}", one(&rest[..unit])).expect("a String takes everything");
                    at += unit * count;
                }
                None => {
                    text.push_str(&one(&rest[..1]));
                    at += 1;
                }
            }
        }
        if self.ends {
            text.push_str("\\.");
        }
        if self.slow {
            text.push_str("\\~");
        }
        text
    }

    /// The pieces between the cuts, with these bytes behind the last one; of a slow case they are a piece of their own.
    pub fn pieces(&self, behind: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = self.bytes.clone();
        if !self.ends {
            bytes.extend(behind);
        }
        let all = self.cuts.iter().copied().chain(self.slow.then_some(self.bytes.len()));
        let mut cuts: Vec<usize> = all.filter(|&cut| cut > 0 && cut < bytes.len()).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.push(bytes.len());
        (bytes, cuts)
    }
}

/// Length and count of what stands there many times.
fn repeated(bytes: &[u8]) -> Option<(usize, usize)> {
    let times = |unit: usize| bytes.chunks_exact(unit).take_while(|chunk| *chunk == &bytes[..unit]).count();
    let found = |&(unit, count): &(usize, usize)| count > 2 && unit * (count - 1) > 10;
    (1..=bytes.len().min(200)).map(|unit| (unit, times(unit))).find(found)
}

fn escape(byte: u8) -> String {
    match byte {
        b'\r' => "\\r".into(),
        b'\n' => "\\n".into(),
        b'\t' => "\\t".into(),
        b'\\' => "\\\\".into(),
        b'}' => "\\}".into(),
        b' '..=b'~' => (byte as char).to_string(),
        _ => format!("\\x{byte:02x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_was_written() {
        let all: Vec<u8> = (0..=255).chain([b'a'; 40]).collect();
        let case = Case { bytes: all, cuts: vec![3, 260], ends: true, slow: true };
        assert_eq!(Case::read(&case.write()), Ok(case));
    }

    #[test]
    fn a_repeated_text_may_hold_cuts_and_others() {
        let case = Case::read("\\{2*a\\|\\{3*\\x00}}").unwrap();
        assert_eq!((case.bytes.as_slice(), case.cuts.as_slice()), (b"a\0\0\0a\0\0\0".as_slice(), [1, 5].as_slice()));
    }

    #[test]
    fn what_follows_a_slow_case_is_a_piece_of_its_own() {
        let pieces = |text| Case::read(text).unwrap().pieces(b"behind").1;
        assert_eq!(pieces("a\\|bc"), [1, 9]);
        assert_eq!(pieces("a\\|bc\\~"), [1, 3, 9]);
        assert_eq!(pieces("a\\|bc\\.\\~"), [1, 3]);
    }

    #[test]
    fn every_seed_can_be_read_and_has_a_name_of_its_own() {
        let mut names: Vec<_> = seeds().into_iter().map(|seed| seed.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), count > 30), (count, true));
    }
}
