// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which streams are requests as RFC 9112 has them, and which of those the policy of the stage allows: the strict
//! reading, for *refused wrongly* alone. Anything doubtful is not valid here.
//!
//! Left out besides what the grammar forbids: a head above 16 kB, which docs/policy.md excludes, a method with a small letter,
//! which docs/requests.md excludes, and CONNECT, Upgrade and Expect, of which the server's answer decides.

use crate::vector::Case;

const LONGEST_HEAD: usize = 16_384;

/// A request as it was read.
#[derive(Debug, Default)]
struct Request<'a> {
    target: &'a [u8],
    hosts: Vec<&'a [u8]>,
    /// Of an absolute target.
    authority: Option<&'a [u8]>,
    secret: Option<&'a [u8]>,
    /// With the chunks of a body in chunks.
    head: &'a [u8],
    chunked: bool,
    /// Empty for one in chunks, too: no server looks for a request in it, since the size of a chunk is none.
    body: &'a [u8],
}

/// Whether the stream consists of valid requests that the policy allows, and nothing else.
pub fn is_allowed(stream: &[u8]) -> bool {
    read_all(stream).is_some_and(|all| !all.is_empty() && !all.iter().any(Request::is_refused))
}

/// Whether every body in which a server may look for the next request is a valid one that the policy allows, if there are
/// some: then it is refused wrongly, however that server reads it.
pub fn holds_requests(stream: &[u8]) -> bool {
    let Some(all) = read_all(stream) else { return false };
    let mut bodies = all.iter().filter(|request| request.may_be_ignored()).map(|request| request.body);
    bodies.all(|body| is_allowed(body) && read_all(body).is_some_and(|all| all.len() == 1))
}

/// What other servers are asked: the requests that they may read otherwise, or all of them if there is none of these. Each by
/// itself: a server that ends the connection at one of them would not come to the next one.
pub fn doubtful(case: &Case) -> Vec<Case> {
    let all = read_all(&case.bytes).unwrap_or_default();
    let has_doubtful = all.iter().any(Request::is_doubtful);
    let asked = all.iter().filter(|request| !has_doubtful || request.is_doubtful());
    let mut cases: Vec<Case> = asked.map(|request| Case::whole(request.question())).collect();
    cases.dedup();
    cases
}

fn read_all(mut stream: &[u8]) -> Option<Vec<Request<'_>>> {
    let mut all = vec![];
    while !stream.is_empty() {
        let mut request = Request::default();
        let behind = request.read(stream)?;
        request.head = &stream[..stream.len() - behind.len() - request.body.len()];
        all.push(request);
        stream = behind;
    }
    Some(all)
}

impl<'a> Request<'a> {
    /// RFC 9112, 2.1: a start line, field lines, an empty line, a body. What is behind it; `None`: not valid.
    fn read(&mut self, stream: &'a [u8]) -> Option<&'a [u8]> {
        let (line, mut rest) = take_line(stream)?;
        let minor = self.request_line(line)?;
        let (mut length, mut chunked) = (None, false);
        loop {
            let (field, behind) = take_line(rest)?;
            rest = behind;
            if field.is_empty() {
                break;
            }
            let colon = field.iter().position(|&byte| byte == b':')?;
            let (name, value) = (&field[..colon], trimmed(&field[colon + 1..]));
            if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) || !value.iter().all(|&byte| is_value(byte))
            {
                return None;
            }
            match name.to_ascii_lowercase().as_slice() {
                b"host" => self.hosts.push(value),
                b"x-secret" if self.secret.is_none() => self.secret = Some(value),
                b"content-length" if length.is_none() && !chunked => length = Some(number(value)?),
                b"transfer-encoding" if length.is_none() && !chunked && minor == 1 => {
                    chunked = value.eq_ignore_ascii_case(b"chunked").then_some(true)?;
                }
                b"content-length" | b"transfer-encoding" | b"upgrade" | b"expect" | b"http2-settings" => return None,
                b"connection" if !value.iter().all(|&byte| is_token(byte) || b", \t".contains(&byte)) => return None,
                // The last request of a connection: what is behind it is nobody's.
                b"connection" if value.to_ascii_lowercase().windows(7).any(|word| word == b"upgrade") => return None,
                _ => {}
            }
        }
        // RFC 9112, 3.2
        let hosts = if minor == 0 { 0..=1 } else { 1..=1 };
        // RFC 9112, 3.2.2: a client says the same twice.
        if self.authority.is_some_and(|authority| self.hosts.iter().any(|host| !host.eq_ignore_ascii_case(authority))) {
            return None;
        }
        if !hosts.contains(&self.hosts.len()) || !self.hosts.iter().all(|host| is_host(host)) {
            return None;
        }
        if stream.len() - rest.len() > LONGEST_HEAD {
            return None;
        }
        self.chunked = chunked;
        if chunked {
            return chunks(rest);
        }
        let (body, behind) = rest.split_at_checked(length.unwrap_or(0))?;
        self.body = body;
        Some(behind)
    }

    /// RFC 9112, 3: the minor version.
    fn request_line(&mut self, line: &'a [u8]) -> Option<u8> {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let [method, target, version] = words[..] else { return None };
        let minor = match version {
            b"HTTP/1.0" => 0,
            b"HTTP/1.1" => 1,
            _ => return None,
        };
        let is_read = |&byte: &u8| is_token(byte) && !byte.is_ascii_lowercase();
        if method.is_empty() || !method.iter().all(is_read) || method == b"CONNECT" {
            return None;
        }
        self.target = target;
        let origin = match target.strip_prefix(b"http://".as_slice()) {
            None => target,
            Some(rest) => {
                let end = rest.iter().position(|byte| b"/?".contains(byte)).unwrap_or(rest.len());
                if end == 0 || !is_host(&rest[..end]) {
                    return None;
                }
                self.authority = Some(&rest[..end]);
                if rest[end..].starts_with(b"/") { &rest[end..] } else { return None }
            }
        };
        if target == b"*" {
            return (method == b"OPTIONS").then_some(minor);
        }
        (origin.starts_with(b"/") && is_path(origin)).then_some(minor)
    }

    /// The parts of it that mean something. Without the empty lines before what stands in its body: RFC 9112, 2.2, has a server ignore
    /// them before a request, and Python's, the one of ours that does not read such bodies, does not.
    fn question(&self) -> Vec<u8> {
        let body = &self.body[self.body.iter().take_while(|byte| b"\r\n".contains(byte)).count()..];
        // A client may send an empty line before the next request (RFC 9112, 2.2): then it ends a line of the body.
        let end: &[u8] = if body.is_empty() || body.ends_with(b"\n") { b"" } else { b"\r\n" };
        [self.essence().as_slice(), body, end].concat()
    }

    /// The head without its query, and without fields that do not matter; and without a body in chunks, at which a server that
    /// knows none would end, Python's.
    fn essence(&self) -> Vec<u8> {
        let mut rest = self.head;
        let mut essence = vec![];
        while let Some((line, behind)) = take_line(rest).filter(|(line, _)| !line.is_empty()) {
            let name = line.split(|&byte| byte == b':').next().unwrap_or_default().to_ascii_lowercase();
            let names = ["host", "x-secret", "connection", "content-length"];
            if essence.is_empty() {
                let end = line.iter().rposition(|&byte| byte == b' ').unwrap_or(line.len());
                let query = line.iter().position(|&byte| byte == b'?').unwrap_or(end);
                // The answer to HEAD does not show which resource it is of, and not every server takes any method.
                let begin = line.iter().position(|&byte| byte == b' ').unwrap_or(0);
                let is_plain = self.has_read_body() || self.target == b"*";
                let method = if is_plain { &line[..begin] } else { b"GET" };
                essence.extend([method, &line[begin..query.min(end)], &line[end..], b"\r\n"].concat());
            } else if names.iter().any(|one| one.as_bytes() == name) {
                let (written, value) = line.split_at(name.len());
                // To Python's server a blank behind "close" keeps the connection.
                let value = if name == b"connection" { &value[1..] } else { trimmed(&value[1..]) };
                essence.extend([written, b": ", value, b"\r\n"].concat());
            }
            rest = behind;
        }
        essence.extend(if self.chunked { b"\r\n" } else { rest });
        essence
    }

    fn is_doubtful(&self) -> bool {
        let is_list = self.hosts.iter().chain(&self.authority).any(|host| host.contains(&b','));
        let has_dots = self.target.contains(&b'.') || self.target.contains(&b'%');
        self.may_be_ignored() || is_list || has_dots
    }

    fn may_be_ignored(&self) -> bool {
        !self.body.is_empty() && !self.has_read_body()
    }

    /// Of a method whose body every server reads.
    fn has_read_body(&self) -> bool {
        let method = self.head.split(|&byte| byte == b' ').next().unwrap_or_default();
        [&b"POST"[..], b"PUT", b"PATCH"].contains(&method)
    }

    /// docs/policy.md: values are compared in one form.
    fn is_refused(&self) -> bool {
        let path = match self.target.strip_prefix(b"http://".as_slice()) {
            None => self.target,
            Some(rest) => &rest[rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len())..],
        };
        resolved(path).starts_with(b"/secret")
            || self.hosts.iter().chain(&self.authority).any(|host| is_secret_host(host))
            || self.secret == Some(b"yes")
    }
}

fn take_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], &bytes[end + 2..]))
}

fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// RFC 9110, 5.5.
fn is_value(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x21..=0x7e | 0x80..)
}

fn number(value: &[u8]) -> Option<usize> {
    if value.is_empty() || value.len() > 9 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// RFC 3986, 3.2.2 and 3.2.3, but for IP literals.
fn is_host(host: &[u8]) -> bool {
    let mut parts = host.splitn(2, |&byte| byte == b':');
    let name = parts.next().unwrap_or_default();
    let port = parts.next().unwrap_or_default();
    !name.is_empty()
        && name.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte))
        && port.iter().all(u8::is_ascii_digit)
}

/// RFC 3986, 3.3 and 3.4.
fn is_path(path: &[u8]) -> bool {
    let mut at = 0;
    let mut query = false;
    while at < path.len() {
        match path[at] {
            b'%' => {
                if !path.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    return false;
                }
                at += 2;
            }
            b'?' => query = true,
            b'/' => {}
            byte if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte) => {}
            _ => return false,
        }
        at += 1;
    }
    let _ = query;
    true
}

/// RFC 9112, 7.1: what is behind the chunks.
fn chunks(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        let (line, behind) = take_line(rest)?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let extension = &line[digits..];
        if !(1..=7).contains(&digits) || !(extension.is_empty() || is_extension(extension)) {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(&line[..digits]).ok()?, 16).ok()?;
        rest = behind;
        if size == 0 {
            break;
        }
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
    loop {
        let (line, behind) = take_line(rest)?;
        rest = behind;
        if line.is_empty() {
            return Some(rest);
        }
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = line[..colon].to_ascii_lowercase();
        // Nobody may send what frames or routes in a trailer (RFC 9110, 6.5.1).
        if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) || name == b"host" {
            return None;
        }
        if !line[colon + 1..].iter().all(|&byte| is_value(byte)) {
            return None;
        }
    }
}

/// `;name=token` without blanks.
fn is_extension(text: &[u8]) -> bool {
    text[0] == b';' && text.len() > 1 && text[1..].iter().all(|&byte| is_token(byte) || b";=".contains(&byte)) && {
        text[1..].split(|&byte| byte == b';').all(|one| {
            let mut parts = one.split(|&byte| byte == b'=');
            parts.clone().count() <= 2 && parts.all(|part| !part.is_empty())
        })
    }
}

fn is_secret_host(host: &[u8]) -> bool {
    let name = host.split(|&byte| byte == b':').next().unwrap_or_default();
    let name = name.strip_suffix(b".").unwrap_or(name);
    name.eq_ignore_ascii_case(b"secret.example")
}

/// The path without its query, decoded once, `//`, `.` and `..` resolved.
fn resolved(path: &[u8]) -> Vec<u8> {
    let path = path.split(|&byte| byte == b'?').next().unwrap_or_default();
    let mut decoded = vec![];
    let mut at = 0;
    while at < path.len() {
        let code = path.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if path[at] == b'%' => {
                decoded.push(byte);
                at += 3;
            }
            _ => {
                decoded.push(path[at]);
                at += 1;
            }
        }
    }
    let mut segments: Vec<&[u8]> = vec![];
    for segment in decoded.split(|&byte| byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    [b"/", segments.join(&b'/').as_slice()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::seeds;

    /// As RFC 9112 has it; some server reads the refused resource in them.
    const ALLOWED: [&str; 13] = [
        "ignored-body",
        "ignored-method",
        "ignored-piece",
        "ignored-half",
        "ignored-second",
        "ignored-close-blank",
        "ignored-close-tab",
        "ignored-signed",
        "unresolved",
        "unresolved-encoded",
        "unresolved-behind",
        "host-list",
        "host-list-last",
    ];

    #[test]
    fn the_plain_seeds_are_valid_and_no_other_one_is() {
        for seed in seeds() {
            let expected = seed.name.starts_with("plain") || ALLOWED.contains(&seed.name.as_str());
            assert_eq!(is_allowed(&seed.case.bytes), expected, "{}", seed.name);
        }
    }

    fn asked(stream: String) -> Vec<String> {
        doubtful(&Case::whole(stream)).into_iter().map(|case| String::from_utf8(case.bytes).unwrap()).collect()
    }

    #[test]
    fn each_request_in_doubt_is_asked_by_itself() {
        let [encoded, dots] =
            ["/%70lain", "/%73ecret/.."].map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let plain = "GET /plain HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(asked(format!("{encoded}{encoded}{plain}{dots}")), [encoded, dots]);
        assert_eq!(asked(plain.repeat(3)), [plain], "all of them where none is in doubt");
        assert_eq!(asked("GET /plain\r\n".into()), [""; 0]);
    }

    #[test]
    fn a_server_that_knows_no_chunks_is_asked_without_them() {
        let head = "POST /pla%20in HTTP/1.1\r\nHost: plain.example\r\n";
        let ignored = "GET /plain HTTP/1.1\r\nHost: plain.example\r\nContent-Length: 5\r\n\r\nGET /";
        let stream = format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n{ignored}");
        assert_eq!(asked(stream), [format!("{head}\r\n"), format!("{ignored}\r\n")]);
    }

    #[test]
    fn what_the_grammar_or_the_door_forbids_is_not_valid() {
        for head in [
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "get / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
            "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /# HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\r",
        ] {
            assert!(!is_allowed(head.as_bytes()), "{head:?}");
        }
    }
}
