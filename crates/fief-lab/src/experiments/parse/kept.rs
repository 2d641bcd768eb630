// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the program keeps of a client's bytes until it is whole: the head that begins a connection, and what else there is.
//! Each is almost as long as it may be, and is sent in segments of a byte.

use super::head::{LENGTH, head};
use super::{BALANCED_PORT, PORT};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The head that begins a connection.
    First,
    /// The same behind the PROXY head of a balancer.
    BehindProxy,
    /// That of a later request, on a socket.
    Later,
    /// The line of a chunk's size, with an extension.
    Chunk,
    Trailer,
    /// The body of a GET, which some servers take for the next request. Its lines are short.
    Inside,
}

/// What a client sends, and where to.
#[derive(Clone, Debug)]
pub struct Stream {
    pub port: u16,
    /// In one segment.
    pub before: Vec<u8>,
    /// In segments of a byte, of which the last one ends it.
    pub bytes: Vec<u8>,
    /// In one segment, upon which the server closes the connection; nothing where it does so before.
    pub behind: Vec<u8>,
}

const PROXY: &str = "PROXY TCP4 192.0.2.1 198.51.100.1 56324 80\r\n";
const ASKS: &str = "GET /1k HTTP/1.1\r\nHost: server\r\n";
const CHUNKED: &str = "Transfer-Encoding: chunked\r\n\r\n";
const LAST: &str = "GET /1k HTTP/1.0\r\n\r\n";

impl Kept {
    /// Those beside the first.
    pub const OTHERS: [Kept; 5] = [Kept::BehindProxy, Kept::Later, Kept::Chunk, Kept::Trailer, Kept::Inside];

    /// In the name of its figure.
    pub fn name(self) -> &'static str {
        match self {
            Kept::First => "first_head",
            Kept::BehindProxy => "behind_proxy",
            Kept::Later => "later_head",
            Kept::Chunk => "chunk_line",
            Kept::Trailer => "trailer",
            Kept::Inside => "inside_body",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Kept::First => "the head of a first request",
            Kept::BehindProxy => "the same behind a PROXY head",
            Kept::Later => "the head of a later request",
            Kept::Chunk => "a line of chunks",
            Kept::Trailer => "a trailer",
            Kept::Inside => "a body that may be a request",
        }
    }

    pub fn stream(self) -> Stream {
        let stream = |before: String, bytes: Vec<u8>, behind: String| Stream {
            port: if self == Kept::BehindProxy { BALANCED_PORT } else { PORT },
            before: before.into_bytes(),
            bytes,
            behind: behind.into_bytes(),
        };
        match self {
            Kept::First => stream(String::new(), head(LENGTH), String::new()),
            Kept::BehindProxy => stream(PROXY.to_owned(), head(LENGTH - PROXY.len()), String::new()),
            Kept::Later => stream(format!("{ASKS}\r\n"), head(LENGTH), String::new()),
            Kept::Chunk => stream(format!("{ASKS}{CHUNKED}"), line("5;name="), format!("hello\r\n0\r\n\r\n{LAST}")),
            Kept::Trailer => {
                stream(format!("{ASKS}{CHUNKED}5\r\nhello\r\n0\r\n"), line("Trailer: "), format!("\r\n{LAST}"))
            }
            Kept::Inside => {
                let body = body();
                stream(format!("{ASKS}Content-Length: {}\r\n\r\n", body.len()), body, LAST.to_owned())
            }
        }
    }
}

/// One line that begins so.
fn line(begin: &str) -> Vec<u8> {
    let mut line = begin.as_bytes().to_vec();
    line.resize(LENGTH - 2, b'a');
    line.extend(b"\r\n");
    line
}

/// A request that is whole with its last byte.
fn body() -> Vec<u8> {
    const SHORT: &[u8] = b"X: y\r\n";
    let begin = format!("{ASKS}Content-Length: 0\r\n").into_bytes();
    let lines = (LENGTH - begin.len() - 2) / SHORT.len();
    [begin, SHORT.repeat(lines), b"\r\n".to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_length_and_ends_with_its_last_byte() {
        for kept in [Kept::First].into_iter().chain(Kept::OTHERS) {
            let Stream { bytes, before, .. } = kept.stream();
            let room = LENGTH - if kept == Kept::BehindProxy { before.len() } else { 0 };
            assert!(bytes.len() <= room && bytes.len() + 40 > room, "{kept:?}: {}", bytes.len());
            let end: &[u8] = if matches!(kept, Kept::Chunk | Kept::Trailer) { b"\r\n" } else { b"\r\n\r\n" };
            let first = bytes.windows(end.len()).position(|window| window == end);
            assert_eq!(first, Some(bytes.len() - end.len()), "{kept:?}");
        }
    }
}
