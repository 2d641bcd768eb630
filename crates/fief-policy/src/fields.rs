// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What request rules look at, read from what a client sends; `bpf/front/header.bpf.h` is its twin in the kernel.
//!
//! Where servers are tolerant, so is this: empty lines first, LF without CR, several blanks, a request line without a
//! version. Limits: a folded line is not joined to the one before it; the first header and the first cookie of a name
//! count.

use crate::normal;
use crate::pattern::is_token;

/// Bytes of a head that are looked at; `FIEF_HEADER_MAX`.
const LONGEST_HEAD: usize = 16_384;
const LONGEST_METHOD: usize = 32;
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
    pub host: Option<Vec<u8>>,
    /// Names in lower case, in the order of the request.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub cookies: Vec<(Vec<u8>, Vec<u8>)>,
    pub server_name: Option<Vec<u8>>,
    pub alpn: Vec<Vec<u8>>,
    /// The head does not end within what is looked at; these are its whole lines.
    pub is_cut: bool,
}

/// What a client sent is neither HTTP/1 nor TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Fields {
    /// The head of an HTTP request. A text that ends before the empty line is taken as if the rest were to follow now.
    pub fn of_http(text: &[u8]) -> Result<Self, Malformed> {
        let shown = &text[..text.len().min(LONGEST_HEAD)];
        let is_whole = text.len() < LONGEST_HEAD;
        let Some(start) = shown.iter().position(|byte| !b"\r\n".contains(byte)) else {
            return if is_whole { Err(Malformed) } else { Ok(Self { is_cut: true, ..Self::default() }) };
        };
        let mut lines = shown[start..].split(|&byte| byte == b'\n').peekable();
        let mut fields = Self::default();
        let line = lines.next().unwrap_or_default();
        let is_cut = |is_last: bool| is_last && !is_whole;
        if is_cut(lines.peek().is_none()) {
            return Ok(Self { is_cut: true, ..fields });
        }
        let RequestLine { has_headers, mut has_host } = fields.request_line(without_cr(line))?;
        if !has_headers {
            return Ok(fields);
        }
        while let Some(line) = lines.next() {
            if is_cut(lines.peek().is_none()) {
                fields.is_cut = true;
                break;
            }
            let line = without_cr(line);
            if line.is_empty() {
                break;
            }
            fields.header(line, &mut has_host);
        }
        Ok(fields)
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

    fn request_line(&mut self, line: &[u8]) -> Result<RequestLine, Malformed> {
        let (method, rest) = at_blank(line);
        let is_method = (1..=LONGEST_METHOD).contains(&method.len()) && method.iter().all(|&byte| is_token(byte));
        if !is_method || rest.is_empty() {
            return Err(Malformed);
        }
        let (target, rest) = at_blank(trimmed_start(rest));
        let target = normal::target(target, method == b"CONNECT").ok_or(Malformed)?;
        let version = trimmed_start(rest);
        if !version.is_empty() && !version.starts_with(b"HTTP/1.") {
            return Err(Malformed);
        }
        self.method = Some(method.to_vec());
        self.path = Some(target.path);
        let has_host = target.authority.is_some();
        self.host = target.authority.flatten();
        Ok(RequestLine { has_headers: !version.is_empty(), has_host })
    }

    fn header(&mut self, line: &[u8], has_host: &mut bool) {
        // A folded line goes on with the value of the one before it.
        if line.first().is_some_and(|&byte| is_blank(byte)) {
            return;
        }
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            return;
        };
        let (name, value) = (line[..colon].to_ascii_lowercase(), trimmed(&line[colon + 1..]));
        match name.as_slice() {
            b"host" if !std::mem::replace(has_host, true) => self.host = normal::host(value),
            b"cookie" => value.split(|&byte| byte == b';').for_each(|pair| self.cookie(pair)),
            _ => {}
        }
        keep_first(&mut self.headers, name, value);
    }

    fn cookie(&mut self, pair: &[u8]) {
        if let Some(equals) = pair.iter().position(|&byte| byte == b'=') {
            keep_first(&mut self.cookies, trimmed(&pair[..equals]).to_vec(), trimmed(&pair[equals + 1..]));
        }
    }
}

struct RequestLine {
    /// HTTP/0.9 has no version and no headers.
    has_headers: bool,
    /// An absolute target says the host, and the header does not count (RFC 9112, section 3.2.2).
    has_host: bool,
}

fn keep_first(pairs: &mut Vec<(Vec<u8>, Vec<u8>)>, name: Vec<u8>, value: &[u8]) {
    if name.len() <= LONGEST_NAME && !pairs.iter().any(|(other, _)| *other == name) {
        pairs.push((name, value.to_vec()));
    }
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn at_blank(line: &[u8]) -> (&[u8], &[u8]) {
    line.split_at(line.iter().position(|&byte| is_blank(byte)).unwrap_or(line.len()))
}

fn trimmed_start(text: &[u8]) -> &[u8] {
    &text[text.iter().position(|&byte| !is_blank(byte)).unwrap_or(text.len())..]
}

fn trimmed(text: &[u8]) -> &[u8] {
    let text = trimmed_start(text);
    &text[..text.iter().rposition(|&byte| !is_blank(byte)).map_or(0, |last| last + 1)]
}
