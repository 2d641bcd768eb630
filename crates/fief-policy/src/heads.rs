// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of a head, and what in them servers take apart in different ways.

/// A head as it is gone through, line by line.
pub(crate) struct Head<'t> {
    text: &'t [u8],
    /// Behind the lines that were read.
    pub(crate) at: usize,
    /// Some servers end a line, or the head, elsewhere.
    pub(crate) is_odd: bool,
}

pub(crate) struct Line<'t> {
    /// Without its LF.
    pub(crate) text: &'t [u8],
    pub(crate) is_whole: bool,
}

impl<'t> Head<'t> {
    pub(crate) fn new(text: &'t [u8]) -> Self {
        Self { text, at: 0, is_odd: false }
    }

    /// Where the first line begins that is not empty.
    pub(crate) fn skip_empty(&mut self) -> usize {
        let count = self.text.iter().take_while(|byte| b"\r\n".contains(byte)).count();
        let is_lone = |pair: &[u8]| (pair[0] == b'\r') != (pair[1] == b'\n');
        self.is_odd |= self.text.starts_with(b"\n");
        self.is_odd |= self.text[..self.text.len().min(count + 1)].windows(2).any(is_lone);
        self.at = count;
        count
    }

    /// The next line, or what there is of it.
    pub(crate) fn line(&mut self) -> Line<'t> {
        let rest = &self.text[self.at..];
        let end = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let is_whole = end < rest.len();
        let is_lone = |at: usize| rest.get(at + 1).is_some_and(|&next| next != b'\n');
        self.is_odd |= rest[..end].iter().enumerate().any(|(at, byte)| match byte {
            b'\r' => is_lone(at),
            b'\t' => false,
            byte => byte.is_ascii_control(),
        });
        // To some an LF alone is a byte of the line.
        self.is_odd |= is_whole && rest[..end].last() != Some(&b'\r');
        self.at += end + usize::from(is_whole);
        Line { text: &rest[..end], is_whole }
    }

    /// The next line with those that are folded into it, or the empty one; none: its end is not there.
    pub(crate) fn folded(&mut self) -> Option<&'t [u8]> {
        let begin = self.at;
        loop {
            let from = self.at;
            let Line { text, is_whole } = self.line();
            if !is_whole {
                return None;
            }
            let line = without_returns(text);
            if line.is_empty() {
                return Some(line);
            }
            match self.text.get(self.at) {
                Some(b' ' | b'\t') => self.is_odd = true,
                _ => return Some(&self.text[begin..from + line.len()]),
            }
        }
    }
}

pub(crate) fn without_returns(line: &[u8]) -> &[u8] {
    &line[..line.iter().rposition(|&byte| byte != b'\r').map_or(0, |last| last + 1)]
}
