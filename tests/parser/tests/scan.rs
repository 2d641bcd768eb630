// SPDX-License-Identifier: Apache-2.0 OR MIT
//! However a head is cut, the scan says that it is worth reading where the parser has something to say, and hardly where
//! it has not.

mod hello;

use fief_tests_parser::{LONGEST, Parser, Scan, State};
use hello::{alpn, extension, message, records, server_name};
use proptest::prelude::*;

/// Sends a head in pieces that end at these places, and asks the parser only where the scan says so. What it said, of how
/// many bytes, and how often it was asked in vain.
fn scanned(text: &[u8], ends: &[usize], rest: u8) -> (State, usize, u32) {
    let (mut parser, mut scan, mut vain) = (Parser::new([1, 2], &[]), Scan::default(), 0);
    for &end in ends {
        let before = scan.at;
        if parser.scan(&text[..end], rest, &mut scan) {
            match parser.read(&text[..end], rest) {
                State::NeedMore => vain += 1,
                state => return (state, end, vain),
            }
        }
        assert!(scan.at >= before && scan.at as usize <= end.max(before as usize) + 5, "{scan:?} at {end}");
    }
    (State::NeedMore, text.len(), vain)
}

/// The same, but that the parser is asked each time.
fn parsed(text: &[u8], ends: &[usize]) -> (State, usize) {
    let mut parser = Parser::new([1, 2], &[]);
    for &end in ends {
        match parser.read(&text[..end], 0) {
            State::NeedMore => {}
            state => return (state, end),
        }
    }
    (State::NeedMore, text.len())
}

fn ends(cuts: &[usize], length: usize) -> Vec<usize> {
    let mut at = 0;
    let mut ends: Vec<usize> = cuts.iter().map(|cut| (at += cut, at).1).take_while(|&end| end < length).collect();
    ends.push(length);
    ends
}

fn agree(text: &[u8], cuts: &[usize], rest: u8) -> Result<(), TestCaseError> {
    let ends = ends(cuts, text.len());
    let (state, at, vain) = scanned(text, &ends, rest);
    prop_assert_eq!((state, at), parsed(text, &ends));
    prop_assert!(vain <= 1, "{} times in vain", vain);
    Ok(())
}

fn head() -> impl Strategy<Value = Vec<u8>> {
    let words: &[&str] = &[
        "\r\n",
        "\r\n",
        "\r\n",
        "\n",
        "\r",
        "GET / HTTP/1.1",
        "GET /",
        "Host: a",
        "X: y",
        " z",
        "\0",
        "(",
        "PROXY TCP4 ",
        "PRI * HTTP/2.0",
        "\t",
    ];
    prop::collection::vec(prop::sample::select(words), 0..12).prop_map(|words| words.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn heads_of_http(text in head(), cuts in prop::collection::vec(1usize..12, 0..60), rest: u8) {
        agree(&text, &cuts, rest)?;
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
        prop_assume!(stream[0] == 22);
        agree(&stream, &cuts, 0)?;
    }
}

#[test]
fn a_head_in_segments_of_a_byte_is_read_twice_at_most_and_looked_through_once() {
    let head = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(2000));
    let all: Vec<usize> = (1..=head.len()).collect();
    assert_eq!(scanned(head.as_bytes(), &all, 0), (State::Complete, head.len(), 1));
    let hello = records(&message(&[server_name("x"), extension(51, &[0; 1_000])]), &[1; 1_100]);
    let all: Vec<usize> = (1..=hello.len()).collect();
    assert_eq!(scanned(&hello, &all, 0), (State::Complete, hello.len(), 0));
    let long = vec![b'\n'; LONGEST];
    let (state, at, vain) = scanned(&long, &(1..=LONGEST).collect::<Vec<_>>(), 0);
    assert!(matches!(state, State::Unread(_)) && at == LONGEST && vain == 0);
}
