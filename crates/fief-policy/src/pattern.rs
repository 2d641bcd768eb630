// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads what fields of requests are compared with, and refuses what could never match.
//!
//! The kernel side compares fields in one form: paths decoded and with their dot segments resolved, hosts in lower case
//! and without a port. A pattern in another form would be there and do nothing.

use crate::normal;
use crate::quantity::Refused;
use crate::request::{Field, Pattern};

/// Bytes of an exact value, or of what stands before or after a `*`; the kernel side looks no further.
pub(crate) const LONGEST_PATTERN: usize = 255;

/// One value of a condition on that field.
pub(crate) fn pattern(field: &Field, text: &str) -> Result<Pattern, Refused> {
    let written = text;
    let text = match field {
        Field::Method => return method(text),
        Field::Alpn => return protocol(text),
        Field::Path => path(text)?,
        Field::Host | Field::ServerName => host(text)?,
        Field::Header(_) | Field::Cookie(_) => value(field, text)?,
    };
    let pattern = match text.split_once('*') {
        None => Pattern::Exact(text),
        Some((_, rest)) if rest.contains('*') => {
            return refused(
                format!("\"{written}\" has more than one `*`"),
                "keep one `*`, or name several values in an array",
            );
        }
        Some(("", "")) => Pattern::Present,
        Some((start, "")) => Pattern::Prefix(start.to_owned()),
        Some(("", end)) => Pattern::Suffix(end.to_owned()),
        Some((start, end)) => Pattern::Around(start.to_owned(), end.to_owned()),
    };
    let longest = match &pattern {
        Pattern::Exact(text) | Pattern::Prefix(text) | Pattern::Suffix(text) => text.len(),
        Pattern::Around(start, end) => start.len().max(end.len()),
        Pattern::Present => 0,
    };
    if longest > LONGEST_PATTERN {
        return refused(
            format!("the value is {longest} bytes long"),
            format!("write at most {LONGEST_PATTERN} bytes on either side of a `*`"),
        );
    }
    Ok(pattern)
}

fn refused<T>(message: impl Into<String>, remedy: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { message: message.into(), remedy: remedy.into() })
}

fn method(text: &str) -> Result<Pattern, Refused> {
    if text.contains('*') {
        return refused(format!("\"{text}\" is not a method"), "name the methods, or remove `method` for any");
    }
    if !(1..=LONGEST_PATTERN).contains(&text.len()) || !text.bytes().all(is_token) {
        return refused(format!("\"{}\" is not a method", text.escape_debug()), "write a method, as in \"POST\"");
    }
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        let remedy = format!("write \"{}\"", text.to_ascii_uppercase());
        return refused(format!("\"{text}\" can never match: methods are written in capitals"), remedy);
    }
    Ok(Pattern::Exact(text.to_owned()))
}

fn protocol(text: &str) -> Result<Pattern, Refused> {
    if text.contains('*') || !(1..=LONGEST_PATTERN).contains(&text.len()) {
        let remedy = "write a protocol as TLS names it, as in \"h2\" or \"http/1.1\"";
        return refused(format!("\"{}\" is not a protocol", text.escape_debug()), remedy);
    }
    Ok(Pattern::Exact(text.to_owned()))
}

/// What to write for a regular expression of a path, as nginx's `location` has them. None: it is not one.
fn of_expression(text: &str) -> Option<String> {
    if !text.starts_with(['~', '^']) && !text.starts_with("\\.") {
        return None;
    }
    let plain = text.trim_start_matches(['~', '*']).trim_start();
    let inner = plain.trim_start_matches('^').trim_end_matches('$').replace(".*", "*").replace("\\.", ".");
    let before = if plain.starts_with('^') { "" } else { "*" };
    let after = if plain.ends_with('$') { "" } else { "*" };
    let meant = format!("{before}{inner}{after}").replace("**", "*");
    let is_simple = !inner.contains(['(', '[', '|', '+', '?', '\\', '{']) && meant.matches('*').count() <= 1;
    Some(match is_simple {
        true => format!("write \"{meant}\""),
        false => "name the values in an array, each with at most one `*`".to_owned(),
    })
}

/// As it is compared: decoded, with resolved segments, without the query.
fn path(text: &str) -> Result<String, Refused> {
    let never = |why: &str| format!("\"{}\" can never match: {why}", text.escape_debug());
    if let Some(remedy) = of_expression(text) {
        return refused(never("patterns are no regular expressions"), remedy);
    }
    if !text.starts_with(['/', '*']) {
        let remedy = format!("write \"/{text}\", or \"*{text}\" for any path that ends so");
        return refused(never("a path begins with `/`"), remedy);
    }
    if let Some((before, _)) = text.split_once(['?', '#']) {
        let remedy = format!("write \"{before}\"");
        return refused(never("paths are compared without the query"), remedy);
    }
    if let Some(decoded) = decoded(text) {
        return refused(never("paths are compared decoded"), format!("write \"{}\"", decoded.escape_debug()));
    }
    if text.contains("//") {
        let remedy = format!("write \"{}\"", without_doubles(text));
        return refused(never("double slashes are taken as one"), remedy);
    }
    let mut segments = text.split('/').skip(1);
    if segments.any(|segment| segment == "." || segment == "..") {
        return refused(never("`.` and `..` are resolved before paths are compared"), "write the path without them");
    }
    Ok(text.to_owned())
}

/// The text with its %XX decoded; none: there are none.
fn decoded(text: &str) -> Option<String> {
    let out = normal::decoded(text.as_bytes());
    (out.len() < text.len()).then(|| String::from_utf8_lossy(&out).into_owned())
}

fn without_doubles(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if character != '/' || !out.ends_with('/') {
            out.push(character);
        }
    }
    out
}

fn host(text: &str) -> Result<String, Refused> {
    let never = |why: &str| format!("\"{}\" can never match: {why}", text.escape_debug());
    if text.is_empty() {
        return refused("the name is empty", "write a name, as in \"shop.example\" or \"*.shop.example\"");
    }
    if let Some((_, rest)) = text.split_once("://") {
        let name = rest.split('/').next().unwrap_or(rest);
        return refused(never("a host has no scheme"), format!("write \"{name}\""));
    }
    if text.contains('/') || text.contains(|character: char| character.is_whitespace() || character.is_control()) {
        return refused(never("a host has no `/` and no spaces"), "write the host alone; paths have the key `path`");
    }
    // Brackets stand around the colons of an IPv6 address.
    let after_address = text.rfind(']').map_or(0, |at| at + 1);
    if let Some(colon) = text[after_address..].find(':') {
        let name = &text[..after_address + colon];
        let remedy = if name.contains('*') || after_address > 0 || text.matches(':').count() == 1 {
            format!("write \"{name}\"")
        } else {
            format!("write \"[{text}]\"")
        };
        return refused(never("hosts are compared without the port"), remedy);
    }
    if let Some(name) = text.strip_suffix('.') {
        return refused(never("hosts are compared without the last dot"), format!("write \"{name}\""));
    }
    Ok(text.to_ascii_lowercase())
}

fn value(field: &Field, text: &str) -> Result<String, Refused> {
    let never = |why: &str| format!("\"{}\" can never match: {why}", text.escape_debug());
    if text.contains(['\r', '\n', '\0']) {
        return refused(never("a value ends with its line"), "remove what is not of one line");
    }
    if text.trim_matches([' ', '\t']) != text {
        let remedy = format!("write \"{}\"", text.trim_matches([' ', '\t']));
        return refused(never("blanks around a value are not compared"), remedy);
    }
    if matches!(field, Field::Cookie(_)) && text.contains(';') {
        return refused(never("cookies end at `;`"), "write the value of one cookie");
    }
    Ok(text.to_owned())
}

/// Checks the name of a header or cookie.
pub(crate) fn check_field_name(name: &str) -> Result<(), Refused> {
    if name.is_empty() || name.len() > LONGEST_PATTERN || !name.bytes().all(is_token) {
        let remedy = "write a name of letters, digits and `-`, as in \"user-agent\"";
        return refused(format!("\"{}\" is not the name of a header or cookie", name.escape_debug()), remedy);
    }
    Ok(())
}

/// RFC 9110, section 5.6.2.
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
