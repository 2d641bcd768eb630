// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What request rules look at, read from what a client sends; `bpf/front/header.bpf.h` is its twin in the kernel.
//!
//! What RFC 9112 allows is read as every server reads it, and so is what servers take beyond that if all that take it
//! agree. About all else they differ: it is unread, and so is what is no HTTP/1 at all; what could be read of it is said
//! all the same. Limits: the first header and the first cookie of a name count, but for Host, of which there is one.

use serde::Serialize;

use crate::heads::{Head, Line, without_returns};
use crate::normal;
use crate::pattern::is_token;

/// Bytes of a head that are looked at; `FIEF_HEADER_MAX`.
pub(crate) const LONGEST_HEAD: usize = 16_384;
/// Of a header or cookie.
const LONGEST_NAME: usize = 255;
/// Protocols of a ClientHello.
const MOST_PROTOCOLS: usize = 8;

/// A request of HTTP/1, or a ClientHello, as far as rules look at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    pub is_tls: bool,
    pub method: Option<Vec<u8>>,
    /// In the form in which it is compared.
    pub path: Option<Vec<u8>>,
    /// The path as a server has it that resolves nothing, if that is another one.
    pub unresolved_path: Option<Vec<u8>>,
    pub host: Option<Vec<u8>>,
    /// Names in lower case, in the order of the request.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub cookies: Vec<(Vec<u8>, Vec<u8>)>,
    pub server_name: Option<Vec<u8>>,
    pub alpn: Vec<Vec<u8>>,
    /// Why it could not be read to its end; the fields are what could be read.
    pub unread: Option<Unread>,
    /// What was sent ends within the head; if more is to follow, it is not known yet what it is.
    pub is_unfinished: bool,
    /// Of a head that could be read: its bytes, up to the body.
    pub head: usize,
    pub body: Body,
    /// It asks for another protocol, or is CONNECT.
    pub is_upgrade: bool,
}

/// Kinds of what cannot be read: `enum fief_unread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unread {
    /// A head about which servers differ, or that ends before its end.
    Malformed,
    /// No end of the head within what is looked at.
    TooLong,
    /// What follows a request to change the protocol.
    Upgrade,
    /// HTTP/2 without TLS.
    Http2,
    /// A head of the PROXY protocol.
    Proxy,
    /// It gave way to others before its end.
    NoRoom,
    /// Neither HTTP nor TLS.
    Other,
}

/// How long the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Length(u64),
    Chunked,
}

impl Default for Body {
    fn default() -> Self {
        Self::Length(0)
    }
}

impl Fields {
    /// The head of an HTTP request. A text that ends before its empty line is one whose client sends no more.
    pub fn of_http(text: &[u8]) -> Self {
        let shown = &text[..text.len().min(LONGEST_HEAD)];
        let mut reading = Reading { shown, ..Reading::default() };
        match reading.head() {
            Ok(head) => {
                reading.fields.head = head;
                reading.fields.unread = reading.is_odd.then_some(Unread::Malformed);
            }
            Err(End::Unread(kind)) => reading.fields.unread = Some(kind),
            Err(End::Lacking) if shown.len() == LONGEST_HEAD => reading.fields.unread = Some(Unread::TooLong),
            Err(End::Lacking) => {
                reading.fields.unread = Some(Unread::Malformed);
                reading.fields.is_unfinished = true;
            }
        }
        reading.fields
    }

    /// The names that a TLS client asks for in the clear.
    pub fn of_tls(server_name: Option<&str>, alpn: &[&str]) -> Self {
        Self {
            is_tls: true,
            server_name: server_name.and_then(|name| normal::server_name(name.as_bytes())),
            alpn: alpn.iter().take(MOST_PROTOCOLS).map(|protocol| protocol.as_bytes().to_vec()).collect(),
            ..Self::default()
        }
    }
}

impl Fields {
    /// What servers may take the request for: the path is resolved or not, and a host with commas is one or a list of them.
    /// Each differs from the others; the first one is what nearly all servers read, and the one that there always is.
    pub fn readings(&self) -> Vec<Self> {
        let hosts =
            self.host.iter().filter(|host| host.contains(&b',')).flat_map(|host| host.split(|&byte| byte == b','));
        let hosts = hosts.map(|host| host.strip_suffix(b".").unwrap_or(host).to_vec());
        let hosts: Vec<_> = std::iter::once(self.host.clone()).chain(hosts.map(Some)).collect();
        let paths = std::iter::once(self.path.clone()).chain(self.unresolved_path.clone().map(Some));
        let both = paths.flat_map(|path| hosts.iter().map(move |host| (path.clone(), host.clone())));
        both.map(|(path, host)| Self { path, host, ..self.clone() }).collect()
    }
}

/// Why reading ends before the head does.
enum End {
    Unread(Unread),
    Lacking,
}

/// What is known while a head is read.
#[derive(Default)]
struct Reading<'t> {
    shown: &'t [u8],
    fields: Fields,
    /// Servers differ about what was read so far.
    is_odd: bool,
    /// The version knows chunked bodies.
    has_chunks: bool,
    /// Of an absolute target; it may be none that can be compared.
    authority: Option<Option<Vec<u8>>>,
    hosts: u32,
    lengths: u32,
    codings: u32,
}

impl Reading<'_> {
    /// Its length.
    fn head(&mut self) -> Result<usize, End> {
        let mut head = Head::new(self.shown);
        let start = head.skip_empty();
        self.is_odd |= head.is_odd;
        let Some(&first) = self.shown.get(start) else {
            return Err(End::Lacking);
        };
        if first == 0 && start == 4 && self.shown.starts_with(b"\r\n\r\n") {
            return Err(End::Unread(Unread::Proxy));
        }
        if !is_token(first) && !is_blank(first) {
            return Err(End::Unread(Unread::Other));
        }
        let Line { text, is_whole } = head.line();
        self.is_odd |= head.is_odd;
        let read = self.request_line(without_returns(text));
        if !is_whole {
            return Err(End::Lacking);
        }
        read.map_err(End::Unread)?;
        while let Some(lines) = head.folded() {
            self.is_odd |= head.is_odd;
            if lines.is_empty() {
                self.end();
                return Ok(head.at);
            }
            self.header(lines);
        }
        Err(End::Lacking)
    }

    fn end(&mut self) {
        let fields = &mut self.fields;
        let has_body = self.codings > 0 || fields.body != Body::default();
        if self.codings > 0 {
            self.is_odd |= self.lengths > 0 || !self.has_chunks;
            fields.body = Body::Chunked;
        }
        self.is_odd |= has_body && fields.method.as_deref() == Some(b"CONNECT");
    }

    fn request_line(&mut self, line: &[u8]) -> Result<(), Unread> {
        let (blank, line) = at_word(line);
        let (method, rest) = at_gap(line);
        let (gap, rest) = at_word(rest);
        if rest.is_empty() {
            return Err(Unread::Other);
        }
        self.is_odd |= !blank.is_empty() || gap.iter().any(|&byte| byte != b' ');
        self.is_odd |= method.is_empty() || !method.iter().all(|&byte| is_token(byte));
        // Some server takes it for that in capitals.
        self.is_odd |= method.iter().any(u8::is_ascii_lowercase);
        self.fields.method = Some(method.to_vec());
        let (target, rest) = at_gap(rest);
        if method == b"PROXY" && b"TU".contains(&target[0]) {
            return Err(Unread::Proxy);
        }
        self.fields.is_upgrade = method == b"CONNECT";
        let target_read = normal::target(target, method);
        self.is_odd |= target_read.is_odd;
        self.fields.path = Some(target_read.path);
        self.fields.unresolved_path = target_read.unresolved;
        self.fields.host = target_read.authority.clone().flatten();
        self.authority = target_read.authority;
        let (gap, version) = at_word(rest);
        self.is_odd |= gap.iter().any(|&byte| byte != b' ');
        // To lighttpd a second blank is of the target, whose last segment is another one then.
        self.is_odd |= gap.len() > 1 && !version.is_empty();
        if method == b"PRI" && target[0] == b'*' && version == b"HTTP/2.0" {
            return Err(Unread::Http2);
        }
        // Where words are parted at spaces alone it is of the target, and the line is answered at its end (HTTP/0.9).
        if gap.last() != Some(&b' ') {
            return Err(Unread::Malformed);
        }
        self.version(version)
    }

    fn version(&mut self, version: &[u8]) -> Result<(), Unread> {
        let number = version.strip_prefix(b"HTTP/").ok_or(Unread::Malformed)?;
        match number {
            [b'1', b'.', minor @ b'0'..=b'9', rest @ ..] => {
                self.has_chunks = *minor > b'0';
                self.is_odd |= rest.iter().any(|&byte| byte != b' ');
            }
            _ => self.is_odd = true,
        }
        Ok(())
    }

    fn header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            self.is_odd = true;
            return;
        };
        self.is_odd |= colon == 0 || !line[..colon].iter().all(|&byte| is_token(byte));
        let name = trimmed_end(&line[..colon]).to_ascii_lowercase();
        let rest = &line[colon + 1..];
        let start = rest.iter().position(|byte| !b" \t\r\n".contains(byte)).unwrap_or(rest.len());
        let value = trimmed_end(&rest[start..]);
        match name.as_slice() {
            b"host" => self.host(value),
            b"cookie" => value.split(|&byte| byte == b';').for_each(|pair| self.cookie(pair)),
            b"upgrade" => self.fields.is_upgrade = true,
            b"content-length" => self.content_length(value),
            b"transfer-encoding" => {
                self.is_odd |= self.codings > 0 || !value.eq_ignore_ascii_case(b"chunked");
                self.codings += 1;
            }
            _ => {}
        }
        keep_first(&mut self.fields.headers, name, value);
    }

    fn host(&mut self, value: &[u8]) {
        let host = normal::host(value);
        self.is_odd |= host.is_odd;
        let is_first = self.hosts == 0 && self.authority.is_none();
        self.is_odd |= self.hosts > 0 || (!is_first && host.name != self.fields.host);
        if is_first {
            self.fields.host = host.name;
        }
        self.hosts += 1;
    }

    /// One number in digits; about all else servers differ.
    fn content_length(&mut self, value: &[u8]) {
        let is_number = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
        self.is_odd |= !is_number || self.lengths > 0;
        let digits = value.iter().take_while(|byte| byte.is_ascii_digit());
        let length = digits.fold(0_u64, |sum, byte| sum.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')));
        self.fields.body = Body::Length(length);
        self.lengths += 1;
    }

    fn cookie(&mut self, pair: &[u8]) {
        if let Some(equals) = pair.iter().position(|&byte| byte == b'=') {
            keep_first(&mut self.fields.cookies, trimmed(&pair[..equals]).to_vec(), trimmed(&pair[equals + 1..]));
        }
    }
}

fn keep_first(pairs: &mut Vec<(Vec<u8>, Vec<u8>)>, name: Vec<u8>, value: &[u8]) {
    if name.len() <= LONGEST_NAME && !pairs.iter().any(|(other, _)| *other == name) {
        pairs.push((name, value.to_vec()));
    }
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// What some server takes for a blank; Python's takes all of these.
fn is_gap(byte: u8) -> bool {
    byte <= b' ' || byte == 0x85 || byte == 0xa0
}

fn at_gap(line: &[u8]) -> (&[u8], &[u8]) {
    line.split_at(line.iter().position(|&byte| is_gap(byte)).unwrap_or(line.len()))
}

fn at_word(line: &[u8]) -> (&[u8], &[u8]) {
    line.split_at(line.iter().position(|&byte| !is_gap(byte)).unwrap_or(line.len()))
}

fn trimmed_end(text: &[u8]) -> &[u8] {
    &text[..text.iter().rposition(|&byte| !is_blank(byte)).map_or(0, |last| last + 1)]
}

fn trimmed(text: &[u8]) -> &[u8] {
    trimmed_end(&text[text.iter().position(|&byte| !is_blank(byte)).unwrap_or(text.len())..])
}
