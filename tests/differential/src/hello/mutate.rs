// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be done to a ClientHello: first to what it says, then to its records, then to its bytes.

use fief_testkit::Dice;

use super::{ALPN, Hello, SERVER_NAME, record, server_name, vector16};
use crate::vector::Case;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    Name,
    Extensions,
    Fields,
    Long,
    Lengths,
    Records,
    EmptyRecords,
    Others,
    Bytes,
}

impl Change {
    pub const ALL: [Change; 9] = [
        Change::Name,
        Change::Extensions,
        Change::Fields,
        Change::Long,
        Change::Lengths,
        Change::Records,
        Change::EmptyRecords,
        Change::Others,
        Change::Bytes,
    ];

    /// Of what the hello says; the others are of its records and bytes.
    fn is_of_words(self) -> bool {
        self <= Change::Long
    }
}

/// What these steps make of a hello. Where one is of its words it is written anew, in one record, before the others.
pub fn make(case: &mut Case, steps: &[(Change, u64)]) {
    let holds = |name: &[u8]| case.bytes.windows(name.len()).any(|window| window.eq_ignore_ascii_case(name));
    let mut hello = Hello::asking(if holds(b"plain.example") { "plain.example" } else { "secret.example" });
    let of_words = steps.iter().take_while(|(change, _)| change.is_of_words()).count();
    for (change, seed) in &steps[..of_words] {
        let dice = &mut Dice::new(*seed);
        match change {
            Change::Name => name(&mut hello, dice),
            Change::Extensions => extensions(&mut hello, dice),
            Change::Fields => fields(&mut hello, dice),
            _ => long(&mut hello, dice),
        }
    }
    if of_words > 0 {
        case.bytes = hello.records();
    }
    for (change, seed) in &steps[of_words..] {
        let dice = &mut Dice::new(*seed);
        match change {
            Change::Lengths => lengths(&mut case.bytes, dice),
            Change::Records => records(&mut case.bytes, dice),
            Change::EmptyRecords => empty_records(&mut case.bytes, dice),
            Change::Others => others(&mut case.bytes, dice),
            _ => bytes(&mut case.bytes, dice),
        }
    }
}

fn name(hello: &mut Hello, dice: &mut Dice) {
    let text: &[u8] = [
        &b"SECRET.EXAMPLE"[..],
        b"secret.example.",
        b"secret.example..",
        b".secret.example",
        b"secret.example\0",
        b"secret.example\0a",
        b"secret.example:443",
        b" secret.example",
        b"secret.example ",
        b"",
        b"a",
        b"secret.example.plain.example",
        b"\xff",
        b"10.77.0.1",
        b"plain.example",
        b"PLAIN.example",
        b"x.plain.example",
        b"xn--secret.example",
    ][dice.roll(18)];
    let entry = |kind: u8, name: &[u8]| [&[kind], vector16(name).as_slice()].concat();
    let value = match dice.roll(9) {
        0 => vector16(&[entry(0, b"plain.example"), entry(0, b"secret.example")].concat()),
        1 => vector16(&[entry(0, b"secret.example"), entry(0, b"plain.example")].concat()),
        2 => vector16(&[entry(1, b"plain.example"), entry(0, b"secret.example")].concat()),
        3 => vector16(&[]),
        4 => vec![],
        5 => [server_name(b"secret.example"), vec![0; 1 + dice.roll(4)]].concat(),
        _ => server_name(text),
    };
    match hello.more().iter_mut().find(|(kind, _)| *kind == SERVER_NAME) {
        Some((_, old)) => *old = value,
        None => hello.more().push((SERVER_NAME, value)),
    }
}

fn extensions(hello: &mut Hello, dice: &mut Dice) {
    let all = hello.more();
    if all.is_empty() {
        return;
    }
    match dice.roll(8) {
        0 => all.reverse(),
        1 => {
            let at = dice.roll(all.len());
            all.rotate_left(at);
        }
        2 => drop(all.remove(dice.roll(all.len()))),
        3 => {
            let again = all[dice.roll(all.len())].clone();
            all.push(again);
        }
        4 => all.insert(0, (SERVER_NAME, server_name(b"plain.example"))),
        5 => all.push((SERVER_NAME, server_name(b"secret.example"))),
        6 => {
            // GREASE, RFC 8701
            let grease = 0x0a0a + 0x1010 * dice.roll(15) as u16;
            all.insert(dice.roll(all.len() + 1), (grease, vec![]));
        }
        _ => {
            let names: &[u8] = [&b"\x02h2\x08http/1.1"[..], b"\x08http/1.1", b"\x00", b"", b"\xffx"][dice.roll(5)];
            all.insert(dice.roll(all.len() + 1), (ALPN, vector16(names)));
        }
    }
}

fn fields(hello: &mut Hello, dice: &mut Dice) {
    match dice.roll(7) {
        0 => hello.session = vec![7; [1, 31, 32, 33, 255][dice.roll(5)]],
        1 => hello.ciphers.extend((0..[1, 50, 300, 2000][dice.roll(4)]).map(|_| 0x1301)),
        2 => hello.compression = vec![[0, 1][dice.roll(2)]; dice.roll(5)],
        3 => hello.version = [0x0303, 0x0304, 0x0302, 0x0301, 0x0300, 0x0305, 0x0403, 0xfeff][dice.roll(8)],
        4 => hello.record_version = [0x0300, 0x0302, 0x0303, 0x0304, 0x0305, 0x03ff, 0x0200, 0x0400][dice.roll(8)],
        5 => hello.extensions = None,
        _ => hello.random = [dice.roll(256) as u8; 32],
    }
}

fn long(hello: &mut Hello, dice: &mut Dice) {
    let length = [100, 500, 1300, 1460, 2900, 8000, 15_000, 16_100, 16_384, 20_000, 40_000][dice.roll(11)];
    let all = hello.more();
    let at = dice.roll(all.len() + 1);
    all.insert(at, ([21, 0x1234, 35][dice.roll(3)], vec![0; length]));
}

/// A length that says something else than what is there.
fn lengths(bytes: &mut [u8], dice: &mut Dice) {
    // of the record, the message, the extensions, and some within
    let places = [4, 3, 8, 7, 43, 45, 46, 52, 53, 54, 56, 58, 60, 62, 64];
    if let Some(byte) = bytes.get_mut(places[dice.roll(places.len())]) {
        *byte = match dice.roll(4) {
            0 => byte.wrapping_add(1),
            1 => byte.wrapping_sub(1),
            2 => 0,
            _ => dice.roll(256) as u8,
        };
    }
}

/// What stands in the records, if they are whole ones.
fn payload(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![];
    while let [_, _, _, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        all.extend(&rest[..length]);
        bytes = &rest[length..];
    }
    all
}

fn records(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let message = payload(bytes);
    let mut at = 0;
    bytes.clear();
    let most = [1, 2, 4, 5, 40, 300, 3000][dice.roll(7)];
    while at < message.len() {
        let size = (1 + dice.roll(most)).min(message.len() - at);
        bytes.extend(record([0x0301, 0x0303][dice.roll(2)], &message[at..at + size]));
        at += size;
    }
}

/// Begins of records.
fn begins(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut all) = (0, vec![]);
    while at + 5 <= bytes.len() {
        all.push(at);
        at += 5 + usize::from(u16::from_be_bytes([bytes[at + 3], bytes[at + 4]]));
    }
    all
}

fn empty_records(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let begins = begins(bytes);
    let at = if begins.is_empty() { 0 } else { begins[dice.roll(begins.len())] };
    let count = [1, 1, 1, 2, 3, 31, 32, 33, 100][dice.roll(9)];
    let kind = [22, 22, 22, 22, 23, 21, 20, 24, 0][dice.roll(9)];
    let empty = [kind, 3, [1, 3][dice.roll(2)], 0, 0].repeat(count);
    bytes.splice(at..at, empty);
}

/// Records of other kinds, and other beginnings.
fn others(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let begins = begins(bytes);
    let at = if begins.is_empty() { 0 } else { begins[dice.roll(begins.len())] };
    let other: &[u8] = [
        &b"\x14\x03\x01\x00\x01\x01"[..], // change cipher spec
        b"\x15\x03\x01\x00\x02\x01\x00",  // a warning
        b"\x15\x03\x01\x00\x02\x01\x5a",
        b"\x17\x03\x03\x00\x01\x00",
        b"\x18\x03\x01\x00\x03\x01\x00\x00",     // heartbeat
        b"\x16\x03\x01\x00\x04\x00\x00\x00\x00", // hello request
        b"\r\n",
        b"\0",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 443\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x2e\x01\x03\x01",
    ][dice.roll(11)];
    bytes.splice(at..at, other.iter().copied());
}

fn bytes(bytes: &mut Vec<u8>, dice: &mut Dice) {
    if bytes.is_empty() {
        return;
    }
    let at = dice.roll(bytes.len().min(160));
    match dice.roll(4) {
        0 => bytes[at] = dice.roll(256) as u8,
        1 => bytes[at] ^= 1 << dice.roll(8),
        2 => bytes.insert(at, dice.roll(256) as u8),
        _ => drop(bytes.remove(at)),
    }
}
