// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Constants and records of Rust, each with what its header says of it.
//!
//! bindgen could write the same for headers so plain, but without their comments, and it would have crate `fief` need libclang or
//! a second tool that writes what is committed.

use std::fmt::Write;

use crate::declaration::{Declaration, Entry, Kind, seen};

const HEAD: &str = "\
// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The records and constants that applications share with the kernel side.
//!
//! `cargo run -p fief-interface` writes this file, from the headers of the kernel side (`bpf/abi/`), where a change is made.

#![allow(missing_docs, non_camel_case_types)]
";

/// Only arrays up to here have a default.
const LONGEST_WITH_DEFAULT: u32 = 32;

pub fn in_rust() -> String {
    let mut text = HEAD.to_owned();
    let mut was_constant = false;
    for declaration in seen() {
        let is_constant = declaration.kind == Kind::Constant;
        if !(is_constant && was_constant) {
            text.push('\n');
        }
        was_constant = is_constant;
        match declaration.kind {
            Kind::Constant => constant(&declaration, &mut text),
            Kind::Enumeration => numbers(&declaration, &mut text),
            Kind::Record => record(&declaration, &mut text),
        }
    }
    text
}

/// As markdown has them.
fn words(comment: &str) -> String {
    comment.replace('<', "\\<").replace('[', "\\[")
}

fn describe(declaration: &Declaration, text: &mut String) {
    let mut is_drawn = false;
    for line in declaration.about() {
        let draws = line.starts_with("    ");
        if draws != is_drawn {
            text.push_str(if draws { "/// ```text\n" } else { "/// ```\n" });
            is_drawn = draws;
        }
        let line = if is_drawn { line.to_owned() } else { words(line) };
        text.push_str(format!("/// {line}").trim_end());
        text.push('\n');
    }
    if is_drawn {
        text.push_str("/// ```\n");
    }
}

fn constant(declaration: &Declaration, text: &mut String) {
    let (value, about) = declaration.value();
    // it is about those that follow too
    for line in declaration.about() {
        let _ = writeln!(text, "// {line}");
    }
    if let Some(about) = about {
        let _ = writeln!(text, "/// {}", words(about));
    }
    let _ = writeln!(text, "pub const {}: u32 = {value};", declaration.name);
}

fn numbers(declaration: &Declaration, text: &mut String) {
    describe(declaration, text);
    let _ = writeln!(text, "pub type {} = u32;", declaration.name);
    for number in declaration.numbers() {
        match number {
            Entry::Note(note) => {
                let _ = writeln!(text, "// {note}");
            }
            Entry::One { of: (name, value), about } => {
                if let Some(about) = about {
                    let _ = writeln!(text, "/// {}", words(&about));
                }
                let _ = writeln!(text, "pub const {name}: {} = {value};", declaration.name);
            }
        }
    }
}

fn record(declaration: &Declaration, text: &mut String) {
    let members = declaration.members();
    let is_long = |length: &String| length.parse().unwrap_or_else(|_| value_of(length)) > LONGEST_WITH_DEFAULT;
    let has_long = members.iter().any(|entry| match entry {
        Entry::One { of, .. } => of.length.as_ref().is_some_and(is_long),
        Entry::Note(_) => false,
    });
    describe(declaration, text);
    let default = if has_long { "" } else { " Default," };
    let _ = writeln!(text, "#[repr(C)]\n#[derive(Debug,{default} Copy, Clone, Hash, PartialEq, Eq)]");
    let _ = writeln!(text, "pub struct {} {{", declaration.name);
    for member in members {
        match member {
            Entry::Note(note) => {
                let _ = writeln!(text, "    // {note}");
            }
            Entry::One { of: member, about } => {
                if let Some(about) = about {
                    let _ = writeln!(text, "    /// {}", words(&about));
                }
                let of = match member.of.as_str() {
                    "__u8" => "u8",
                    "__u16" => "u16",
                    "__u32" => "u32",
                    "__s32" => "i32",
                    "__u64" => "u64",
                    "char" => "core::ffi::c_char",
                    other => other.strip_prefix("struct ").expect("a type that applications know"),
                };
                // a word of the language
                let name = if member.name == "self" { "self_" } else { &member.name };
                let of = match member.length {
                    Some(length) if length.parse::<u32>().is_ok() => format!("[{of}; {length}]"),
                    Some(length) => format!("[{of}; {length} as usize]"),
                    None => of.to_owned(),
                };
                let _ = writeln!(text, "    pub {name}: {of},");
            }
        }
    }
    text.push_str("}\n");
}

fn value_of(constant: &str) -> u32 {
    let found =
        seen().find(|declaration| declaration.name == constant).expect("applications know the length of an array");
    found.value().0.parse().expect("a decimal number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_members_with_what_is_said_of_them() {
        let text = in_rust();
        let info = "pub struct fief_info {\n    pub self_: fief_ref,\n    /// id FIEF_NO_ID: no parent\n    pub parent: fief_ref,\n";
        assert!(text.contains(info), "{text}");
        assert!(text.contains("    pub name: [core::ffi::c_char; FIEF_NAME_LEN as usize],\n"), "{text}");
        assert!(text.contains("/// \"user\": parent of user/\\<uid>,"), "{text}");
    }

    #[test]
    fn what_is_drawn_is_no_program() {
        let text = in_rust();
        assert!(text.contains("/// ```text\n///      63 "), "{text}");
        assert_eq!(text.matches("/// ```").count() % 2, 0, "{text}");
    }
}
