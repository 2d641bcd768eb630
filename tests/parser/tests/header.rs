// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Heads of HTTP requests, one peculiarity after the other.

use fief_tests_parser::{LONGEST, Parser, Part, State, Unread};

fn parser() -> Parser {
    Parser::new([1, 2], &[])
}

#[track_caller]
fn read(head: &str) -> Parser {
    let mut parser = parser();
    assert_eq!(parser.read(head.as_bytes(), 0), State::Complete, "{head:?}");
    parser
}

#[track_caller]
fn unread(head: &str, kind: Unread) -> Parser {
    let mut parser = parser();
    assert_eq!(parser.read(head.as_bytes(), 0), State::Unread(kind), "{head:?}");
    parser
}

fn text(parser: &Parser, part: Part) -> Option<String> {
    parser.get(part).map(|bytes| String::from_utf8(bytes).expect("text"))
}

#[track_caller]
fn path(target: &str) -> Option<String> {
    text(&read(&format!("GET {target} HTTP/1.1\r\n\r\n")), Part::Path)
}

#[track_caller]
fn host(lines: &str) -> Option<String> {
    text(&read(&format!("GET / HTTP/1.1\r\n{lines}\r\n")), Part::Host)
}

#[track_caller]
fn odd_host(lines: &str) -> Option<String> {
    text(&unread(&format!("GET / HTTP/1.1\r\n{lines}\r\n"), Unread::Malformed), Part::Host)
}

#[track_caller]
fn body(lines: &str) -> Option<u64> {
    read(&format!("POST / HTTP/1.1\r\n{lines}\r\n")).body()
}

#[test]
fn reads_method_path_and_host() {
    let parser = read("GET /a/b?c HTTP/1.1\r\nHost: Shop.Example:8080\r\n\r\nbody");
    assert_eq!(text(&parser, Part::Method).as_deref(), Some("GET"));
    assert_eq!(text(&parser, Part::Path).as_deref(), Some("/a/b"));
    assert_eq!(text(&parser, Part::Host).as_deref(), Some("shop.example"));
    assert_eq!(parser.head(), "GET /a/b?c HTTP/1.1\r\nHost: Shop.Example:8080\r\n\r\n".len());
}

#[test]
fn a_path_has_one_form_however_it_is_written() {
    for target in [
        "/cgi-bin/x",
        "//cgi-bin///x",
        "/%63gi-bin/x",
        "/cgi-bin%2fx",
        "/./cgi-bin/./x",
        "/img/../cgi-bin/x",
        "/img/%2e%2E/cgi-bin/x",
        "/../../cgi-bin/x",
        "/cgi-bin/y//../x",
        "/cgi-bin/x?/../y",
        "http://shop.example/cgi-bin/x",
    ] {
        assert_eq!(path(target).as_deref(), Some("/cgi-bin/x"), "{target}");
    }
}

#[test]
fn dots_at_the_end_of_a_path_leave_its_folder() {
    for (target, expected) in [
        ("/a/.", "/a/"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/..", "/"),
        ("/.", "/"),
        ("/...", "/..."),
        ("/.a", "/.a"),
        ("/a./b", "/a./b"),
        ("/%", "/%"),
        ("/%4", "/%4"),
        ("/%zz", "/%zz"),
        ("/%2541", "/%41"),
        ("/a/../../b/", "/b/"),
    ] {
        assert_eq!(path(target).as_deref(), Some(expected), "{target}");
    }
}

#[test]
fn the_authority_of_an_absolute_target_is_that_of_the_header() {
    for (authority, lines) in [("One.Example:81", "Host: one.example\r\n"), ("one.example", "")] {
        let parser = read(&format!("GET http://{authority}?q HTTP/1.1\r\n{lines}\r\n"));
        assert_eq!(text(&parser, Part::Host).as_deref(), Some("one.example"));
        assert_eq!(text(&parser, Part::Path).as_deref(), Some("/"));
    }
    for (authority, lines) in [
        ("one.example", "Host: two.example\r\n"),
        ("one.example", "Host:\r\n"),
        ("one.example", "Host: one.examplf\r\n"),
        ("one.example", "Host: one.example\r\nHost: one.example\r\n"),
        ("u@one.example", "Host: one.example\r\n"),
        ("one.example?x", "Host: one.example\r\n"),
    ] {
        let head = format!("GET http://{authority}/ HTTP/1.1\r\n{lines}\r\n");
        assert_eq!(text(&unread(&head, Unread::Malformed), Part::Host).as_deref(), Some("one.example"), "{lines}");
    }
}

#[test]
fn a_star_and_an_authority_stay_as_they_are() {
    assert_eq!(text(&read("OPTIONS * HTTP/1.1\r\n\r\n"), Part::Path).as_deref(), Some("*"));
    let connect = read("CONNECT a.example:443 HTTP/1.1\r\n\r\n");
    assert_eq!(text(&connect, Part::Path).as_deref(), Some("a.example:443"));
    assert_eq!(text(&connect, Part::Host).as_deref(), Some("a.example"), "as Go's server takes it");
    assert!(connect.is_upgrade() && connect.body().is_none(), "what follows is a tunnel, if the server agrees");
    for head in
        ["GET * HTTP/1.1\r\n\r\n", "CONNECT / HTTP/1.1\r\n\r\n", "CONNECT a:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n"]
    {
        unread(head, Unread::Malformed);
    }
}

#[test]
fn a_path_that_is_resolved_is_also_read_as_it_stands() {
    for (head, unresolved) in [
        ("GET /a/%2e%2e/b?q HTTP/1.1\r\n\r\n", Some("/a/../b")),
        ("GET //a HTTP/1.1\r\n\r\n", Some("//a")),
        ("GET /%61 HTTP/1.1\r\n\r\n", None),
        // Python's server takes what is no scheme for a path.
        ("CONNECT a_b:80 HTTP/1.1\r\n\r\n", Some("/a_b:80")),
    ] {
        let found = read(head).unresolved().map(|path| String::from_utf8_lossy(&path).into_owned());
        assert_eq!(found.as_deref(), unresolved, "{head:?}");
    }
}

#[test]
fn there_is_one_host_without_port_and_last_dot() {
    assert_eq!(host("Host:  A.b. \t\r\n").as_deref(), Some("a.b"));
    assert_eq!(host("hOsT:[::1]:80\r\n").as_deref(), Some("[::1]"));
    assert_eq!(host("Host:\r\n"), None);
    assert_eq!(host("Host: a,b:80\r\n").as_deref(), Some("a,b"));
    assert_eq!(host(&format!("Host: {}\r\n", "a".repeat(255))), Some("a".repeat(255)));
    for (lines, found) in [
        ("Host: a\r\nHost: c\r\n", Some("a")),
        ("Host: a\r\nHost: a\r\n", Some("a")),
        ("Host :a\r\n", Some("a")),
        ("X: y\r\n Host: folded\r\n", None),
        ("Host:\r\n folded\r\n", Some("folded")),
        ("Host: a\r\r\n", Some("a")),
        ("Host: a,,,,,,,,b\r\n", Some("a,,,,,,,,b")),
        ("Host: u@b\r\n", Some("u@b")),
        ("Host: a%2eb\r\n", Some("a%2eb")),
        ("Host: [fe80::1%25x]\r\n", Some("[fe80::1%25x]")),
        ("Host: a b\r\n", Some("a b")),
        ("Host: a:b\r\n", Some("a")),
        ("Host: a\r\nX y: z\r\n", Some("a")),
        ("Host: a\r\nno colon\r\n", Some("a")),
        ("Host: a\r\n: x\r\n", Some("a")),
        ("Host: a\r\nX: \x01\r\n", Some("a")),
        ("Host: a\r\nX: \x7f\r\n", Some("a")),
        ("Host: a\r\nX: y\rHost: b\r\n", Some("a")),
    ] {
        assert_eq!(odd_host(lines).as_deref(), found, "{lines:?}");
    }
    assert_eq!(odd_host(&format!("Host: {}\r\n", "a".repeat(256))), None);
}

#[test]
fn tells_where_the_next_request_begins() {
    assert_eq!(body(""), Some(0));
    assert_eq!(body("Content-Length: 17\r\n"), Some(17));
    assert_eq!(body("Content-Length: 017 \r\n"), Some(17));
    assert_eq!(
        body("Content-Length: 999999999999999999\r\n"),
        Some(999_999_999_999_999_999),
        "beyond sequence numbers"
    );
    let chunked = read("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n");
    assert!(chunked.is_chunked() && chunked.body().is_none());
    let upgrade = read("GET / HTTP/1.1\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\n");
    assert!(upgrade.is_upgrade() && upgrade.body().is_none());
    assert_eq!(upgrade.head(), 57);
}

#[test]
fn a_body_that_servers_end_elsewhere_is_unread() {
    for lines in [
        "CONTENT-LENGTH:17\r\ncontent-length: 17",
        "Content-Length: 17\r\nContent-Length: 18",
        "Content-Length: 17, 17",
        "Content-Length:",
        "Content-Length: 1x",
        "Content-Length: -1",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: 5 5",
        "Content-Length: 9999999999999999999",
        "Content-Length : 5",
        "Transfer-Encoding: chunked\r\nContent-Length: 17",
        "Content-Length: 17\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: x, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding:",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding: chunked\r",
    ] {
        unread(&format!("POST / HTTP/1.1\r\n{lines}\r\n\r\n"), Unread::Malformed);
    }
    unread("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Unread::Malformed);
}

#[test]
fn is_as_tolerant_as_servers_are() {
    let parser = read("\r\n\r\nGET   /x HTTP/1.0 \r\nhost: a\r\n\r\n");
    assert_eq!(text(&parser, Part::Path).as_deref(), Some("/x"));
    assert_eq!(text(&parser, Part::Host).as_deref(), Some("a"));
    let long = "A".repeat(4000);
    assert_eq!(text(&read(&format!("{long} / HTTP/1.9\r\n\r\n")), Part::Method), Some(long));
    let mut parser = Parser::new([1, 2], &[]);
    let late = "\r\n".repeat((LONGEST - 20) / 2) + "GET /x HTTP/1.1\r\n\r\n";
    assert_eq!(parser.read(late.as_bytes(), 0), State::Complete, "empty lines first");
    assert_eq!(text(&parser, Part::Path).as_deref(), Some("/x"));
}

/// To gunicorn such a line goes on, with the LF in it, up to the next CR LF.
#[test]
fn a_line_that_ends_with_lf_alone_is_unread() {
    for head in [
        "GET /x HTTP/1.1\nHost: a\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nX: y\nContent-Length: 33\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\nX: y\nZ: 1\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a\r\n\n",
        "GET /x HTTP/1.1\nHost: a\n\n",
        "\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\n\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
        "\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let parser = unread(head, Unread::Malformed);
        assert_eq!(text(&parser, Part::Path).as_deref(), Some("/x"), "{head:?}");
        assert_eq!(text(&parser, Part::Host).as_deref(), Some("a"), "{head:?}");
    }
}

/// gunicorn writes methods in capitals.
#[test]
fn a_method_with_a_small_letter_is_unread() {
    for method in ["post", "Post", "POSt", "gET", "m-search", "x"] {
        let parser = unread(&format!("{method} /login HTTP/1.1\r\nHost: a\r\n\r\n"), Unread::Malformed);
        assert_eq!(text(&parser, Part::Method).as_deref(), Some(method));
        assert_eq!(text(&parser, Part::Path).as_deref(), Some("/login"), "{method}");
    }
    for method in ["POST", "M-SEARCH", "A1!#$%&'*+.^_`|~"] {
        read(&format!("{method} /login HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
}

/// As Python's `http.server` takes them, which keeps the most connections.
#[test]
fn a_request_is_the_last_one_only_to_every_server() {
    let is_last = |version: &str, lines: &str| read(&format!("GET / HTTP/1.{version}\r\n{lines}\r\n")).is_last();
    for (version, lines) in [
        ("1", "Connection: close\r\n"),
        ("1", "connection:\t Close\r\n"),
        ("0", ""),
        ("0", "Connection: close\r\n"),
        ("0", "Connection: x\r\n"),
    ] {
        assert!(is_last(version, lines), "{version} {lines:?}");
    }
    for (version, lines) in [
        ("1", ""),
        ("1", "Connection: close \r\n"),
        ("1", "Connection: close\t\r\n"),
        ("1", "Connection: close, x\r\n"),
        ("1", "Connection: closed\r\n"),
        ("1", "Connection: close\r\nConnection: close \r\n"),
        ("0", "Connection: keep-alive\r\n"),
        ("0", "Connection: keep-alive \r\n"),
        ("0", "Connection: close\r\nConnection: keep-alive\r\n"),
    ] {
        assert!(!is_last(version, lines), "{version} {lines:?}");
    }
}

/// Rows of the review of the front door: each is served by one of nginx, HAProxy, Node and Python.
#[test]
fn what_some_server_takes_is_never_passed_by() {
    let long = format!("{}\r\n", "X: y\r\n".repeat(LONGEST / 6));
    for (head, kind) in [
        ("GET /cgi-bin/x HTTP/2.0\r\n\r\n", Unread::Malformed),
        // lighttpd takes the second blank for a byte of the target
        ("GET /cgi-bin/x  HTTP/1.1\r\n\r\n", Unread::Malformed),
        ("GET /cgi-bin/x HTTP/0.9\r\n\r\n", Unread::Malformed),
        ("GET /cgi-bin/x HTTP/01.1\r\n\r\n", Unread::Malformed),
        ("GET /cgi-bin/x HTTP/1.10\r\n\r\n", Unread::Malformed),
        ("GET /cgi-bin/x\r\n", Unread::Malformed),
        ("GET /cgi-bin/x\u{a0} HTTP/1.1\r\n\r\n", Unread::Malformed),
        (" GET /cgi-bin/x HTTP/1.1\r\n\r\n", Unread::Malformed),
        ("GET\x0b/cgi-bin/x HTTP/1.1\r\n\r\n", Unread::Malformed),
        ("GET\t/cgi-bin/x HTTP/1.1\r\n\r\n", Unread::Malformed),
        ("GET /cgi-bin/x\rHTTP/1.1\r\n\r\n", Unread::Malformed),
        ("GET cgi-bin/x HTTP/1.1\r\n\r\n", Unread::Malformed),
        ("GET /cgi-bin/x#y HTTP/1.1\r\n\r\n", Unread::Malformed),
        ("\rGET /cgi-bin/x HTTP/1.1\r\n\r\n", Unread::Malformed),
        ("GET /cgi-bin/x HTTP/1.1\r\n\r\r\n\r\n", Unread::Malformed),
        (&format!("GET /cgi-bin/x?{}", "y".repeat(17_000)), Unread::TooLong),
        (&format!("GET /cgi-bin/x HTTP/1.1\r\n{long}"), Unread::TooLong),
    ] {
        let path = unread(head, kind).get(Part::Path).expect("a path");
        assert!(path.starts_with(b"/cgi-bin/x"), "{path:?} of {head:?}");
    }
    let half = "GET /cgi-bin/x HTTP/1.0\r\n";
    let mut parser = parser();
    for length in ["GET /cgi-bin/x".len(), half.len()] {
        assert_eq!(parser.read(&half.as_bytes()[..length], 0), State::NeedMore);
        assert_eq!(text(&parser, Part::Path).as_deref(), Some("/cgi-bin/x"), "a client may end here");
    }
    assert_eq!(parser.read(format!("{half}Host: a\r\n").as_bytes(), 0), State::NeedMore);
    assert_eq!(text(&parser, Part::Host).as_deref(), Some("a"), "or here");
}

#[test]
fn what_is_no_request_is_said_at_the_byte_that_shows_it() {
    for (bytes, at, kind) in [
        ("\0", 1, Unread::Other),
        ("\x15\x03\x01", 1, Unread::Other),
        ("\x0bGET / HTTP/1.1\r\n\r\n", 1, Unread::Other),
        ("\r\n\r\n\0\r\nQUIT\n\x21\x11", 5, Unread::Proxy),
        ("PROXY TCP4 10.0.0.1 10.0.0.2 1 80\r\nGET / HTTP/1.1\r\n\r\n", 35, Unread::Proxy),
        ("PROXY UNKNOWN\r\n", 15, Unread::Proxy),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 16, Unread::Http2),
        ("SSH-2.0-x\r\n", 11, Unread::Other),
        ("PING\r\n", 6, Unread::Other),
        ("GET  \r\n", 7, Unread::Other),
        (" \r\n", 3, Unread::Other),
        ("GET / FTP\r\n", 11, Unread::Malformed),
        ("GET / http/1.1\r\n\r\n", 16, Unread::Malformed),
        ("GET /a b HTTP/1.1\r\n\r\n", 19, Unread::Malformed),
        ("GET x HTTP/1.1\r\nHost: a\r\n\r\n", 27, Unread::Malformed),
    ] {
        let mut parser = parser();
        for cut in 1..=bytes.len() {
            let state = parser.read(&bytes.as_bytes()[..cut], b'\n');
            let expected = if cut < at { State::NeedMore } else { State::Unread(kind) };
            assert_eq!(state, expected, "{cut} bytes of {bytes:?}");
        }
    }
    read("PROXY /x HTTP/1.1\r\n\r\n");
    read("PRI /x HTTP/1.1\r\n\r\n");
}

#[test]
fn of_a_head_without_end_the_whole_lines_count() {
    let long = "X: y\r\n".repeat(LONGEST / 6 + 1);
    let mut parser = parser();
    let head = format!("GET /x HTTP/1.1\r\nHost: a\r\n{long}");
    assert_eq!(parser.read(&head.as_bytes()[..LONGEST - 1], 0), State::NeedMore);
    assert_eq!(parser.read(head.as_bytes(), 0), State::Unread(Unread::TooLong));
    assert_eq!(text(&parser, Part::Host).as_deref(), Some("a"));
    let last = format!("GET /x HTTP/1.1\r\nX: {}\r\nHost: a\r\n", "y".repeat(LONGEST - 31));
    assert_eq!((last.len(), parser.read(last.as_bytes(), 0)), (LONGEST, State::Unread(Unread::TooLong)));
    assert_eq!(text(&parser, Part::Host).as_deref(), Some("a"), "a line that just fits");
    for (endless, path) in [("\n".repeat(LONGEST), None), (format!("GET /{}", "x".repeat(LONGEST)), Some(LONGEST - 4))]
    {
        assert_eq!(parser.read(endless.as_bytes(), 0), State::Unread(Unread::TooLong));
        assert_eq!(parser.get(Part::Path).map(|path| path.len()), path);
    }
}

#[test]
fn the_longest_path_is_resolved() {
    let mut parser = parser();
    let head = format!("GET /{}x HTTP/1.1\r\n\r\n", "%2e/".repeat(4000));
    assert_eq!(parser.read(head.as_bytes(), 0), State::Complete);
    assert_eq!(text(&parser, Part::Path).as_deref(), Some("/x"));
    let head = format!("GET /%61{} HTTP/1.1\r\n\r\n", "b".repeat(16_000));
    assert_eq!(parser.read(head.as_bytes(), 0), State::Complete);
    assert_eq!(parser.get(Part::Path).map(|path| path.len()), Some(16_002));
}

/// nginx and Apache part words at spaces alone: to them such a line has no version, and they answer it at its end.
#[test]
fn a_version_that_no_space_stands_before_is_none() {
    for gap in [&b"\xa0"[..], b"\x85", b"\t", b"\x0b", b"\x1c", b"\0", b" \xa0", b" \t"] {
        for version in [&b"HTTP/1"[..], b"HTTP/1.1", b"HTTP/1.1 "] {
            let line = [&b"GET /x"[..], gap, version, b"\r\n"].concat();
            let mut parser = parser();
            for cut in 1..line.len() {
                assert_eq!(parser.read(&line[..cut], 0), State::NeedMore, "{cut} bytes of {line:?}");
            }
            assert_eq!(parser.read(&line, 0), State::Unread(Unread::Malformed), "{line:?}");
            assert_eq!(text(&parser, Part::Path).as_deref(), Some("/x"), "{line:?}");
        }
    }
    let mut parser = parser();
    assert_eq!(parser.read(b"GET /x\xa0 HTTP/1.1\r\n", 0), State::NeedMore, "a space: all find the version");
}
