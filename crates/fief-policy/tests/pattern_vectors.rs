// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hash of patterns, the hashes of names and prefixes, and the form of targets, held to a file that the kernel side's
//! twin is held to as well. `UPDATE=1 cargo test -p fief-policy --test pattern_vectors` writes it anew.
//!
//! ```text
//! pattern P0 P1 CONDITIONS (FIELD MATCH NAME LENGTH LEAST BYTES)... HASH CHECK
//! name    P0 P1 FIELD NAME HASH
//! target  TARGET PATH HOST           PATH `-`: it is no target; HOST `-`: it says none
//! ```
//!
//! Keys and hashes are hexadecimal numbers, bytes are hexadecimal too, `-` where there are none; numbers are decimal.

use std::fmt::Write;

use fief_policy::{Comparison, Fields, Part, PatternHash, ShapeCondition};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pattern_vectors.txt");

const SECRETS: [[u64; 2]; 3] = [
    [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344],
    [u64::MAX, 0x9d39_247e_3377_6d41],
];

fn condition(part: Part, name: u8, comparison: Comparison, text: &str, least: u16) -> (ShapeCondition, Vec<u8>) {
    let is_part = matches!(comparison, Comparison::Prefix | Comparison::Suffix);
    let length = if is_part { text.len() as u16 } else { 0 };
    let least = if is_part && least == 0 { length } else { least };
    (ShapeCondition { part, name, comparison, length, least }, text.as_bytes().to_vec())
}

fn shapes() -> Vec<Vec<(ShapeCondition, Vec<u8>)>> {
    use Comparison::{Exact, Prefix, Present, Suffix};
    use Part::{Alpn, Cookie, Header, Host, Method, Path, ServerName};
    let long = "x".repeat(255);
    vec![
        vec![],
        vec![condition(Path, 0, Exact, "/", 0)],
        vec![condition(Path, 0, Prefix, "/cgi-bin/", 0)],
        vec![condition(Path, 0, Suffix, ".php", 0)],
        vec![condition(Path, 0, Prefix, "/img/", 9), condition(Path, 0, Suffix, ".png", 9)],
        vec![condition(Path, 0, Present, "", 0)],
        vec![condition(Path, 0, Exact, &long, 0)],
        vec![condition(Path, 0, Prefix, "/ä€", 0)],
        vec![condition(Method, 0, Exact, "POST", 0), condition(Path, 0, Exact, "/login", 0)],
        vec![condition(Host, 0, Exact, "shop.example", 0), condition(Header, 3, Prefix, "Bad", 0)],
        vec![condition(Host, 0, Suffix, ".shop.example", 0), condition(Cookie, 1, Exact, "gold", 0)],
        vec![condition(Header, 7, Present, "", 0), condition(Cookie, 0, Present, "", 0)],
        vec![condition(ServerName, 0, Exact, "shop.example", 0), condition(Alpn, 0, Exact, "h2", 0)],
        vec![
            condition(Method, 0, Exact, "GET", 0),
            condition(Path, 0, Prefix, "/a", 4),
            condition(Path, 0, Suffix, "/b", 4),
            condition(Host, 0, Exact, "h", 0),
        ],
    ]
}

const TARGETS: &[&str] = &[
    "/",
    "/cgi-bin/x",
    "/cgi-bin//./x?q=1",
    "/%63gi-bin/x#y",
    "/img/../cgi-bin/x",
    "/%2e%2e/%2E%2e/a",
    "/a/b/../..",
    "/a/b/.",
    "/a//",
    "//",
    "///..//",
    "/..",
    "/.",
    "/...",
    "/.a/..b/c.",
    "/a%2fb%2F..%2Fc",
    "/100%",
    "/100%2",
    "/100%zz%20",
    "/%2541",
    "/%00/a",
    "/%ff",
    "/a?/../b",
    "/a;x=1/b+c",
    "http://shop.example/cgi-bin/x",
    "HTTP://Shop.Example:8080",
    "http://user:pass@Shop.Example.:80/a/../b?q",
    "http://[2001:DB8::1]:80/x",
    "http://h?q",
    "http://h#f",
    "http:///x",
    "http://:80/x",
    "*",
    "x",
    "shop.example:80",
    "http:/x",
    "://x",
    "a/b://c/d",
];

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".to_owned() } else { bytes.iter().map(|byte| format!("{byte:02x}")).collect() }
}

fn current() -> String {
    let mut text = String::new();
    for secret in SECRETS {
        let hash = PatternHash::new(secret);
        let [p0, p1] = secret;
        for shape in shapes() {
            write!(text, "pattern {p0:016x} {p1:016x} {}", shape.len()).expect("a text");
            let mut state = hash.start();
            for (condition, bytes) in &shape {
                let ShapeCondition { part, name, comparison, length, least } = *condition;
                let (part, comparison) = (part as u8, comparison as u8);
                write!(text, " {part} {comparison} {name} {length} {least} {}", hex(bytes)).expect("a text");
                state = hash.add(state, condition, bytes);
            }
            writeln!(text, " {state:016x}").expect("a text");
        }
        for (part, name) in [(Part::Header, "user-agent"), (Part::Cookie, "tier"), (Part::Header, "tier")] {
            let found = hash.name(part, name.as_bytes());
            let part = part as u8;
            writeln!(text, "name {p0:016x} {p1:016x} {part} {} {found:016x}", hex(name.as_bytes())).expect("a text");
        }
    }
    for target in TARGETS {
        let fields = Fields::of_http(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
        let (path, host) = (hex(&fields.path.unwrap_or_default()), hex(&fields.host.unwrap_or_default()));
        writeln!(text, "target {} {path} {host}", hex(target.as_bytes())).expect("a text");
    }
    text
}

#[test]
fn the_hash_and_the_form_of_targets_are_as_the_kernel_side_has_them() {
    let current = current();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(FILE, &current).expect("the folder of tests is writable");
    }
    let committed = std::fs::read_to_string(FILE).expect("tests/pattern_vectors.txt");
    for (now, then) in current.lines().zip(committed.lines()) {
        assert_eq!(now, then);
    }
    assert_eq!(current.lines().count(), committed.lines().count());
}

/// By another road than the one under test: the words of the definition, one step at a time.
#[test]
fn the_hash_is_what_its_definition_says() {
    let [p0, p1] = SECRETS[1];
    let fmix64 = |mut x: u64| {
        x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        x ^ (x >> 33)
    };
    let mut f = p0;
    for byte in *b"php." {
        f = (f ^ u64::from(byte)).wrapping_mul(p1 | 1);
    }
    // Path, suffix, no name, 4 bytes.
    let tag = 2 | 3 << 8 | 4u64 << 32;
    let h = fmix64((p1 ^ f).wrapping_add(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15)));

    let hash = PatternHash::new([p0, p1]);
    let (condition, bytes) = condition(Part::Path, 0, Comparison::Suffix, ".php", 0);
    assert_eq!(hash.add(hash.start(), &condition, &bytes), h);
}

#[test]
fn numbers_of_parts_and_comparisons_are_the_records() {
    const ABI: &str = include_str!("../../../bpf/abi/guard.h");
    let number = |name: &str| {
        let list =
            ABI.split("enum ").find(|list| list.contains(name)).unwrap_or_else(|| panic!("no {name} in abi/guard.h"));
        let list = &list[..list.find('}').expect("the list ends")];
        let names: Vec<&str> = list.lines().flat_map(|line| line.split("/*").next().unwrap_or("").split(',')).collect();
        let names: Vec<&str> = names.iter().map(|name| name.rsplit('{').next().unwrap_or("").trim()).collect();
        let names: Vec<&str> = names.into_iter().filter(|name| name.starts_with("FIEF_")).collect();
        assert!(names[0].ends_with("= 1"), "{names:?} count from 1");
        let plain = |name: &&&str| name.split(' ').next() == Some(name.trim_end_matches(" = 1"));
        assert_eq!(names.iter().filter(plain).count(), names.len(), "{names:?} count on");
        names.iter().position(|other| other.trim_end_matches(" = 1") == name).expect("it is in the list") + 1
    };
    for (part, name) in [
        (Part::Method, "FIEF_FIELD_METHOD"),
        (Part::Path, "FIEF_FIELD_PATH"),
        (Part::Host, "FIEF_FIELD_HOST"),
        (Part::ServerName, "FIEF_FIELD_SERVER_NAME"),
        (Part::Alpn, "FIEF_FIELD_ALPN"),
        (Part::Header, "FIEF_FIELD_HEADER"),
        (Part::Cookie, "FIEF_FIELD_COOKIE"),
    ] {
        assert_eq!(part as usize, number(name), "{name}");
    }
    for (comparison, name) in [
        (Comparison::Exact, "FIEF_MATCH_EXACT"),
        (Comparison::Prefix, "FIEF_MATCH_PREFIX"),
        (Comparison::Suffix, "FIEF_MATCH_SUFFIX"),
        (Comparison::Present, "FIEF_MATCH_PRESENT"),
    ] {
        assert_eq!(comparison as usize, number(name), "{name}");
    }
}
