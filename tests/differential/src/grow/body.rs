// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies that hold a request, chunks in every spelling, and requests one behind the other.

use fief_testkit::Dice;

use super::{first_line, lines, one, replace};

const INNER: &[&[u8]] = &[
    b"GET /secret HTTP/1.1\r\nHost: plain.example\r\n\r\n",
    b"GET /plain HTTP/1.1\r\nHost: secret.example\r\n\r\n",
    b"GET /secret HTTP/1.0\r\n\r\n",
    b"hello",
    b"\r\nGET /secret HTTP/1.1\r\nHost: plain.example\r\n\r\n",
    b"GET /plain HTTP/1.1\r\nHost: plain.example\r\n\r\n",
    b"GET /secret HTTP/+1.1\r\nHost: plain.example\r\n\r\n",
    b"GET /secret\xa0HTTP/1.1\r\nHost: plain.example\r\n\r\n",
];

/// Puts these fields and this body into the first head; what stood behind the head stays behind the body.
fn insert(bytes: &mut Vec<u8>, fields: &str, body: &[u8], post: bool) {
    let Some(last) = lines(bytes).last().cloned() else { return };
    let empty =
        if bytes[last.end..].starts_with(b"\r\n") { 2 } else { usize::from(bytes[last.end..].starts_with(b"\n")) };
    replace(bytes, last.end + empty..last.end + empty, body);
    replace(bytes, last.end..last.end, fields.as_bytes());
    let line = first_line(bytes);
    if post && bytes[line.clone()].starts_with(b"GET ") {
        replace(bytes, line.start..line.start + 3, b"POST");
    }
}

/// A body of a told length, which may not be its own.
pub fn body(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let inner = one(dice, INNER);
    let length = inner.len();
    let told = match dice.roll(10) {
        0 => length + 1,
        1 => length.saturating_sub(1),
        2 => 0,
        3 => length + 100,
        _ => length,
    };
    let name = one(dice, &["Content-Length", "content-length", "CONTENT-LENGTH", "Content-Length "]);
    let field = match dice.roll(14) {
        0 => format!("{name}: {told}\r\n{name}: {told}\r\n"),
        1 => format!("{name}: {told}\r\n{name}: 0\r\n"),
        2 => format!("{name}: 0\r\n{name}: {told}\r\n"),
        3 => format!("{name}: 0{told}\r\n"),
        4 => format!("{name}: +{told}\r\n"),
        5 => format!("{name}:\r\n {told}\r\n"),
        6 => format!("{name}: {told}, {told}\r\n"),
        7 => format!("{name}: {told}\t\r\n"),
        8 => format!("{name}: {told} 1\r\n"),
        _ => format!("Content-Length: {told}\r\n"),
    };
    let post = dice.roll(3) != 0;
    insert(bytes, &field, inner, post);
}

/// A body in chunks.
pub fn chunks(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let field = one(
        dice,
        &[
            "Transfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\n",
            "transfer-encoding: CHUNKED\r\n",
            "Transfer-Encoding:\tchunked\r\n",
            "Transfer-Encoding: chunked \r\n",
            "Transfer-Encoding:\r\n chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            "Content-Length: 200\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\r\n",
            "Transfer-Encoding : chunked\r\n",
            "Transfer-Encoding: x, chunked\r\n",
            "Transfer-Encoding: ,chunked\r\n",
            "Transfer_Encoding: chunked\r\n",
        ],
    );
    let mut body = vec![];
    for _ in 0..dice.roll(4) {
        let inner = one(dice, INNER);
        let size = match dice.roll(16) {
            0 => format!("{:X}", inner.len()),
            1 => format!("000{:x}", inner.len()),
            2 => format!("{:x} ", inner.len()),
            3 => format!("{:x};a=b", inner.len()),
            4 => format!("{:x};a=\"\r\n\"", inner.len()),
            5 => format!("0x{:x}", inner.len()),
            6 => format!(" {:x}", inner.len()),
            7 => format!("{:x}", inner.len() + 2),
            8 => format!("{:016x}", inner.len()),
            9 => format!("10000000000000{:03x}", inner.len()),
            10 => format!("{:x};{}", inner.len(), "a".repeat([10, 300, 5000][dice.roll(3)])),
            11 => format!("{:x}; \n", inner.len()),
            _ => format!("{:x}", inner.len()),
        };
        let first = one(dice, &["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r\r\n", "\r"]);
        let second = one(dice, &["\r\n", "\r\n", "\r\n", "\r\n", "\n", "", "xx"]);
        body.extend([size.as_bytes(), first.as_bytes(), inner, second.as_bytes()].concat());
    }
    body.extend(one(
        dice,
        &[
            &b"0\r\n\r\n"[..],
            b"0\r\n\r\n",
            b"0\r\n\r\n",
            b"0\r\n\r\n",
            b"000\r\n\r\n",
            b"0;a=b\r\n\r\n",
            b"0\n\n",
            b"0\r\nX: y\r\n\r\n",
            b"0\r\nHost: secret.example\r\n\r\n",
            b"0 \r\n\r\n",
            b"0\r\n",
            b"",
            b"0\r\n\n",
            b"0\r\n X: y\r\n\r\n",
            b"0\r\nX: y\n\n",
            b"-0\r\n\r\n",
            b"\r\n",
            b"0\r\r\n\r\n",
        ],
    ));
    let post = dice.roll(4) != 0;
    insert(bytes, field, &body, post);
}

/// Another request before or behind.
pub fn pipeline(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let other = one(
        dice,
        &[
            "GET /plain HTTP/1.1\r\nHost: plain.example\r\n\r\n",
            "POST /plain HTTP/1.1\r\nHost: plain.example\r\nContent-Length: 5\r\n\r\nhello",
            "POST /plain HTTP/1.1\r\nHost: plain.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "HEAD /plain HTTP/1.1\r\nHost: plain.example\r\n\r\n",
            "GET /plain HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            "GET /plain HTTP/1.1\nHost: plain.example\n\n",
            "OPTIONS * HTTP/1.1\r\nHost: plain.example\r\n\r\n",
            "\r\nGET /plain HTTP/1.1\r\nHost: plain.example\r\n\r\n",
        ],
    );
    let behind = one(
        dice,
        &[
            "GET /secret HTTP/1.1\r\nHost: plain.example\r\n\r\n",
            "GET /plain HTTP/1.1\r\nHost: secret.example\r\n\r\n",
            other,
        ],
    );
    if dice.roll(2) == 0 {
        let count = [1, 1, 2, 3, 30, 31, 32, 33, 34, 40, 70][dice.roll(11)];
        replace(bytes, 0..0, other.repeat(count).as_bytes());
    } else {
        let separator = one(dice, &["", "", "", "\r\n", "\n", "\r", " ", "0\r\n\r\n"]);
        bytes.extend(separator.as_bytes());
        bytes.extend(behind.as_bytes());
    }
}
