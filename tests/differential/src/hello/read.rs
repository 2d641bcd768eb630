// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which bytes are one ClientHello as RFC 8446 and RFC 6066 have it, and ask for a name that the policy allows: the strict
//! reading, for *refused wrongly* alone.

use super::SERVER_NAME;

/// docs/policy.md: what is longer is not read. Records' heads count.
const LONGEST: usize = 16_384;

pub fn is_allowed(bytes: &[u8]) -> bool {
    bytes.len() < LONGEST && message(bytes).is_some_and(|message| hello(&message).is_some_and(is_other))
}

fn is_other(name: Option<Vec<u8>>) -> bool {
    let Some(name) = name else { return true };
    let name = name.strip_suffix(b".").unwrap_or(&name);
    !name.eq_ignore_ascii_case(b"secret.example")
}

/// RFC 8446, 5.1: handshake records that are not empty.
fn message(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut message = vec![];
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(5)?;
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if head[0] != 22 || head[1] != 3 || !(1..=3).contains(&head[2]) || !(1..=16_384).contains(&length) {
            return None;
        }
        let (part, rest) = rest.split_at_checked(length)?;
        message.extend(part);
        bytes = rest;
    }
    Some(message)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A vector whose length stands before it, in so many bytes.
    fn vector(&mut self, width: usize) -> Option<&'a [u8]> {
        let length = self.take(width)?.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
        self.take(length)
    }
}

/// The name that is asked for, if one is; `None`: not a ClientHello.
fn hello(message: &[u8]) -> Option<Option<Vec<u8>>> {
    let mut reader = Reader(message);
    if reader.take(1)? != [1] {
        return None;
    }
    let body = reader.vector(3)?;
    let is_whole = reader.0.is_empty();
    let mut reader = Reader(body);
    if !is_whole || reader.take(2)? != [3, 3] {
        return None;
    }
    reader.take(32)?;
    let session = reader.vector(1)?;
    let ciphers = reader.vector(2)?;
    let compression = reader.vector(1)?;
    if session.len() > 32 || ciphers.is_empty() || ciphers.len() % 2 == 1 || compression != [0] {
        return None;
    }
    let mut extensions = Reader(reader.vector(2)?);
    if !reader.0.is_empty() {
        return None;
    }
    let (mut name, mut seen) = (None, vec![]);
    while !extensions.0.is_empty() {
        let kind = u16::from_be_bytes(extensions.take(2)?.try_into().ok()?);
        let data = extensions.vector(2)?;
        if seen.contains(&kind) {
            return None;
        }
        seen.push(kind);
        if kind == SERVER_NAME {
            let mut list = Reader(data);
            let mut names = Reader(list.vector(2)?);
            let is_host = names.take(1)? == [0];
            let host = names.vector(2)?;
            let is_plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            if !is_host || !names.0.is_empty() || !list.0.is_empty() || host.is_empty() || !host.iter().all(is_plain) {
                return None;
            }
            name = Some(host.to_vec());
        }
    }
    Some(name)
}
