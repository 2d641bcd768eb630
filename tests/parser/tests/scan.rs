// SPDX-License-Identifier: Apache-2.0 OR MIT
//! However what is kept is cut, the scan says that it is worth reading where its parser has something to say, and hardly
//! where it has not.

mod hello;

use fief_tests_parser::{Kept, LONGEST, Parser};
use hello::{alpn, extension, message, records, server_name};
use proptest::prelude::*;

/// What the door says of something that comes in pieces that end at these places, as it goes about it: what is kept is scanned,
/// and read where the scan says so. Of how many bytes it said that, and how often they were read.
fn kept(kind: Kept, text: &[u8], ends: &[usize], rest: u8) -> (Option<u64>, usize, usize) {
    let (mut parser, mut scan, mut read) = (Parser::new([1, 2], &[]), None, 0);
    for &end in ends {
        if let Some(known) = &mut scan {
            let mut next = *known;
            if !parser.is_asked(kind, &text[..end], rest, &mut next) {
                assert!(next.at >= known.at, "it goes back at {end}: {known:?}, {next:?}");
                *known = next;
                continue;
            }
        }
        read += 1;
        if let Some(said) = parser.ask(kind, &text[..end], rest) {
            return (Some(said), end, read);
        }
        scan = Some(parser.keep(kind, &text[..end], rest));
    }
    (None, text.len(), read)
}

/// The same, but that all is read with each piece.
fn read(kind: Kept, text: &[u8], ends: &[usize]) -> (Option<u64>, usize) {
    let mut parser = Parser::new([1, 2], &[]);
    let said = ends.iter().find_map(|&end| Some((parser.ask(kind, &text[..end], 0)?, end)));
    said.map_or((None, text.len()), |(said, end)| (Some(said), end))
}

/// How often something of this kind is read at most: the first piece, the last one, and where it may end but does not.
fn reads(kind: Kept) -> usize {
    match kind {
        Kept::Head | Kept::Body(_) => 3,
        // each of the first 16 bytes, the end of the PROXY head, and what a head has
        Kept::Balanced => 16 + 4,
        Kept::Record => 7 + 2,
        Kept::Chunk | Kept::NextChunk | Kept::Trailer => 18 + 2,
    }
}

fn ends(cuts: &[usize], length: usize) -> Vec<usize> {
    let mut at = 0;
    let mut ends: Vec<usize> = cuts.iter().map(|cut| (at += cut, at).1).take_while(|&end| end < length).collect();
    ends.push(length);
    ends
}

fn agree(kind: Kept, text: &[u8], cuts: &[usize], rest: u8) -> Result<(), TestCaseError> {
    let ends = ends(cuts, text.len());
    let (said, at, read_so_often) = kept(kind, text, &ends, rest);
    prop_assert_eq!((said, at), read(kind, text, &ends));
    prop_assert!(read_so_often <= reads(kind), "{} times", read_so_often);
    Ok(())
}

fn of(words: &'static [&'static [u8]], most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(words), 1..most).prop_map(|words| words.concat())
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![prop::collection::vec(1usize..12, 0..60), Just(vec![1; 300])]
}

const HEAD: &[&[u8]] = &[
    b"\r\n",
    b"\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"GET / HTTP/1.1",
    b"GET /\xa0HTTP/1.1",
    b"GET /",
    b"Host: a",
    b"X: y",
    b" z",
    b"\0",
    b"(",
    b"\x16\x03\x01",
    b"PROXY TCP4 ",
    b"PRI * HTTP/2.0",
    b"\t",
];

/// Whole PROXY heads, of which the last one is too long, and their begins.
const PROXY: &[&[u8]] = &[
    b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 80\r\n",
    b"PROXY UNKNOWN\r\n",
    b"PROXY TCP4 ",
    b"PROXY /public HTTP/1.1\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x01\xdc\x04\0\x50",
    b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x30 of these there are some, but not all",
    b"\r\n\r\n\0\r\nQUIT\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x20\0",
];

const CHUNK: &[&[u8]] = &[
    b"\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b"5",
    b"0",
    b"000000000000000f",
    b"3fffffff",
    b";",
    b";a=b",
    b"; name=\"a value of some length\"",
    b" ",
    b"\t",
    b"\x01",
    b"\x7f",
    b"\x85",
    b"0;a /secret HTTP/1.1",
];

const TRAILER: &[&[u8]] = &[
    b"\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b"A: b",
    b"Some-Name: a value of some length",
    b" ",
    b"\t",
    b"\0",
    b"\x7f",
    b"\xff",
];

const BODY: &[&[u8]] = &[
    b"\r\n",
    b"\r\n",
    b"\r",
    b"\n",
    b" ",
    b" ",
    b"\t",
    b"\x0b",
    b"\x1f",
    b"\x85",
    b"\xa0",
    b"GET",
    b"/secret",
    b"HTTP/1.1",
    b"GET /secret HTTP/1.1\r\n",
    b"GET /secret HTTP/1.1\r\nHost: a\r\n",
    b"Host: a",
    b"{",
    b"\0",
];

const RECORD: &[&[u8]] = &[
    b"\x14\x03\x03\0\x01\x01",
    b"\x15\x03\x03\0\x02\x01\0",
    b"\x16\x03\x03\0\0",
    b"\x16\x03\x03\0\x01\x01",
    b"\x16\x03\x03\0\x04\x01\0\0\x20",
    b"\x16\x03\x03\0\x08\x01\x03\0\0abcd",
    b"\x16\x03\x03\0\x0c\x02\0\0\x08",
    b"\x17\x03\x03\0\x20",
    b"\x16\x03",
    b"\x16\x03\x03\x40\x01",
    b"and what else there may be",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn heads_of_http(text in of(HEAD, 12), cuts in cuts(), rest: u8) {
        agree(Kept::Head, &text, &cuts, rest)?;
    }

    #[test]
    fn heads_behind_a_proxy_head(proxy in prop::sample::select(PROXY), head in of(HEAD, 12), cuts in cuts(), rest: u8) {
        agree(Kept::Balanced, &[proxy, &head].concat(), &cuts, rest)?;
    }

    #[test]
    fn heads_that_may_have_a_proxy_head_before_them(text in of(HEAD, 12), cuts in cuts(), rest: u8) {
        agree(Kept::Balanced, &text, &cuts, rest)?;
    }

    #[test]
    fn lines_of_chunks(begin: bool, text in of(CHUNK, 10), cuts in cuts(), rest: u8) {
        agree(Kept::Chunk, &text, &cuts, rest)?;
        let next = if begin { [b"\r\n", text.as_slice()].concat() } else { text };
        agree(Kept::NextChunk, &next, &cuts, rest)?;
    }

    #[test]
    fn lines_of_trailers(text in of(TRAILER, 10), cuts in cuts(), rest: u8) {
        agree(Kept::Trailer, &text, &cuts, rest)?;
    }

    #[test]
    fn bodies_that_may_be_requests(text in of(BODY, 12), length in 1u32..120, cuts in cuts(), rest: u8) {
        agree(Kept::Body(length), &text, &cuts, rest)?;
        agree(Kept::Body(text.len() as u32), &text, &cuts, rest)?;
        agree(Kept::Body(u32::MAX), &text, &cuts, rest)?;
    }

    #[test]
    fn hellos_of_tls(
        lengths in prop::collection::vec(0usize..60, 0..12),
        cuts in prop::collection::vec(1usize..40, 0..60),
        lie in prop::option::weighted(0.3, (0usize..300, any::<u8>())),
    ) {
        let message = message(&[extension(51, &[1; 100]), server_name("shop.example"), alpn(&["h2"])]);
        let mut stream = records(&message, &lengths);
        if let Some((at, byte)) = lie {
            let at = at % stream.len();
            stream[at] = byte;
        }
        agree(Kept::Record, &stream, &cuts, 0)?;
        prop_assume!(stream[0] == 22);
        agree(Kept::Head, &stream, &cuts, 0)?;
        let behind = [PROXY[0], &stream].concat();
        agree(Kept::Balanced, &behind, &cuts, 0)?;
    }

    #[test]
    fn records_behind_a_hello(text in of(RECORD, 4), cuts in cuts(), rest: u8) {
        agree(Kept::Record, &text, &cuts, rest)?;
    }
}

/// In segments of a byte: what is said, of how many bytes, and how often they are read.
fn in_bytes(kind: Kept, text: &[u8]) -> (Option<u64>, usize, usize) {
    let all: Vec<usize> = (1..=text.len()).collect();
    let (said, at, so_often) = kept(kind, text, &all, 0);
    assert_eq!((said, at), read(kind, text, &all[all.len() - 2..]), "the last byte tells, and not the one before it");
    (said, at, so_often)
}

/// Else each segment would cost what all of them do.
#[test]
fn what_comes_in_segments_of_a_byte_is_read_a_few_times_and_looked_through_once() {
    const COMPLETE: Option<u64> = Some(1);
    let lines = "X: y\r\n".repeat(2000);
    let head = format!("GET / HTTP/1.1\r\n{lines}\r\n");
    assert_eq!(in_bytes(Kept::Head, head.as_bytes()), (COMPLETE, head.len(), 3), "a head");
    for (proxy, reads) in [(PROXY[0], 4), (PROXY[4], 15)] {
        let behind = [proxy, head.as_bytes()].concat();
        assert_eq!(in_bytes(Kept::Balanced, &behind), (COMPLETE, behind.len(), reads), "behind {proxy:?}");
    }
    // version 2 may have some kilobytes of its own
    let proxy = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x0f\xf0"[..], &[b'x'; 4080]].concat();
    let behind = [proxy.as_slice(), head.as_bytes()].concat();
    assert_eq!(in_bytes(Kept::Balanced, &behind[..16_000]), (None, 16_000, 14), "behind a long PROXY head");

    let hello = records(&message(&[server_name("x"), extension(51, &[0; 1_000])]), &[1; 1_100]);
    assert_eq!(in_bytes(Kept::Head, &hello), (COMPLETE, hello.len(), 2), "a hello");
    let hello = records(&message(&[server_name("x"), extension(51, &[0; 10_000])]), &[]);
    assert_eq!(in_bytes(Kept::Record, &hello), (COMPLETE, hello.len(), 8), "another hello");

    let long = "a".repeat(15_000);
    for line in [format!("5;{long}\r\n"), format!("5;a=\"{}\"\r\n", "b \t".repeat(5_000))] {
        let (said, at, reads) = in_bytes(Kept::Chunk, line.as_bytes());
        assert!(said.is_some() && at == line.len() && reads == 19, "a line of chunks: {said:?}, {at}, {reads}");
        let next = format!("\r\n{line}");
        let (said, at, reads) = in_bytes(Kept::NextChunk, next.as_bytes());
        assert!(said.is_some() && at == next.len() && reads == 19, "another line of chunks: {said:?}, {at}, {reads}");
    }
    let trailer = format!("Trailer: {long}\r\n");
    let (said, at, reads) = in_bytes(Kept::Trailer, trailer.as_bytes());
    assert!(said.is_some() && at == trailer.len() && reads == 19, "a trailer: {said:?}, {at}, {reads}");

    let (target, length) = (format!("GET /{long} HTTP/1.1\r\n\r\n"), Kept::Body(LONGEST as u32));
    for body in [&head, &target, &format!("\r\n\r\n {head}")] {
        let (said, at, reads) = in_bytes(length, body.as_bytes());
        assert!(said.is_some() && at == body.len() && reads == 3, "a body: {said:?}, {at}, {reads}");
    }
    // no empty line ends it, but the body does
    let cut = &head.as_bytes()[..10_000];
    let (said, at, reads) = in_bytes(Kept::Body(10_000), cut);
    assert!(said.is_some() && at == cut.len() && reads == 3, "a body without an end: {said:?}, {at}, {reads}");
}

#[test]
fn what_is_too_long_is_told_at_its_last_byte_and_no_earlier() {
    let all: Vec<usize> = (1..=LONGEST).collect();
    for (kind, text) in [
        (Kept::Head, vec![b'\n'; LONGEST]),
        (Kept::Chunk, [&b"5;"[..], &vec![b'a'; LONGEST - 2]].concat()),
        (Kept::Trailer, vec![b'a'; LONGEST]),
        (Kept::Body(u32::MAX), [&b"GET /"[..], &vec![b'a'; LONGEST - 5]].concat()),
    ] {
        let (said, at, reads) = kept(kind, &text, &all, 0);
        assert!(said.is_some() && at == LONGEST && reads <= 20, "{kind:?}: {said:?}, {at}, {reads}");
    }
}
