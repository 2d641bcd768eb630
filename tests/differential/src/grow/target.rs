// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target: its form, and how a path is spelt.

use fief_testkit::Dice;

use super::{one, replace, target_range};

/// Another form of the target.
pub fn target(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let Some(range) = target_range(bytes) else { return };
    let old = String::from_utf8_lossy(&bytes[range.clone()]).into_owned();
    let path = if old.starts_with('/') { old.clone() } else { "/secret".to_owned() };
    let bare = path.trim_start_matches('/').to_owned();
    let authority = one(
        dice,
        &[
            "plain.example",
            "secret.example",
            "a",
            "",
            "plain.example:80",
            "secret.example:80",
            "SECRET.example",
            "x@secret.example",
            "secret.example@a",
            "secret.example.",
            "[::1]",
            "a:b:c",
            "plain.example:",
            "secret.example:x",
        ],
    );
    let scheme = one(dice, &["http", "HTTP", "https", "Http", "ftp", "ws", "x", "h2c+http"]);
    let new = match dice.roll(14) {
        0..=3 => format!("{scheme}://{authority}{path}"),
        4 => format!("http:{path}"),
        5 => format!("http:/{path}"),
        6 => format!("//{authority}{path}"),
        7 => bare,
        8 => "*".into(),
        9 => format!("{authority}:80"),
        10 => format!("{scheme}://{authority}"),
        11 => format!("{scheme}://{authority}?{path}"),
        12 => format!("http:\\\\{authority}{path}"),
        _ => format!("{scheme}://{authority}{}", path.replace('/', "\\")),
    };
    replace(bytes, range, new.as_bytes());
}

/// Another spelling of the path.
pub fn encoding(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let Some(range) = target_range(bytes) else { return };
    let mut path = bytes[range.clone()].to_vec();
    let start = path.iter().position(|&byte| byte == b'/').unwrap_or(0);
    let stop = path.iter().position(|&byte| byte == b'?').unwrap_or(path.len()).max(start);
    let at = start + dice.roll((stop - start).max(1));
    match dice.roll(7) {
        0 if at < path.len() => {
            let byte = path[at];
            let with = if dice.roll(2) == 0 { format!("%{byte:02x}") } else { format!("%{byte:02X}") };
            replace(&mut path, at..at + 1, with.as_bytes());
        }
        1 => {
            let all: String = path[start..stop].iter().map(|byte| format!("%{byte:02x}")).collect();
            let keep = usize::from(dice.roll(2) == 0 && start < stop);
            replace(&mut path, start + keep..stop, &all.as_bytes()[3 * keep..]);
        }
        2 => {
            let with = one(
                dice,
                &["/", "//", "/./", "/x/../", "/../", "/x/..//", "/%2e/", "/x/%2e%2e/", "/%2f", "/.%2e/", "/..%2f"],
            );
            replace(&mut path, start..(start + 1).min(stop.max(start)), with.as_bytes());
        }
        3 => {
            let with = one(
                dice,
                &[
                    ";a", ";a=b/", "%00", "%0a", "%0d%0a", "%20", "%", "%2", "%zz", "\\", "%5c", "#", "%23", "?",
                    "%3f", "+",
                ],
            );
            replace(&mut path, at..at, with.as_bytes());
        }
        4 => {
            let with: &[u8] = one(
                dice,
                &[
                    b"\xff",
                    b"\xc3\xa9",
                    b"\xc0\xaf",
                    b"%c0%af",
                    b"%e0%80%af",
                    b"\x01",
                    b"\x7f",
                    b"|",
                    b"\"",
                    b"<",
                    b"^",
                    b"`",
                    b"{",
                ],
            );
            let with = with.to_vec();
            replace(&mut path, at..at, &with);
        }
        5 => {
            let count = [1, 3, 50, 300, 2000][dice.roll(5)];
            let unit = one(dice, &["/.", "/x/..", "/", "/%2e"]);
            replace(&mut path, start..start, unit.repeat(count).as_bytes());
        }
        _ => {
            let with = one(
                dice,
                &[
                    "/",
                    "/x",
                    ".html",
                    "?",
                    "?x",
                    "?x=/secret",
                    "#x",
                    "/..",
                    "/../plain",
                    "/%2e%2e/plain",
                    "/../../secret",
                    ";/../../secret",
                ],
            );
            replace(&mut path, stop..stop, with.as_bytes());
        }
    }
    replace(bytes, range, &path);
}
