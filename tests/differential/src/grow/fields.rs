// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The header's fields: the host, what frames a body, folds, and length.

use fief_testkit::Dice;

use super::{field_place, first_line, lines, one, replace};

/// A line break with a blank behind it where a blank may stand in a field.
pub fn fold(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let fields: Vec<_> = lines(bytes).into_iter().skip(1).collect();
    if fields.is_empty() {
        return;
    }
    let field = fields[dice.roll(fields.len())].clone();
    let colon =
        bytes[field.clone()].iter().position(|&byte| byte == b':').map_or(field.start, |at| field.start + at + 1);
    let text_end = field.end - 1 - usize::from(field.end >= 2 && bytes[field.end - 2] == b'\r');
    let at = match dice.roll(4) {
        0 | 1 => colon,
        2 => text_end.max(colon),
        _ => colon + dice.roll((text_end.saturating_sub(colon)).max(1)),
    };
    let with = one(dice, &["\r\n ", "\r\n\t", "\n ", "\r\n  ", "\r\n \r\n ", "\r\n\t\t", "\r\r\n ", "\r "]);
    replace(bytes, at..at, with.as_bytes());
}

/// Much of something.
pub fn length(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let long = [200, 255, 256, 500, 1000, 1400, 1500, 3000, 7900, 8100, 12_000, 15_900, 16_300, 16_384, 17_000, 40_000]
        [dice.roll(16)];
    let place = field_place(bytes, dice);
    match dice.roll(6) {
        0 => replace(bytes, place..place, format!("X-Pad: {}\r\n", "a".repeat(long)).as_bytes()),
        1 => {
            let count = [10, 50, 63, 64, 65, 99, 100, 101, 127, 128, 129, 200][dice.roll(12)];
            replace(bytes, place..place, "X-A: b\r\n".repeat(count).as_bytes());
        }
        2 => replace(bytes, place..place, format!("{}: a\r\n", "X".repeat(long.min(9000))).as_bytes()),
        3 => {
            let each = format!("X-Pad: {}\r\n", "a".repeat(7800));
            replace(bytes, place..place, each.repeat(1 + dice.roll(4)).as_bytes());
        }
        4 => {
            let line = first_line(bytes);
            if let Some(at) = bytes[line.clone()].iter().rposition(|&byte| byte == b' ') {
                let at = line.start + at;
                replace(bytes, at..at, format!("?{}", "a".repeat(long)).as_bytes());
            }
        }
        _ => {
            let blanks = [" ", "\t"][dice.roll(2)].repeat(long);
            let fields: Vec<_> = lines(bytes).into_iter().skip(1).collect();
            if !fields.is_empty() {
                let field = fields[dice.roll(fields.len())].clone();
                let colon = bytes[field.clone()].iter().position(|&byte| byte == b':').unwrap_or(0);
                let at = field.start + colon + 1;
                replace(bytes, at..at, blanks.as_bytes());
            }
        }
    }
}

/// The host, otherwise or twice.
pub fn host(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let name =
        one(dice, &["Host", "host", "HOST", "hOsT", "Host ", " Host", "Host\t", "Hos", "Host\0", "\"Host\"", "Hosts"]);
    let value = one(
        dice,
        &[
            "secret.example",
            "plain.example",
            "SECRET.EXAMPLE",
            "secret.example:80",
            "secret.example:",
            "secret.example.",
            "secret.example.:80",
            "secret.example ",
            " secret.example",
            "\tsecret.example\t",
            "x@secret.example",
            "secret.example/",
            "secret.example,plain.example",
            "plain.example, secret.example",
            "secret.example:x",
            "secret.example:99999",
            "[secret.example]",
            "%73ecret.example",
            "secret%2eexample",
            "",
            "a",
            "secret.example\x0b",
            "\x0csecret.example",
            "secret.example;x",
            "secret.example?",
            "secret.example#",
            "\u{ff53}ecret.example",
        ],
    );
    let field = format!("{name}:{}{value}\r\n", [" ", "", "\t", "  "][dice.roll(4)]);
    let lines = lines(bytes);
    let old = lines.iter().skip(1).find(|line| bytes[line.start..line.end].to_ascii_lowercase().starts_with(b"host"));
    match (old.cloned(), dice.roll(4)) {
        (Some(line), 0) => replace(bytes, line, b""),
        (Some(line), 1) => replace(bytes, line.start..line.start, field.as_bytes()),
        (Some(line), 2) => replace(bytes, line, field.as_bytes()),
        _ => {
            let place = field_place(bytes, dice);
            replace(bytes, place..place, field.as_bytes());
        }
    }
}

/// One more field.
pub fn field(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let text: &[u8] = one(
        dice,
        &[
            b"Content-Length: 0",
            b"Content-Length: 5",
            b"Content-Length: +5",
            b"Content-Length: 05",
            b"Content-Length: 0x5",
            b"Content-Length: 5, 5",
            b"Content-Length:",
            b"Content-Length: -1",
            b"Content-Length: 18446744073709551616",
            b"Content-Length: 4294967301",
            b"Content-Length: 1000000000000",
            b"Content-Length : 5",
            b"Content-Length: 5 ",
            b"Content-Length: 5a",
            b"Content_Length: 5",
            b"Transfer-Encoding: chunked",
            b"Transfer-Encoding: Chunked",
            b"Transfer-Encoding: identity",
            b"Transfer-Encoding: gzip, chunked",
            b"Transfer-Encoding: chunked, identity",
            b"Transfer-Encoding:\x0bchunked",
            b"Transfer-Encoding: xchunked",
            b"Transfer-Encoding : chunked",
            b"Transfer-Encoding: \"chunked\"",
            b"Transfer-Encoding: chunked, chunked",
            b"Transfer-Encoding:",
            b"Transfer-Encoding: chunked;a=b",
            b"TE: trailers",
            b"Connection: close",
            b"Connection: close ",
            b"Connection:\tclose\t",
            b"Connection: keep-alive",
            b"Connection: upgrade",
            b"Connection: Upgrade, HTTP2-Settings",
            b"Connection: host",
            b"Upgrade: h2c",
            b"Upgrade: websocket",
            b"Upgrade: x",
            b"Upgrade: TLS/1.0",
            b"HTTP2-Settings: AAMAAABkAAQAAP__",
            b"Expect: 100-continue",
            b"Expect: x",
            b"X-Secret: no",
            b"Cookie: a=b",
            b"Cookie: ;;=;a",
            b"no colon",
            b": empty",
            b"A B: c",
            b"A\0: c",
            b"A: \0",
            b"A: \x01",
            b"A: \xff",
            b"A:\rB: c",
            b"=",
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            b"Sec-WebSocket-Version: 13",
            b"X-Forwarded-Host: secret.example",
            b"X-Original-URL: /secret",
            b"X-HTTP-Method-Override: PUT",
            b"Proxy-Connection: close",
        ],
    );
    let place = field_place(bytes, dice);
    let field = [text, b"\r\n"].concat();
    replace(bytes, place..place, &field);
}

/// The header that a rule refuses, in some spelling.
pub fn secret(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let text: &[u8] = one(
        dice,
        &[
            b"X-Secret: yes",
            b"x-secret: yes",
            b"X-SECRET:yes",
            b"X-Secret:\tyes",
            b"X-Secret: yes  ",
            b"X-Secret : yes",
            b" X-Secret: yes",
            b"X-Secret: yes\r",
            b"X-Secret: \x0byes",
            b"X-Secret: yes\x0c",
            b"X_Secret: yes",
            b"X-Secret: YES",
            b"X-Secret:\r\n yes",
            b"X-Secret: y\r\n es",
            b"X-Secret: yes\0",
            b"X-Secret\0: yes",
            b"X-Secret: no\r\nX-Secret: yes",
            b"X-Secret: yes\r\nX-Secret: no",
            b"X-Secret: yes, no",
            b"X-Secret: \r\n \r\n yes",
            b"X-Secret:\nX: y",
            b"X-Secret: \"yes\"",
        ],
    );
    let place = field_place(bytes, dice);
    let field = [text, b"\r\n"].concat();
    replace(bytes, place..place, &field);
}
