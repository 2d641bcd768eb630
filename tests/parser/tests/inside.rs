// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies that servers may take for the next request: `bpf/front/ignored.bpf.h`. What could be one was asked of Python's
//! `http.server`, which reads no body of a GET.

use fief_tests_parser::{Inside, Parser};

/// The whole body, with all that may stand behind it.
#[track_caller]
fn whole(body: &str) -> Inside {
    let mut parser = Parser::new([1, 2], &[]);
    let all = [0, b'\n', b'x', b' '].map(|rest| parser.inside(body.as_bytes(), rest, body.len(), false));
    assert!(all.iter().all(|one| *one == all[0]), "{body}: {all:?}");
    let more = format!("{body}GET /plain HTTP/1.1\r\n");
    assert_eq!(parser.inside(more.as_bytes(), 0, body.len(), false), all[0], "{body}: with the next request behind it");
    all[0]
}

#[test]
fn what_is_no_request_line_of_any_server_is_a_body() {
    for body in [
        "hello",
        "hello=1",
        "{\"a\":1}",
        "{\"a\": 1, \"b\": 2}",
        "abc def",
        "abc def ghi",
        "SELECT * FROM t",
        "POST /secret",
        "HTTP/1.1",
        "a HTTP/1.1",
        "<a b c>",
        "hello=1 /secret HTTP/1.1\r\n\r\n",
        "GET\r\nGET /secret HTTP/1.1\r\n\r\n",
        "x /y z HTTP/1.1\r\n\r\n",
        "12345",
        "GET /secret HTTP/1",
        "GET /secret HTTP/1.\x01\r\n\r\n",
        "GET /secret HTTP/1..1\r\n\r\n",
        "GET /secret HTTP/1.1\x05\r\n\r\n",
        "GET\x05/secret HTTP/1.1\r\n\r\n",
        "GET /secret HTTP/1.1 x",
        "\r\n\r\n",
        " ",
    ] {
        assert_eq!(whole(body), Inside::Body, "{body:?}");
    }
}

#[test]
fn what_could_be_a_request_is_ruled() {
    for body in [
        "GET /secret HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\n\r\nGET /secret HTTP/1.1\r\n\r\n",
        " GET /secret HTTP/1.1\r\n\r\n",
        "x\t/secret\x0bHTTP/1.1\n",
        "BREW /secret HTTP/9.10",
        "GET /secret HTTP/+1.1\r\n\r\n",
        "GET /secret HTTP/1.-1\r\n\r\n",
        "GET /secret HTTP/0_1.1\r\n\r\n",
        "GET /secret",
        "GET /secret\r\n",
        // A server joins it to the method behind it.
        "PO",
        "\r\nM-S",
    ] {
        assert_eq!(whole(body), Inside::Request, "{body:?}");
    }
}

#[test]
fn a_body_is_waited_for_no_longer_than_it_takes_to_tell() {
    let body = "GET /secret HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut parser = Parser::new([1, 2], &[]);
    for length in 0..body.len() {
        let part = &body.as_bytes()[..length];
        // Its first line tells.
        let expected = if length < 22 { Inside::NeedMore } else { Inside::Request };
        assert_eq!(parser.inside(part, b'\n', body.len(), false), expected, "{length}");
    }
    for (begin, told) in [("{", 1), ("hello=1", 6), ("a b c d", 7), ("a b\r\n", 5)] {
        for length in 0..=begin.len() {
            let expected = if length < told { Inside::NeedMore } else { Inside::Body };
            let part = &begin.as_bytes()[..length];
            assert_eq!(parser.inside(part, 0, 1000, false), expected, "{begin} as far as {length}");
        }
    }
    // A client that sends no more has a server make of it what is there.
    assert_eq!(parser.inside(b"GET /secret", 0, 1000, true), Inside::Request);
}
