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
    /// The path as a server has it that decodes it and resolves nothing, if that is another one.
    pub(crate) unresolved: Option<Vec<u8>>,
    /// Of an absolute target; it may be none that can be compared.
    pub(crate) authority: Option<Option<Vec<u8>>>,
    /// Servers differ about it.
    pub(crate) is_odd: bool,
}

/// A host, if it can be compared.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: Option<Vec<u8>>,
    /// Servers differ about it.
    pub(crate) is_odd: bool,
}

/// Longest host or server name; a longer one is none.
const LONGEST_NAME: usize = 255;
/// Parts of a host that some servers take for a list.
const MOST_HOSTS: usize = 8;

/// Of a target that is not empty.
pub(crate) fn target(target: &[u8], method: &[u8]) -> Target {
    let is_connect = method == b"CONNECT";
    // Without a port, or with a slash, it is no authority, but a path to some.
    let is_authority = is_connect && target.contains(&b':') && !target.contains(&b'/');
    if is_authority || target == b"*" {
        // To Go's server it is the host, whatever Host says, and a path to Python's.
        let (host, odd_host, _) = if is_authority { authority_of(target) } else { (None, false, target) };
        let is_odd = odd_host || (!is_authority && method != b"OPTIONS");
        let unresolved = is_authority.then(|| [b"/", decoded(target).as_slice()].concat());
        return Target { path: target.to_vec(), unresolved, authority: is_authority.then_some(host), is_odd };
    }
    let (mut is_odd, mut authority, mut rest) = (is_connect, None, target);
    if let Some(after) = absolute(target) {
        let (host, odd_host, path) = authority_of(after);
        is_odd |= odd_host;
        authority = Some(host);
        rest = path;
    } else {
        // Python's server takes it for a path.
        is_odd |= !target.starts_with(b"/");
    }
    let end = rest.iter().position(|byte| b"?#".contains(byte)).unwrap_or(rest.len());
    is_odd |= rest.contains(&b'#') || rest[..end].contains(&b'\\');
    let (written, path) = (decoded(&rest[..end]), path(&rest[..end]));
    // What is empty, or has no slash, is given one.
    let led = if rest.starts_with(b"/") { &b""[..] } else { b"/" };
    let written = [led, &written].concat();
    Target { unresolved: (written != path).then_some(written), path, authority, is_odd }
}

/// The host of what begins with an authority, whether that is odd, and what follows it.
fn authority_of(text: &[u8]) -> (Option<Vec<u8>>, bool, &[u8]) {
    let end = text.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(text.len());
    let (user_and_host, path) = text.split_at(end);
    let user = user_and_host.iter().rposition(|&byte| byte == b'@').map(|at| at + 1);
    let host = host(&user_and_host[user.unwrap_or(0)..]);
    // HAProxy passes over a query that stands here, and takes the slash behind it for the path's.
    let odd_path = !path.starts_with(b"/") && path.contains(&b'/');
    (host.name, user.is_some() || host.is_odd || odd_path, path)
}

/// What stands behind "scheme://".
fn absolute(target: &[u8]) -> Option<&[u8]> {
    let colon = target.iter().position(|&byte| byte == b':')?;
    // The first slash of all stands right behind the colon.
    if !target[0].is_ascii_alphabetic() || target[..colon].contains(&b'/') {
        return None;
    }
    target[colon + 1..].strip_prefix(b"//")
}

/// Decoded once, double slashes merged, `.` and `..` resolved (RFC 3986, section 5.2.4).
fn path(written: &[u8]) -> Vec<u8> {
    let decoded = decoded(written);
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

/// Lower case, without the port and a last dot. No name: nothing is left, or too much.
pub(crate) fn host(text: &[u8]) -> Host {
    let end = if text.starts_with(b"[") {
        text.iter().position(|&byte| byte == b']').map(|at| at + 1)
    } else {
        text.iter().position(|&byte| byte == b':')
    };
    let (name, port) = text.split_at(end.unwrap_or(text.len()));
    let is_port = port.is_empty() || (port[0] == b':' && port[1..].iter().all(u8::is_ascii_digit));
    // RFC 3986, section 3.2.2, but for '%', which Node's URL decodes.
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=[]:".contains(byte);
    let is_long = name.strip_suffix(b".").unwrap_or(name).len() > LONGEST_NAME
        || text.split(|&byte| byte == b',').count() > MOST_HOSTS;
    Host { name: server_name(name), is_odd: is_long || !is_port || !text.iter().all(is_allowed) }
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
        String::from_utf8_lossy(&target(text.as_bytes(), b"GET").path).into_owned()
    }

    #[test]
    fn every_way_to_write_a_path_is_one_path() {
        for written in [
            "/cgi-bin/x",
            "/cgi-bin/x?q=/../a",
            "/cgi-bin/x#part",
            "cgi-bin/./x",
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
    fn a_path_that_is_not_resolved_is_another_one_only_where_something_is_resolved() {
        for (written, unresolved) in [
            ("/a/%2e%2e/b?q", Some("/a/../b")),
            ("/%61/./b", Some("/a/./b")),
            ("//a", Some("//a")),
            ("/a%2F/b", Some("/a//b")),
            ("a/../b", Some("/a/../b")),
            ("http://h//a", Some("//a")),
            ("/%61/b", None),
            ("/a/", None),
            ("http://h", None),
            ("a", None),
        ] {
            let found = target(written.as_bytes(), b"GET").unresolved;
            let found = found.map(|path| String::from_utf8_lossy(&path).into_owned());
            assert_eq!(found.as_deref(), unresolved, "{written}");
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
    fn what_servers_differ_about_is_odd() {
        for (text, method, path) in [
            ("x", "GET", "/x"),
            ("cgi-bin/x", "GET", "/cgi-bin/x"),
            ("../x", "GET", "/x"),
            ("http:/x", "GET", "/http:/x"),
            ("://x", "GET", "/:/x"),
            ("a/b://c", "GET", "/a/b:/c"),
            ("shop.example:80", "GET", "/shop.example:80"),
            ("/cgi-bin\\x", "GET", "/cgi-bin\\x"),
            ("/x#y", "GET", "/x"),
            ("/x?#y", "GET", "/x"),
            ("http://u:p@h/x", "GET", "/x"),
            ("http://h,g,h,g,h,g,h,g,h/x", "GET", "/x"),
            ("*", "GET", "*"),
            ("/x", "CONNECT", "/x"),
            ("x", "CONNECT", "/x"),
            ("h:1/x", "CONNECT", "/h:1/x"),
            ("s:///x", "CONNECT", "/x"),
        ] {
            let found = target(text.as_bytes(), method.as_bytes());
            assert_eq!((String::from_utf8_lossy(&found.path).as_ref(), found.is_odd), (path, true), "{text}");
        }
        for (text, method) in [("/x?\\", "GET"), ("*", "OPTIONS"), ("shop.example:80", "CONNECT"), ("x://y", "GET")] {
            assert!(!target(text.as_bytes(), method.as_bytes()).is_odd, "{text}");
        }
    }

    #[test]
    fn hosts_have_no_case_port_or_last_dot() {
        for (written, name, is_odd) in [
            ("Shop.Example", Some("shop.example"), false),
            ("shop.example:80", Some("shop.example"), false),
            ("shop.example.", Some("shop.example"), false),
            ("shop.example.:80", Some("shop.example"), false),
            ("[2001:DB8::1]:80", Some("[2001:db8::1]"), false),
            ("[2001:db8::1", Some("[2001:db8::1"), false),
            ("", None, false),
            (":80", None, false),
            (".", None, false),
            ("a:b", Some("a"), true),
            ("[a]b", Some("[a]"), true),
            ("a,b:80", Some("a,b"), false),
            ("a,,,,,,,b", Some("a,,,,,,,b"), false),
            ("a,,,,,,,,b", Some("a,,,,,,,,b"), true),
            ("a:80,b", Some("a"), true),
            ("u@a", Some("u@a"), true),
            ("a%2Eb", Some("a%2eb"), true),
            ("a b", Some("a b"), true),
        ] {
            let expected = Host { name: name.map(|name| name.as_bytes().to_vec()), is_odd };
            assert_eq!(host(written.as_bytes()), expected, "{written}");
        }
        assert_eq!(host("a".repeat(256).as_bytes()), Host { name: None, is_odd: true });
        assert_eq!(host("a".repeat(255).as_bytes()).name.map(|name| name.len()), Some(255));
    }
}
