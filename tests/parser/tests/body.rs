// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where bodies end, however they come, held against a plain reading of the whole of them.

use fief_tests_parser::{Followed, Follower, Parser};
use proptest::prelude::*;

/// Of a chunked body that is there as a whole: its length; none: it is not over. An error: servers differ about it.
fn chunked(bytes: &[u8]) -> Result<Option<usize>, ()> {
    let mut at = 0;
    loop {
        let Some(line) = line(&bytes[at..])? else { return Ok(None) };
        let size = size(line)?;
        at += line.len() + 2;
        if size == 0 {
            break;
        }
        let end = usize::try_from(size).map_err(drop)?.saturating_add(at);
        match bytes.get(end.min(bytes.len())..) {
            Some([b'\r', b'\n', ..]) => at = end + 2,
            Some([] | [b'\r']) => return Ok(None),
            _ => return Err(()),
        }
    }
    loop {
        if bytes[at..].first().is_some_and(|byte| b" \t".contains(byte)) {
            return Err(());
        }
        let Some(line) = line(&bytes[at..])? else { return Ok(None) };
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Some(at));
        }
    }
}

/// Without its CR LF; none: it is not over.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, ()> {
    let end = bytes.iter().position(|byte| byte.is_ascii_control() && *byte != b'\t').unwrap_or(bytes.len());
    match &bytes[end..] {
        [b'\r', b'\n', ..] => Ok(Some(&bytes[..end])),
        [] | [b'\r'] => Ok(None),
        _ => Err(()),
    }
}

fn size(line: &[u8]) -> Result<u64, ()> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let rest = line[digits..].trim_ascii_start();
    if !(1..=15).contains(&digits) || rest.first().is_some_and(|&byte| byte != b';') {
        return Err(());
    }
    u64::from_str_radix(std::str::from_utf8(&line[..digits]).map_err(drop)?, 16).map_err(drop)
}

/// What is said of a body that comes in pieces of these lengths, and where it ended.
fn follow(body: &[u8], length: Option<u64>, cuts: &[usize], rest: u8) -> (Followed, usize) {
    let mut parser = Parser::new([1, 2], &[]);
    let mut follower = Follower::new(length);
    let (mut at, mut cuts) = (0, cuts.iter().copied().chain(std::iter::repeat(usize::MAX)));
    while at < body.len() && follower.said() == Followed::Within {
        let piece = &body[at..body.len().min(at.saturating_add(cuts.next().expect("endless")))];
        at += parser.follow(piece, rest, &mut follower);
    }
    (follower.said(), at)
}

/// Whether nothing that follows makes it a body.
fn is_lost(body: &[u8]) -> bool {
    ["\r\n", "\n", "1\r\n"].iter().all(|rest| chunked(&[body, rest.as_bytes()].concat()).is_err())
}

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
    prop::sample::select(words).prop_map(str::to_owned)
}

/// Nearly a chunk.
fn chunk() -> impl Strategy<Value = String> {
    let size = one_of(&["5", "5", "05", "0000000000000005", "000000000000005", "", "+5", "0x5", "A", "g", "-5", "0"]);
    let extension = one_of(&["", "", "", ";a", ";a=b", " ;a=\"b;c\"", "\t", " 5", ";\n", ";a\rb", ";\u{7f}", ";é"]);
    let end = one_of(&["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\r\n", ""]);
    let data = one_of(&["hello", "hello", "hello", "hel\r\n", "0\r\n\r\n", "hello!", "ten bytes!", ""]);
    (size, extension, end.clone(), data, end)
        .prop_map(|(size, extension, a, data, b)| size + &extension + &a + &data + &b)
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let good = Just("5\r\nhello\r\n".to_owned());
    let chunks = prop::collection::vec(prop_oneof![3 => good, 1 => chunk()], 0..4).prop_map(|chunks| chunks.concat());
    let last = one_of(&["0\r\n", "0\r\n", "0\r\n", "00;x\r\n", "0\n", ""]);
    let trailer = one_of(&["", "", "X: y\r\n", "X: y\r\nZ\r\n", " X: y\r\n", "X: y\n", "X\rY: z\r\n"]);
    let end = one_of(&["\r\n", "\r\n", "\n", "\r", ""]);
    let next = one_of(&["", "GET / HTTP/1.1\r\n\r\n", "\r\n"]);
    (chunks, last, trailer, end, next)
        .prop_map(|(chunks, last, trailer, end, next)| (chunks + &last + &trailer + &end + &next).into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_chunked_body_ends_where_it_does_however_it_comes(body in body(), cuts in prop::collection::vec(1usize..9, 0..40), rest: u8) {
        let (said, at) = follow(&body, None, &cuts, rest);
        match chunked(&body) {
            Ok(Some(end)) => prop_assert_eq!((said, at), (Followed::Ended, end)),
            Ok(None) if said == Followed::Odd => prop_assert!(is_lost(&body), "it could still be a body"),
            Ok(None) => prop_assert_eq!((said, at), (Followed::Within, body.len())),
            Err(()) => prop_assert_eq!(said, Followed::Odd),
        }
    }

    #[test]
    fn a_body_of_known_length_ends_there(length in 0u64..50, come in 0usize..60, cuts in prop::collection::vec(1usize..9, 0..40)) {
        let (said, at) = follow(&vec![b'x'; come], Some(length), &cuts, 0);
        let expected = if come as u64 >= length { (Followed::Ended, length as usize) } else { (Followed::Within, come) };
        prop_assert_eq!((said, at), expected);
    }

    #[test]
    fn any_bytes_get_an_answer(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let (said, _) = follow(&body, None, &[], 0);
        prop_assert_eq!(said == Followed::Odd, chunked(&body).is_err() || is_lost(&body));
    }
}

#[test]
fn sizes_reach_beyond_what_a_segment_holds() {
    let mut follower = Follower::new(None);
    let mut parser = Parser::new([1, 2], &[]);
    assert_eq!(parser.follow(b"fffffffffffffff\r\n", 0, &mut follower), 17);
    assert_eq!((follower.said(), follower.left), (Followed::Within, (1 << 60) - 1));
    parser.follow(&[b'0'; 16_000], b'0', &mut follower);
    assert_eq!((follower.said(), follower.left), (Followed::Within, (1 << 60) - 16_001));
    assert_eq!(Follower::new(Some(0)).said(), Followed::Ended);
}
