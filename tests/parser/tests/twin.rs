// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel side's parser, the policy's own reading of a request, and httparse, held against each other; and the
//! hashes of what a request shows, against those that the policy's compiler makes.

use fief_policy::{Body, Comparison, Fields, Part as Field, PatternHash, ShapeCondition};
use fief_tests_parser::{Condition, Parser, Part, Shape, State};
use proptest::prelude::*;

const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

fn hash() -> PatternHash {
    PatternHash::new(KEY)
}

/// What a parser for these tests looks for: two headers, two cookies.
fn parser() -> Parser {
    let names = [(Field::Header, "x-a"), (Field::Header, "cookie"), (Field::Cookie, "a"), (Field::Cookie, "A")];
    Parser::new(KEY, &names.map(|(part, name)| hash().name(part, name.as_bytes())))
}

// ---- requests, most of them nearly right ---------------------------------------------------------------------------

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
    prop::sample::select(words).prop_map(str::to_owned)
}

fn target() -> impl Strategy<Value = String> {
    let piece = one_of(&[
        "/", "/", "a", "b.php", ".", "..", "%2e", "%2F", "%41", "%", "?", "#", "//", "é", ";", "+", "\\", "\0",
    ]);
    let path = prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat());
    let before = one_of(&[
        "/",
        "/",
        "/",
        "/",
        "",
        "http://Host.Example:80",
        "http://shop.example",
        "http://u@h",
        "https://",
        "x:/",
        "*",
        "h:443",
        "TCP4",
    ]);
    (before, path).prop_map(|(before, path)| before + &path)
}

fn line() -> impl Strategy<Value = String> {
    let name = one_of(&[
        "Host",
        "host",
        "X-A",
        "x-a ",
        "Cookie",
        "Content-Length",
        "Transfer-Encoding",
        "Upgrade",
        "Accept",
        " Host",
        "\tx",
        "Host ",
        "é",
        "",
    ]);
    let value = one_of(&[
        "",
        "a",
        " Shop.Example:80 ",
        "[::1]:80",
        "a%2eb",
        "u.",
        "7",
        "7 ",
        "x;y",
        "a=1; b=2",
        " A = 3 ;a=4",
        "a;a=\"5\";",
        "=;=",
        "chunked",
        "Chunked",
        "gzip, chunked",
        "\t",
        "\r\n ",
        "\r\n 7",
        "\u{1}",
        "\u{7f}",
        "a\rb",
        "a,b",
        "1x",
        "999999999999999999",
        "é",
    ]);
    let colon = one_of(&[":", ":", ":", ": ", ":\t", ""]);
    (name, colon, value).prop_map(|(name, colon, value)| name + &colon + &value)
}

fn end() -> impl Strategy<Value = String> {
    one_of(&["\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r\r\n"])
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let method = one_of(&[
        "GET", "GET", "POST", "OPTIONS", "CONNECT", "M-SEARCH", "", "G(T", "(GT", " GET", "Get", "post", "PRI", "PROXY",
    ]);
    let blank = one_of(&[" ", " ", " ", "\t", "  ", "", "\u{b}", "\r", "\u{a0}"]);
    let version = one_of(&[
        "HTTP/1.1",
        "HTTP/1.1",
        "HTTP/1.1",
        "HTTP/1.0",
        "HTTP/2.0",
        "HTTP/0.9",
        "HTTP/01.1",
        "HTTP/1.9",
        "",
        "HTTP/1",
        "x",
    ]);
    let first =
        (one_of(&["", "", "", "\r\n", "\n\n", "\r", "\r\n\r\n\0"]), method, blank.clone(), target(), blank, version)
            .prop_map(|(empty, method, a, target, b, version)| format!("{empty}{method}{a}{target}{b}{version}"));
    let lines = prop::collection::vec((line(), end()), 0..6)
        .prop_map(|lines| lines.into_iter().map(|(line, end)| line + &end).collect::<String>());
    (
        first,
        end(),
        lines,
        one_of(&["\r\n", "\r\n", "\r\n", "\r\n", "\n", ""]),
        one_of(&["", "GET /next HTTP/1.1\r\n\r\n"]),
    )
        .prop_map(|(first, end, lines, last, rest)| (first + &end + &lines + &last + &rest).into_bytes())
}

fn named(pairs: &[(Vec<u8>, Vec<u8>)], name: &str) -> Option<Vec<u8>> {
    pairs.iter().find(|(other, _)| other == name.as_bytes()).map(|(_, value)| value.clone())
}

// ---- conditions on what such requests show ---------------------------------------------------------------------------

fn condition() -> impl Strategy<Value = ShapeCondition> {
    let part = prop::sample::select(vec![Field::Method, Field::Path, Field::Path, Field::Host, Field::Header]);
    let comparison =
        prop::sample::select(vec![Comparison::Exact, Comparison::Prefix, Comparison::Suffix, Comparison::Present]);
    (part, comparison, 0u16..6).prop_map(|(part, comparison, length)| {
        let is_part = matches!(comparison, Comparison::Prefix | Comparison::Suffix);
        let length = if is_part { length } else { 0 };
        ShapeCondition { part, name: 0, comparison, length, least: length }
    })
}

fn shape(conditions: &[ShapeCondition]) -> Shape {
    let mut shape = Shape { conditions: conditions.len() as u32, ..Shape::default() };
    for (to, from) in shape.condition.iter_mut().zip(conditions) {
        *to = Condition {
            field: from.part as u8,
            comparison: from.comparison as u8,
            name: from.name,
            pad: 0,
            length: from.length,
            least: from.least,
        };
    }
    shape
}

fn expected_hash(fields: &Fields, conditions: &[ShapeCondition]) -> Option<u64> {
    conditions.iter().try_fold(hash().start(), |state, condition| {
        let value = match condition.part {
            Field::Method => fields.method.clone(),
            Field::Path => fields.path.clone(),
            Field::Host => fields.host.clone(),
            _ => named(&fields.headers, "x-a"),
        }?;
        let length = usize::from(condition.length);
        let bytes = match condition.comparison {
            Comparison::Exact => &value[..],
            Comparison::Prefix => value.get(..length)?,
            Comparison::Suffix => &value[value.len().checked_sub(length)?..],
            Comparison::Present => &[],
        };
        Some(hash().add(state, condition, bytes))
    })
}

fn expected_state(fields: &Fields) -> State {
    use fief_policy::Unread::*;
    use fief_tests_parser::Unread as Kind;
    match fields.unread {
        _ if fields.is_unfinished => State::NeedMore,
        None => State::Complete,
        Some(Malformed) => State::Unread(Kind::Malformed),
        Some(TooLong) => State::Unread(Kind::TooLong),
        Some(Upgrade) => State::Unread(Kind::Upgrade),
        Some(Http2) => State::Unread(Kind::Http2),
        Some(Proxy) => State::Unread(Kind::Proxy),
        Some(NoRoom) => State::Unread(Kind::NoRoom),
        Some(Other) => State::Unread(Kind::Other),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_kernel_side_reads_a_request_as_the_policy_does(text in request(), conditions in prop::collection::vec(condition(), 0..5)) {
        let conditions = &conditions[..conditions.len().min(4)];
        let mut parser = parser();
        let state = parser.read(&text, b'\n');
        let fields = Fields::of_http(&text);
        prop_assert_eq!(state, expected_state(&fields));
        if state == State::Complete {
            prop_assert_eq!(parser.head(), fields.head);
            prop_assert_eq!(parser.is_upgrade(), fields.is_upgrade);
            prop_assert_eq!(parser.is_chunked(), fields.body == Body::Chunked);
            let length = if let Body::Length(length) = fields.body { Some(length) } else { None };
            prop_assert_eq!(parser.body(), length.filter(|_| !fields.is_upgrade));
        }
        prop_assert_eq!(parser.get(Part::Method), fields.method.clone());
        prop_assert_eq!(parser.get(Part::Path), fields.path.clone());
        prop_assert_eq!(parser.get(Part::Host), fields.host.clone());
        prop_assert_eq!(parser.get(Part::Value(0)), named(&fields.headers, "x-a"));
        prop_assert_eq!(parser.get(Part::Value(1)), named(&fields.headers, "cookie"));
        prop_assert_eq!(parser.get(Part::Value(2)), named(&fields.cookies, "a"));
        prop_assert_eq!(parser.get(Part::Value(3)), named(&fields.cookies, "A"));
        prop_assert_eq!(parser.shape(&shape(conditions), 0), expected_hash(&fields, conditions));
        prop_assert_eq!(parser.unresolved(), fields.unresolved_path.clone());
    }

    #[test]
    fn the_kernel_side_reads_what_httparse_accepts(text in request()) {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut other = httparse::Request::new(&mut headers);
        let mut parser = parser();
        let state = parser.read(&text, 0);
        let Ok(httparse::Status::Complete(head)) = other.parse(&text) else { return Ok(()) };
        if state != State::Complete {
            return Ok(()); // it leaves the form of a target, hosts and bodies to its caller
        }
        prop_assert_eq!(parser.get(Part::Method), other.method.map(|method| method.as_bytes().to_vec()));
        prop_assert_eq!(parser.head(), head);
        let value = other.headers.iter().find(|header| header.name.eq_ignore_ascii_case("x-a")).map(|header| header.value.to_vec());
        prop_assert_eq!(parser.get(Part::Value(0)), value);
        if let Some(body) = parser.body() {
            let length = other.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
            let length = length.map_or(Ok(0), |header| std::str::from_utf8(header.value).unwrap_or_default().trim().parse());
            prop_assert_eq!(Ok(body), length);
        }
    }

    #[test]
    fn what_is_said_of_a_beginning_is_said_of_the_whole(text in request(), rest: u8) {
        let mut parser = parser();
        let whole = parser.read(&text, 0);
        let seen = |parser: &Parser| [Part::Method, Part::Path, Part::Host, Part::Value(0)].map(|part| parser.get(part));
        let (head, fields) = (parser.head(), seen(&parser));
        for cut in 0..text.len() {
            match parser.read(&text[..cut], rest) {
                State::NeedMore => {}
                state => {
                    prop_assert_eq!(state, whole, "{} bytes", cut);
                    prop_assert_eq!((parser.head(), seen(&parser)), (head, fields.clone()));
                }
            }
        }
    }

    #[test]
    fn any_bytes_get_an_answer(text in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut parser = parser();
        let http = parser.read(&text, 0);
        prop_assert_ne!(http, State::Unread(fief_tests_parser::Unread::TooLong));
        parser.read(&[&[0x16, 3, 1], text.as_slice()].concat(), 0);
    }
}

#[test]
fn hashes_reach_as_far_as_a_pattern_may() {
    let mut parser = parser();
    for length in [1, 254, 255, 256, 5000] {
        let path = format!("/{}", "x".repeat(length - 1));
        let text = format!("GET {path} HTTP/1.1\r\n\r\n");
        assert_eq!(parser.read(text.as_bytes(), 0), State::Complete);
        let fields = Fields::of_http(text.as_bytes());
        for comparison in [Comparison::Exact, Comparison::Prefix, Comparison::Suffix] {
            for wanted in [1, 8, 255] {
                let wanted = if comparison == Comparison::Exact { 0 } else { wanted };
                let all = [ShapeCondition { part: Field::Path, name: 0, comparison, length: wanted, least: wanted }];
                let expected =
                    expected_hash(&fields, &all).filter(|_| comparison != Comparison::Exact || length <= 255);
                assert_eq!(parser.shape(&shape(&all), 0), expected, "{comparison:?} {wanted} of {length}");
            }
        }
    }
}
