// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The request line, blanks and line ends.

use fief_testkit::Dice;

use super::{first_line, lines, one, replace};

pub fn method(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let line = first_line(bytes);
    let end = bytes[line.clone()].iter().position(|&byte| byte == b' ').unwrap_or(0);
    let long = [31, 32, 33, 63, 64, 65, 255, 256, 1000, 4000][dice.roll(10)];
    let word: Vec<u8> = match dice.roll(4) {
        0 => vec![b'A' + dice.roll(26) as u8; long],
        1 => {
            one(dice, &["get", "Get", "gET", "G", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"]).into()
        }
        2 => one(dice, &["CONNECT", "PRI", "PROPFIND", "M-SEARCH", "BREW", "QUERY", "a", "GETGET", "XGET"]).into(),
        _ => one(
            dice,
            &["G!T", "G~T", "G_T", "G.T", "G'T", "G(T", "G/T", "G@T", "G\"T", "G\x7fT", "G\0T", "G\tT", "", "\u{e9}"],
        )
        .into(),
    };
    replace(bytes, line.start..line.start + end, &word);
}

pub fn version(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let line = first_line(bytes);
    let begin = bytes[line.clone()].iter().rposition(|&byte| byte == b' ').map_or(line.end, |at| line.start + at + 1);
    let with = one(
        dice,
        &[
            "HTTP/1.0",
            "HTTP/1.1",
            "HTTP/1.2",
            "HTTP/1.9",
            "HTTP/0.9",
            "HTTP/0.0",
            "HTTP/2.0",
            "HTTP/2",
            "HTTP/3.0",
            "HTTP/9.9",
            "HTTP/01.1",
            "HTTP/1.01",
            "HTTP/1.10",
            "HTTP/11.1",
            "HTTP/1.",
            "HTTP/1",
            "HTTP/.1",
            "HTTP/",
            "HTTP",
            "",
            "http/1.1",
            "Http/1.1",
            "HTTP /1.1",
            "HTTP/ 1.1",
            "HTTP/1 .1",
            "HTTP/1.1 ",
            "HTTP/1.1\t",
            "HTTP/1.1 x",
            "HTTP/1.1x",
            "HTTP\\1.1",
            "HTTP/1,1",
            "HTTPS/1.1",
            "XHTTP/1.1",
            "SIP/2.0",
            "RTSP/1.0",
            "ICY/1.1",
            "HTTP/+1.1",
            "HTTP/1.-1",
            "HTTP/0001.0001",
            "HTTP/1.1\0",
            " HTTP/1.1",
            "\tHTTP/1.1",
            "x HTTP/1.1",
            "HTTP/1.1 HTTP/1.1",
            "HTTP/1.0\x0b",
        ],
    );
    replace(bytes, begin..line.end, with.as_bytes());
}

/// A byte that somebody takes for a blank, at the edge of a word.
pub fn blank(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let byte: &[u8] = one(
        dice,
        &[
            b" ",
            b"\t",
            b"  ",
            b" \t",
            b"\x0b",
            b"\x0c",
            b"\0",
            b"\r",
            b"\r\r",
            b"\x1c",
            b"\x1f",
            b"\x85",
            b"\xa0",
            b"\xc2\xa0",
        ],
    );
    let head = lines(bytes).last().map_or(bytes.len(), |line| line.end + 2).min(bytes.len());
    let is_edge = |at: usize| {
        let odd = |byte: u8| !byte.is_ascii_alphanumeric();
        at == 0 || odd(bytes[at]) || odd(bytes[at - 1])
    };
    let edges: Vec<usize> = (0..head).filter(|&at| is_edge(at)).collect();
    if edges.is_empty() {
        return;
    }
    let at = edges[dice.roll(edges.len())];
    let instead = usize::from(dice.roll(3) == 0 && matches!(bytes[at], b' ' | b'\t'));
    replace(bytes, at..at + instead, byte);
}

pub fn line_end(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let mut ends: Vec<usize> = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    ends.truncate(24);
    if ends.is_empty() {
        return;
    }
    let with: &[u8] = one(
        dice,
        &[
            b"\n",
            b"\r\r\n",
            b"\r",
            b"\r\r\r\n",
            b" \r\n",
            b"\t\r\n",
            b"\0\r\n",
            b"\r \n",
            b"\n\r",
            b"\x0b\r\n",
            b"\x0c\r\n",
            b"\n\r\n",
            b"\r\n\r\n",
            b"\r\0\n",
            b"\x85",
            b"",
        ],
    );
    let every = dice.roll(4) == 0;
    let chosen = ends[dice.roll(ends.len())];
    for &end in ends.iter().rev().filter(|&&end| every || end == chosen) {
        let begin = end - usize::from(end > 0 && bytes[end - 1] == b'\r');
        replace(bytes, begin..end + 1, with);
    }
}

/// Something before the first line.
pub fn before(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let count = [1, 2, 3, 16, 255, 1000, 4095, 8191, 8192, 16_384][dice.roll(10)];
    let unit: &[u8] =
        one(dice, &[b"\r\n", b"\n", b"\r", b"\r\n", b"\n", b" ", b"\t", b"\0", b" \r\n", b"\r\r\n", b"\x0b"]);
    let few = unit.len() == 1 && unit[0] != b'\n';
    let count = if few { count.min(3) } else { count };
    replace(bytes, 0..0, &unit.repeat(count));
}
