// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first bytes of a connection, whatever they are, get one reading: the parsers of `bpf/front`, the very C, stay
//! inside of their buffers, look at nothing behind the bytes, never take back what they said of a beginning, and read a
//! request as the policy does.
//!
//!     cargo +nightly fuzz run request_parse fuzz/corpus/request_parse fuzz/seeds/request_parse -- \
//!         -dict=fuzz/request.dict -max_len=20000 -max_total_time=60

#![no_main]

use fief_policy::{Fields, Part as Field, PatternHash, Unread as Kind};
use fief_tests_parser::{Kept, LONGEST, Parser, Part, Scan, State, Unread};
use libfuzzer_sys::fuzz_target;

const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
const PARTS: [Part; 7] =
    [Part::Method, Part::Path, Part::Host, Part::ServerName, Part::Alpn(0), Part::Value(0), Part::Value(1)];
const KEPT: [Kept; 6] = [Kept::Head, Kept::Balanced, Kept::Record, Kept::Chunk, Kept::NextChunk, Kept::Trailer];
/// First byte of a TLS record with a handshake.
const TLS: u8 = 0x16;

/// What a parser said of some bytes.
#[derive(Debug, PartialEq)]
struct Said {
    state: State,
    head: usize,
    body: Option<u64>,
    parts: [Option<Vec<u8>>; PARTS.len()],
}

fn say(parser: &mut Parser, bytes: &[u8], rest: u8) -> Said {
    let state = parser.read(bytes, rest);
    match state {
        State::NeedMore => Said { state, head: 0, body: None, parts: Default::default() },
        _ => {
            // nobody asks where something ends that cannot be read
            let head = if state == State::Complete { parser.head() } else { 0 };
            Said { state, head, body: parser.body(), parts: PARTS.map(|part| parser.get(part)) }
        }
    }
}

/// Where the door keeps the begin of this and scans what comes behind it, it misses nothing that can be said of it.
fn kept_in_pieces(parser: &mut Parser, kept: Kept, bytes: &[u8]) {
    let mut ends =
        [1, bytes.len() / 3, bytes.len() / 2, bytes.len()].into_iter().filter(|&end| end > 0 && end <= bytes.len());
    let Some(first) = ends.next() else { return };
    if parser.ask(kept, &bytes[..first], 0).is_some() {
        return;
    }
    let mut scan = parser.keep(kept, &bytes[..first], 0);
    for end in ends {
        let mut next = scan;
        let is_asked = parser.is_asked(kept, &bytes[..end], 0, &mut next);
        if parser.ask(kept, &bytes[..end], 0).is_some() {
            assert!(is_asked, "the scan missed {end} bytes of {kept:?}");
            return;
        }
        scan = if is_asked { parser.keep(kept, &bytes[..end], 0) } else { next };
    }
}

fuzz_target!(|bytes: &[u8]| {
    let hash = PatternHash::new(KEY);
    let names = [hash.name(Field::Header, b"x-a"), hash.name(Field::Cookie, b"a")];
    let mut parser = Parser::new(KEY, &names);
    let whole = say(&mut parser, bytes, 0);
    assert_eq!(say(&mut parser, bytes, b'\n'), whole, "what stands behind the bytes matters");
    if bytes.len() >= LONGEST {
        assert_ne!(whole.state, State::NeedMore, "no more than this is looked at");
    }
    // of a head that a CPU has ruled before the rest is not looked at (front/known.bpf.h)
    if whole.state == State::Complete && bytes.first() != Some(&TLS) {
        assert_eq!(say(&mut parser, &bytes[..whole.head], b'x'), whole, "what stands behind a head matters");
    }
    for cut in [bytes.len() / 4, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let beginning = say(&mut parser, &bytes[..cut], 0);
        assert!(beginning.state == State::NeedMore || beginning == whole, "{cut} bytes: {beginning:?}, {whole:?}");
    }
    let mut scan = Scan::default();
    for end in [bytes.len() / 3, bytes.len() / 2, bytes.len()] {
        let is_ready = parser.is_asked(Kept::Head, &bytes[..end], 0, &mut scan);
        if parser.read(&bytes[..end], 0) != State::NeedMore {
            assert!(is_ready, "the scan missed {end} bytes");
            break; // nobody asks again
        }
    }
    for kept in KEPT.into_iter().chain([Kept::Body(bytes.len() as u32), Kept::Body(LONGEST as u32)]) {
        kept_in_pieces(&mut parser, kept, bytes);
    }
    if bytes.first() != Some(&TLS) {
        let fields = Fields::of_http(bytes);
        let expected = match fields.unread {
            _ if bytes.is_empty() || fields.is_unfinished => State::NeedMore,
            None => State::Complete,
            Some(Kind::Malformed) => State::Unread(Unread::Malformed),
            Some(Kind::TooLong) => State::Unread(Unread::TooLong),
            Some(Kind::Http2) => State::Unread(Unread::Http2),
            Some(Kind::Proxy) => State::Unread(Unread::Proxy),
            other => {
                assert_eq!(other, Some(Kind::Other));
                State::Unread(Unread::Other)
            }
        };
        assert_eq!(whole.state, expected);
        if whole.state != State::NeedMore {
            assert_eq!(whole.parts[..3], [fields.method, fields.path, fields.host]);
        }
    }
});
