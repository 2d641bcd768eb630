// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Heads of HTTP requests, one peculiarity after the other.

use fief_tests_parser::{LONGEST, Parser, Part, State};

fn parser() -> Parser {
    Parser::new([1, 2], &[])
}

fn read(head: &str) -> Parser {
    let mut parser = parser();
    assert_eq!(parser.read(head.as_bytes(), 0), State::Complete, "{head:?}");
    parser
}

fn text(parser: &Parser, part: Part) -> Option<String> {
    parser.get(part).map(|bytes| String::from_utf8(bytes).expect("text"))
}

fn path(target: &str) -> Option<String> {
    text(&read(&format!("GET {target} HTTP/1.1\r\n\r\n")), Part::Path)
}

fn host(lines: &str) -> Option<String> {
    text(&read(&format!("GET / HTTP/1.1\r\n{lines}\r\n")), Part::Host)
}

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
        "/cgi-bin/x#y",
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
fn the_authority_of_an_absolute_target_stands_above_the_header() {
    let parser = read("GET http://u:p@One.Example:81?q HTTP/1.1\r\nHost: two.example\r\n\r\n");
    assert_eq!(text(&parser, Part::Host).as_deref(), Some("one.example"));
    assert_eq!(text(&parser, Part::Path).as_deref(), Some("/"));
}

#[test]
fn a_star_and_an_authority_stay_as_they_are() {
    assert_eq!(text(&read("OPTIONS * HTTP/1.1\r\n\r\n"), Part::Path).as_deref(), Some("*"));
    let connect = read("CONNECT a.example:443 HTTP/1.1\r\n\r\n");
    assert_eq!(text(&connect, Part::Path).as_deref(), Some("a.example:443"));
    assert_eq!(connect.body(), None, "what follows is a tunnel");
}

#[test]
fn the_first_host_counts_without_port_and_last_dot() {
    assert_eq!(host("Host:  A.b. \t\r\nHost: c\r\n").as_deref(), Some("a.b"));
    assert_eq!(host("hOsT:[::1]:80\r\n").as_deref(), Some("[::1]"));
    assert_eq!(host("Host :a\r\n"), None, "a name ends at its colon");
    assert_eq!(host("X: y\r\n Host: folded\r\n"), None);
    assert_eq!(host(&format!("Host: {}\r\n", "a".repeat(256))), None);
    assert_eq!(host(&format!("Host: {}\r\n", "a".repeat(255))), Some("a".repeat(255)));
}

#[test]
fn tells_where_the_next_request_begins() {
    assert_eq!(body(""), Some(0));
    assert_eq!(body("Content-Length: 17\r\n"), Some(17));
    assert_eq!(body("CONTENT-LENGTH:17\r\ncontent-length: 17\r\n"), Some(17));
    assert_eq!(body("Content-Length: 17\r\nContent-Length: 18\r\n"), None);
    assert_eq!(body("Content-Length: \r\n"), None);
    assert_eq!(body("Content-Length: 1x\r\n"), None);
    assert_eq!(body("Content-Length: -1\r\n"), None);
    assert_eq!(body("Content-Length: 99999999999999999999\r\n"), None);
    assert_eq!(body("Transfer-Encoding: chunked\r\nContent-Length: 17\r\n"), None);
    assert_eq!(body("Upgrade: websocket\r\n"), None);
}

#[test]
fn is_as_tolerant_as_servers_are() {
    let parser = read("\r\n\nGET \t /x\t HTTP/1.0\nhost: a\n\n");
    assert_eq!(text(&parser, Part::Path).as_deref(), Some("/x"));
    assert_eq!(text(&parser, Part::Host).as_deref(), Some("a"));
    let parser = read("GET /old\r\nHost: a\r\n\r\n");
    assert_eq!(text(&parser, Part::Path).as_deref(), Some("/old"), "HTTP/0.9 has one line");
    assert_eq!(text(&parser, Part::Host), None);
    assert_eq!(parser.head(), 10);
    assert_eq!(parser.body(), None);
}

#[test]
fn what_is_no_request_is_said_at_the_first_byte_that_shows_it() {
    for (bytes, at) in [
        ("\0", 1),
        (" GET / HTTP/1.1\r\n\r\n", 1),
        ("SSH-2.0-x\r\n", 10),
        ("PING\r\n", 5),
        ("GET  \r\n", 7),
        ("GET x HTTP/1.1\r\n", 16),
        ("GET / HTTP/2.0\r\n", 16),
        ("GET / FTP\r\n", 11),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 16),
        (&format!("{} / HTTP/1.1\r\n", "A".repeat(33)), 33),
    ] {
        let mut parser = parser();
        for cut in 1..=bytes.len() {
            let state = parser.read(&bytes.as_bytes()[..cut], b'\n');
            let expected = if cut < at { State::NeedMore } else { State::Malformed };
            assert_eq!(state, expected, "{cut} bytes of {bytes:?}");
        }
    }
}

#[test]
fn of_a_head_without_end_the_whole_lines_count() {
    let long = "X: y\r\n".repeat(LONGEST / 6 + 1);
    let mut parser = parser();
    let head = format!("GET /x HTTP/1.1\r\nHost: a\r\n{long}");
    assert_eq!(parser.read(&head.as_bytes()[..LONGEST - 1], 0), State::NeedMore);
    assert_eq!(parser.read(head.as_bytes(), 0), State::Cut);
    assert_eq!(text(&parser, Part::Host).as_deref(), Some("a"));
    for endless in ["\n".repeat(LONGEST), format!("GET /{}", "x".repeat(LONGEST))] {
        assert_eq!(parser.read(endless.as_bytes(), 0), State::Cut);
        assert_eq!(parser.get(Part::Path), None);
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
