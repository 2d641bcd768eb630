// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one form in which paths and hosts are compared; `bpf/front/normal.bpf.h` is its twin in the kernel.
//!
//! ```text
//! /cgi-bin//./x?q    /%63gi-bin/x    /img/../cgi-bin/x    http://host/cgi-bin/x     all of them: /cgi-bin/x
//! ```

/// What a request's target says: a path, and with an absolute target a host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) path: Vec<u8>,
    /// The target has an authority, which is what counts instead of the header; it may be none that can be compared.
    pub(crate) authority: Option<Option<Vec<u8>>>,
}

/// Longest host or server name; a longer one is none.
const LONGEST_NAME: usize = 255;

/// None: it is no target of a request.
pub(crate) fn target(target: &[u8], is_connect: bool) -> Option<Target> {
    if target.starts_with(b"/") {
        return Some(Target { path: path(target), authority: None });
    }
    if (is_connect && !target.is_empty()) || target == b"*" {
        return Some(Target { path: target.to_vec(), authority: None });
    }
    let colon = target.iter().position(|&byte| byte == b':').filter(|&at| at > 0)?;
    // The first slash of all stands right behind the colon.
    if target[..colon].contains(&b'/') {
        return None;
    }
    let rest = target[colon + 1..].strip_prefix(b"//")?;
    let end = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let after_user = authority.iter().rposition(|&byte| byte == b'@').map_or(0, |at| at + 1);
    Some(Target { path: path(rest), authority: Some(host(&authority[after_user..])) })
}

/// Without the query, decoded once, double slashes merged, `.` and `..` resolved (RFC 3986, section 5.2.4).
fn path(target: &[u8]) -> Vec<u8> {
    let end = target.iter().position(|byte| b"?#".contains(byte)).unwrap_or(target.len());
    let decoded = decoded(&target[..end]);
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut all = decoded.split(|&byte| byte == b'/').peekable();
    while let Some(segment) = all.next() {
        let is_last = all.peek().is_none();
        match segment {
            b".." => drop(segments.pop()),
            b"" | b"." => {}
            _ => {
                segments.push(segment);
                continue;
            }
        }
        // What ends with a slash, or with a segment that was resolved, is a folder.
        if is_last {
            segments.push(b"");
        }
    }
    let mut path = Vec::with_capacity(decoded.len() + 1);
    for segment in segments {
        path.push(b'/');
        path.extend_from_slice(segment);
    }
    path
}

/// With its %XX decoded, once.
pub(crate) fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match (text[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// Lower case, without the port and a last dot. None: nothing is left, or too much.
pub(crate) fn host(text: &[u8]) -> Option<Vec<u8>> {
    let end = if text.starts_with(b"[") {
        text.iter().position(|&byte| byte == b']').map(|at| at + 1)
    } else {
        text.iter().position(|&byte| byte == b':')
    };
    server_name(&text[..end.unwrap_or(text.len())])
}

/// Lower case, without a last dot.
pub(crate) fn server_name(text: &[u8]) -> Option<Vec<u8>> {
    let name = text.strip_suffix(b".").unwrap_or(text);
    (1..=LONGEST_NAME).contains(&name.len()).then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn path_of(text: &str) -> String {
        let found = target(text.as_bytes(), false).unwrap_or_else(|| panic!("{text} is a target"));
        String::from_utf8_lossy(&found.path).into_owned()
    }

    #[test]
    fn every_way_to_write_a_path_is_one_path() {
        for written in [
            "/cgi-bin/x",
            "/cgi-bin/x?q=/../a",
            "/cgi-bin/x#part",
            "//cgi-bin///x",
            "/%63gi-bin/x",
            "/%63%67i%2Dbin%2fx",
            "/img/../cgi-bin/x",
            "/../../cgi-bin/./x",
            "/cgi-bin/a/b/../../x",
            "/img/%2e%2E/cgi-bin/x",
            "http://shop.example/cgi-bin/x",
            "HTTPS://user@shop.example:8080//cgi-bin/x?q",
        ] {
            assert_eq!(path_of(written), "/cgi-bin/x", "{written}");
        }
    }

    #[test]
    fn folders_keep_their_slash() {
        for (written, path) in [
            ("/", "/"),
            ("/a/", "/a/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a/..", "/"),
            ("/..", "/"),
            ("/.", "/"),
            ("/a//", "/a/"),
            ("/a/b/../", "/a/"),
            ("http://h", "/"),
            ("http://h?q", "/"),
        ] {
            assert_eq!(path_of(written), path, "{written}");
        }
    }

    #[test]
    fn what_is_no_escape_and_no_dot_segment_stays() {
        for path in ["/100%", "/a%2", "/a%zz", "/...", "/.git", "/a..b", "/;v=1/x", "/a+b", "/A"] {
            assert_eq!(path_of(path), path);
        }
        assert_eq!(path_of("/%2541"), "/%41", "it is decoded once");
        assert_eq!(path_of("*"), "*");
    }

    #[test]
    fn what_is_no_target_is_none() {
        for text in ["", "x", "x/y", "cgi-bin/x", "http:/x", "://x", "a/b://c", "shop.example:80"] {
            assert_eq!(target(text.as_bytes(), false), None, "{text}");
        }
        assert_eq!(target(b"", true), None, "an authority is something");
        let connect = target(b"shop.example:80", true).expect("the authority of CONNECT");
        assert_eq!(connect, Target { path: b"shop.example:80".to_vec(), authority: None });
    }

    #[test]
    fn hosts_have_no_case_port_or_last_dot() {
        for (written, name) in [
            ("Shop.Example", Some("shop.example")),
            ("shop.example:80", Some("shop.example")),
            ("shop.example.", Some("shop.example")),
            ("shop.example.:80", Some("shop.example")),
            ("[2001:DB8::1]:80", Some("[2001:db8::1]")),
            ("[2001:db8::1", Some("[2001:db8::1")),
            ("", None),
            (":80", None),
            (".", None),
        ] {
            assert_eq!(host(written.as_bytes()).as_deref(), name.map(str::as_bytes), "{written}");
        }
        assert_eq!(host("a".repeat(256).as_bytes()), None);
        assert_eq!(host("a".repeat(255).as_bytes()).map(|name| name.len()), Some(255));
    }
}
