// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As much of HTTP as a scrape needs: one GET, one answer, and the connection ends. Heads are read by the crate httparse.
//!
//! A server of many connections with bodies, keep-alive and threads without end would be more than a scrape needs, and more than
//! a client who means ill should find in a process of root's.

use std::io::IoSlice;
use std::sync::Arc;

/// Bytes of a head, and lines in it.
pub(crate) const LONGEST_HEAD: usize = 8192;
const MOST_HEADERS: usize = 64;

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) path: String,
    /// JSON of what is asked, in a header of its own: of the pages that need it.
    pub(crate) question: Option<String>,
    /// The user who asks, if that is known.
    pub(crate) asker: Option<u32>,
    /// It takes OpenMetrics; otherwise it gets the older text format.
    pub(crate) takes_openmetrics: bool,
}

/// A request as far as its bytes have come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// Not all of it.
    Partial,
    Whole(Request),
    /// The status to answer with.
    Refused(Status),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Fine,
    Malformed,
    /// Of a browser that was sent here by a name that is not this machine's.
    ForeignHost,
    NotAllowed,
    NotFound,
    /// There is no answer to the question.
    Unanswerable,
    /// Another question is being answered, or was a moment ago.
    Busy,
    WrongMethod,
    TooLong,
    /// Reading what is in force failed.
    Failed,
    /// Nothing is in force.
    Nothing,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Fine => "200 OK",
            Self::Malformed => "400 Bad Request",
            Self::NotAllowed => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::WrongMethod => "405 Method Not Allowed",
            Self::Unanswerable => "422 Unprocessable Content",
            Self::Busy => "429 Too Many Requests",
            Self::ForeignHost => "421 Misdirected Request",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::Failed => "500 Internal Server Error",
            Self::Nothing => "503 Service Unavailable",
        }
    }

    /// Of the first line of an answer.
    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let all = [
            Self::Fine,
            Self::Malformed,
            Self::NotAllowed,
            Self::NotFound,
            Self::Unanswerable,
            Self::Busy,
            Self::TooLong,
            Self::Failed,
            Self::Nothing,
        ];
        let code = line.strip_prefix("HTTP/1.1 ")?.get(..3)?;
        all.into_iter().find(|status| status.line().starts_with(code))
    }
}

/// `is_local`: the client came by a loopback port, where a browser may be made to ask for any page.
pub(crate) fn read(head: &[u8], is_local: bool) -> Head {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if head.len() < LONGEST_HEAD => return Head::Partial,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Head::Refused(Status::TooLong),
        Err(_) => return Head::Refused(Status::Malformed),
    }
    if request.method != Some("GET") {
        return Head::Refused(Status::WrongMethod);
    }
    let values = |name: &'static str| {
        let named = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.filter_map(|header| std::str::from_utf8(header.value).ok())
    };
    if is_local && values("host").any(|host| !is_loopback(host)) {
        return Head::Refused(Status::ForeignHost);
    }
    let takes_openmetrics = values("accept").any(|accept| accept.contains("application/openmetrics-text"));
    let path = request.path.unwrap_or("/").split('?').next().unwrap_or("/").to_owned();
    let question = values("question").next().map(str::to_owned);
    Head::Whole(Request { path, question, asker: None, takes_openmetrics })
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// An answer. The bytes of its body may be those of other answers too.
#[derive(Debug)]
pub(crate) struct Answer {
    head: String,
    body: Arc<Vec<u8>>,
}

impl Answer {
    /// Its length is told, so that one that was cut off is not taken for a whole one.
    fn new(status: Status, kind: &str, body: Arc<Vec<u8>>) -> Self {
        let (line, length) = (status.line(), body.len());
        let head =
            format!("HTTP/1.1 {line}\r\nContent-Type: {kind}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        Self { head, body }
    }

    /// Bytes of the whole of it.
    pub(crate) fn length(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// The bytes that are still to be sent once so many are.
    pub(crate) fn rest(&self, sent: usize) -> [IoSlice<'_>; 2] {
        let of_head = sent.min(self.head.len());
        [IoSlice::new(&self.head.as_bytes()[of_head..]), IoSlice::new(&self.body[sent - of_head..])]
    }

    /// Bytes of memory that it keeps, if all who have its body keep as much.
    pub(crate) fn share(&self) -> usize {
        self.body.len() / Arc::strong_count(&self.body)
    }
}

/// An answer that is a page.
pub(crate) fn answer(kind: &str, page: Arc<Vec<u8>>) -> Answer {
    Answer::new(Status::Fine, kind, page)
}

/// An answer of one sentence.
pub(crate) fn refuse(status: Status, why: &str) -> Answer {
    Answer::new(status, "text/plain; charset=utf-8", Arc::new(format!("{why}\n").into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(head: &str) -> Request {
        match read(head.as_bytes(), true) {
            Head::Whole(request) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_head_is_whole_at_its_empty_line() {
        let head =
            "GET /metrics?a=b HTTP/1.1\r\nHost: localhost:9758\r\nAccept: application/openmetrics-text;q=0.8\r\n\r\n";
        for cut in 0..head.len() {
            assert_eq!(read(&head.as_bytes()[..cut], true), Head::Partial, "{cut}");
        }
        let request = whole(head);
        assert_eq!((request.path.as_str(), request.takes_openmetrics), ("/metrics", true));
        assert_eq!(request.question, None);
        let asked = whole("GET /client HTTP/1.0\r\nQUESTION: {\"from\":\"10.0.0.1\"}\r\n\r\n");
        assert_eq!(asked.question.as_deref(), Some("{\"from\":\"10.0.0.1\"}"));
        assert!(!whole("GET / HTTP/1.0\r\n\r\n").takes_openmetrics);
    }

    #[test]
    fn what_is_no_get_is_refused() {
        let refused = |head: &[u8]| match read(head, true) {
            Head::Refused(status) => status,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(b"POST /metrics HTTP/1.1\r\n\r\n"), Status::WrongMethod);
        assert_eq!(refused(b"\x16\x03\x01\x02\x00"), Status::Malformed);
        assert_eq!(refused(&[b'A'; LONGEST_HEAD]), Status::TooLong);
        let many: String = (0..MOST_HEADERS + 1).map(|number| format!("a{number}: b\r\n")).collect();
        assert_eq!(refused(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()), Status::TooLong);
    }

    #[test]
    fn a_browser_that_was_sent_here_by_another_name_reads_nothing() {
        let with = |host: &str, is_local| read(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes(), is_local);
        for host in
            ["evil.example", "evil.example:9758", "127.0.0.1.evil.example", "10.0.0.1:80", "[2001:db8::1]:80", ""]
        {
            assert_eq!(with(host, true), Head::Refused(Status::ForeignHost), "{host}");
        }
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:9758", "[::1]:9758", "127.9.9.9"] {
            assert!(matches!(with(host, true), Head::Whole(_)), "{host}");
        }
        assert!(matches!(with("fief", false), Head::Whole(_)), "no browser comes by a UNIX socket");
    }

    #[test]
    fn an_answer_that_was_cut_off_can_be_told() {
        let sent = after(&answer("text/plain", Arc::new(b"xyz".to_vec())), 0);
        assert!(sent.contains("\r\nContent-Length: 3\r\n") && sent.ends_with("\r\n\r\nxyz"), "{sent}");
        let sent = after(&refuse(Status::Busy, "later"), 0);
        assert!(sent.starts_with("HTTP/1.1 429 ") && sent.contains("\r\nContent-Length: 6\r\n"), "{sent}");
    }

    /// The rest of an answer as text.
    fn after(answer: &Answer, sent: usize) -> String {
        let [head, body] = answer.rest(sent);
        String::from_utf8([&*head, &*body].concat()).expect("text")
    }

    #[test]
    fn an_answer_goes_on_where_it_was_cut() {
        let answer = answer("text/plain", Arc::new(b"xyz".to_vec()));
        let whole = after(&answer, 0);
        assert_eq!(whole.len(), answer.length());
        for sent in 0..=whole.len() {
            assert_eq!(after(&answer, sent), whole[sent..]);
        }
    }
}
