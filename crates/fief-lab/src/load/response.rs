// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A response of HTTP/1 as it comes in: when it is whole, and what it says. Pure.

/// Knows when a response is whole: by its Content-Length, by its last chunk, or at the connection's end.
#[derive(Debug, Default)]
pub struct Response {
    head: Vec<u8>,
    rest: Rest,
}

/// The last chunk without trailers. Compressed data that ends a read like that by chance is one of 10^12.
const LAST_CHUNK: [u8; 5] = *b"0\r\n\r\n";

/// What is still to come.
#[derive(Debug, Default, PartialEq)]
enum Rest {
    #[default]
    Head,
    Bytes(usize),
    /// What came last, where the last chunk will stand.
    Chunks([u8; LAST_CHUNK.len()]),
    UntilEnd,
}

impl Response {
    /// Takes more bytes; whether the response is complete.
    pub fn take(&mut self, bytes: &[u8]) -> bool {
        self.rest = match self.rest {
            Rest::UntilEnd => Rest::UntilEnd,
            Rest::Bytes(missing) => Rest::Bytes(missing.saturating_sub(bytes.len())),
            Rest::Head => {
                self.head.extend_from_slice(bytes);
                let Some(end) = find(&self.head, b"\r\n\r\n") else {
                    return false;
                };
                let (head, body) = (&self.head[..end], &self.head[end + 4..]);
                match content_length(head) {
                    Some(length) => Rest::Bytes(length.saturating_sub(body.len())),
                    None if is_chunked(head) => Rest::Chunks(last([0; LAST_CHUNK.len()], body)),
                    None => Rest::UntilEnd,
                }
            }
            Rest::Chunks(before) => Rest::Chunks(last(before, bytes)),
        };
        matches!(self.rest, Rest::Bytes(0) | Rest::Chunks(LAST_CHUNK))
    }

    pub fn ends_here(&self) -> bool {
        self.rest == Rest::UntilEnd
    }

    /// Whether nothing can come behind it.
    pub fn closes(&self) -> bool {
        let line = |line: &[u8]| line.trim_ascii().eq_ignore_ascii_case(b"connection: close");
        self.ends_here() || self.head.split(|&byte| byte == b'\n').any(line)
    }

    /// Of `HTTP/1.1 200 OK`; 0 if it is none.
    pub fn status(&self) -> u16 {
        let word = self.head.split(|&byte| byte == b' ').nth(1).and_then(|word| std::str::from_utf8(word).ok());
        word.and_then(|word| word.get(..3)).and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// The last bytes of what came before and of these.
fn last(before: [u8; LAST_CHUNK.len()], bytes: &[u8]) -> [u8; LAST_CHUNK.len()] {
    let new = bytes.len().min(before.len());
    let mut all = before;
    all.rotate_left(new);
    all[before.len() - new..].copy_from_slice(&bytes[bytes.len() - new..]);
    all
}

fn is_chunked(head: &[u8]) -> bool {
    let line = |line: &[u8]| line.trim_ascii().eq_ignore_ascii_case(b"transfer-encoding: chunked");
    head.split(|&byte| byte == b'\n').any(line)
}

fn content_length(head: &[u8]) -> Option<usize> {
    head.split(|&byte| byte == b'\n').find_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        if !line[..colon].eq_ignore_ascii_case(b"content-length") {
            return None;
        }
        std::str::from_utf8(&line[colon + 1..]).ok()?.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_response_is_complete_with_its_last_byte_however_it_is_cut(length in 0usize..300, cut in 1usize..100) {
            let mut whole = format!("HTTP/1.1 200 OK\r\ncontent-Length: {length}\r\nX: y\r\n\r\n").into_bytes();
            whole.extend(std::iter::repeat_n(b'x', length));
            let mut response = Response::default();
            let mut taken = 0;
            for part in whole.chunks(cut) {
                taken += part.len();
                prop_assert_eq!(response.take(part), taken == whole.len());
            }
        }
    }

    proptest! {
        #[test]
        fn a_chunked_response_is_complete_with_its_last_chunk_however_it_is_cut(cut in 1usize..60, chunks in 0usize..4) {
            let mut whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            (0..chunks).for_each(|_| whole.extend(b"a\r\n0123456789\r\n"));
            whole.extend(LAST_CHUNK);
            let mut response = Response::default();
            let mut taken = 0;
            for part in whole.chunks(cut) {
                taken += part.len();
                prop_assert_eq!(response.take(part), taken == whole.len());
            }
            prop_assert!(!response.closes());
        }
    }

    #[test]
    fn a_response_without_a_length_is_complete_at_the_connections_end() {
        let mut response = Response::default();
        assert!(!response.take(b"HTTP/1.1 503 Busy\r\nServer: x\r\n"));
        assert!(!response.ends_here(), "the head is not whole");
        assert!(!response.take(b"\r\nhello") && !response.take(b" again"));
        assert!(response.ends_here());
        assert_eq!(response.status(), 503);
    }

    #[test]
    fn a_connection_is_kept_unless_the_response_ends_it() {
        for (head, closes) in [("Server: x", false), ("connection: Close", true), ("X: connection: close", false)] {
            let mut response = Response::default();
            assert!(response.take(format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{head}\r\n\r\n").as_bytes()));
            assert_eq!(response.closes(), closes, "{head}");
        }
    }
}
