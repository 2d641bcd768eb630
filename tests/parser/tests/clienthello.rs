// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Client hellos of TLS, whole, in pieces, and with lengths that lie.

mod hello;

use fief_tests_parser::{LONGEST, Parser, Part, State, Unread};
use hello::{alpn, extension, message, records, server_name, sized};
use proptest::prelude::*;

fn typical() -> Vec<u8> {
    message(&[extension(51, &[1; 1216]), server_name("Shop.Example."), alpn(&["h2", "http/1.1"])])
}

#[test]
fn reads_server_name_and_protocols() {
    let mut parser = Parser::new([1, 2], &[]);
    assert_eq!(parser.read(&records(&typical(), &[]), 0), State::Complete);
    assert_eq!(parser.get(Part::ServerName).as_deref(), Some(&b"shop.example"[..]));
    assert_eq!(parser.get(Part::Alpn(0)).as_deref(), Some(&b"h2"[..]));
    assert_eq!(parser.get(Part::Alpn(1)).as_deref(), Some(&b"http/1.1"[..]));
    assert_eq!(parser.get(Part::Alpn(2)), None);
    assert_eq!(parser.get(Part::Path), None);
    assert_eq!(parser.body(), None);
}

#[test]
fn a_hello_without_extensions_is_complete() {
    let mut parser = Parser::new([1, 2], &[]);
    let whole = message(&[]);
    let without = &whole[..whole.len() - 2];
    let message = [&[1, 0], sized(&without[4..]).as_slice()].concat();
    assert_eq!(parser.read(&records(&message, &[]), 0), State::Complete);
    assert_eq!(parser.get(Part::ServerName), None);
}

#[test]
fn more_protocols_than_are_looked_at_do_no_harm() {
    let mut parser = Parser::new([1, 2], &[]);
    let many = message(&[alpn(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]), server_name("x")]);
    assert_eq!(parser.read(&records(&many, &[]), 0), State::Complete);
    assert_eq!(parser.get(Part::Alpn(7)).as_deref(), Some(&b"h"[..]));
    assert_eq!(parser.get(Part::ServerName).as_deref(), Some(&b"x"[..]));
}

#[test]
fn a_hello_that_is_longer_than_what_is_looked_at_shows_the_names_it_began_with() {
    let mut parser = Parser::new([1, 2], &[]);
    let long = message(&[server_name("x"), extension(51, &[0; 20_000])]);
    let huge = message(&[server_name("x"), extension(51, &[0; 60_000])]);
    for stream in [records(&long, &[16_384]), records(&long, &[100, 200, 10_000]), records(&huge, &[16_384, 16_384])] {
        assert_eq!(parser.read(&stream[..LONGEST - 1], 0), State::NeedMore);
        assert_eq!(parser.read(&stream, 0), State::Unread(Unread::TooLong));
        assert_eq!(parser.get(Part::ServerName).as_deref(), Some(&b"x"[..]));
    }
    let tiny = records(&message(&[server_name("x"), extension(51, &[0; 2_900])]), &[1; 3_000]);
    assert_eq!(parser.read(&tiny, 0), State::Unread(Unread::TooLong), "a byte in each record");
    assert_eq!(parser.get(Part::ServerName).as_deref(), Some(&b"x"[..]));
}

#[test]
fn empty_records_are_skipped() {
    let mut parser = Parser::new([1, 2], &[]);
    let empty = [22, 3, 1, 0, 0];
    for at in [0, 1, 4, 100] {
        let (before, after) = (records(&typical()[..at], &[]), records(&typical()[at..], &[]));
        let stream = [before.as_slice(), &empty, &empty, after.as_slice()].concat();
        assert_eq!(parser.read(&stream, 0), State::Complete, "before byte {at}");
        assert_eq!(parser.get(Part::ServerName).as_deref(), Some(&b"shop.example"[..]));
    }
    assert_eq!(parser.read(&empty, 0), State::NeedMore);
}

#[test]
fn other_handshakes_and_broken_records_are_unread() {
    let mut parser = Parser::new([1, 2], &[]);
    let good = records(&typical(), &[10]);
    for (at, byte) in [(1, 2), (5, 2), (15, 23), (16, 4)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(parser.read(&bad, 0), State::Unread(Unread::Malformed), "byte {at}");
    }
    let version_2 = [0x80, 0x2e, 1, 3, 1, 0, 0x15];
    for first in [&[21, 3, 1, 0, 2, 1, 0][..], &[20, 3, 1, 0, 1, 1], &[23, 3, 1], &version_2] {
        assert_eq!(parser.read(first, 0), State::Unread(Unread::Other), "{first:?}");
    }
}

#[test]
fn what_servers_refuse_or_read_otherwise_is_unread() {
    let mut parser = Parser::new([1, 2], &[]);
    let two = extension(0, &sized(&[&[0][..], &sized(b"a"), &[0], &sized(b"b")].concat()));
    let other_kind = extension(0, &sized(&[&[1][..], &sized(b"a")].concat()));
    for extensions in [
        vec![two],
        vec![other_kind],
        vec![server_name("a"), server_name("b")],
        vec![server_name("")],
        vec![server_name("a:443")],
        vec![server_name(&"a".repeat(256))],
        vec![extension(0, &[])],
        vec![alpn(&["h2"]), alpn(&["h3"])],
    ] {
        let hello = records(&message(&extensions), &[]);
        assert_eq!(parser.read(&hello, 0), State::Unread(Unread::Malformed), "{extensions:?}");
    }
}

proptest! {
    #[test]
    fn records_change_nothing(lengths in prop::collection::vec(1usize..600, 0..8)) {
        let mut parser = Parser::new([1, 2], &[]);
        prop_assert_eq!(parser.read(&records(&typical(), &lengths), 0xff), State::Complete);
        prop_assert_eq!(parser.get(Part::ServerName), Some(b"shop.example".to_vec()));
        prop_assert_eq!(parser.get(Part::Alpn(1)), Some(b"http/1.1".to_vec()));
    }

    #[test]
    fn any_byte_may_lie(at in 0usize..1400, byte: u8, lengths in prop::collection::vec(1usize..600, 0..3)) {
        let mut parser = Parser::new([1, 2], &[]);
        let mut stream = records(&typical(), &lengths);
        let at = at % stream.len();
        stream[at] = byte;
        let whole = parser.read(&stream, 0);
        // What is said of a beginning is said of the whole.
        for cut in (0..stream.len()).step_by(7) {
            let state = parser.read(&stream[..cut], 0x16);
            prop_assert!(state == State::NeedMore || state == whole, "{:?} of {} bytes, {:?} of all", state, cut, whole);
        }
    }
}
