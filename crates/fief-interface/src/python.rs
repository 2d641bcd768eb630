// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Constants by their names, and a class of ctypes for each record.

use std::fmt::Write;

use crate::declaration::{Declaration, Entry, Kind, seen};

pub fn in_python() -> String {
    let mut text = String::new();
    for declaration in seen() {
        match declaration.kind {
            Kind::Constant => {
                let _ = writeln!(text, "{} = {}", declaration.name, declaration.value().0);
            }
            Kind::Enumeration => {
                for number in declaration.numbers() {
                    let Entry::One { of: (name, value), .. } = number else { continue };
                    let _ = writeln!(text, "{name} = {value}");
                }
            }
            Kind::Record => record(&declaration, &mut text),
        }
    }
    text
}

fn record(declaration: &Declaration, text: &mut String) {
    let _ = writeln!(text, "\n\nclass {}(ctypes.Structure):\n    _fields_ = [", declaration.name);
    for member in declaration.members() {
        let Entry::One { of: member, .. } = member else { continue };
        let length = member.length.map_or_else(String::new, |length| format!(" * {length}"));
        let of = match member.of.as_str() {
            "__u8" => "ctypes.c_uint8",
            "__u16" => "ctypes.c_uint16",
            "__u32" => "ctypes.c_uint32",
            "__s32" => "ctypes.c_int32",
            "__u64" => "ctypes.c_uint64",
            "char" => "ctypes.c_char",
            other => other.strip_prefix("struct ").expect("a type that applications know"),
        };
        let _ = writeln!(text, "        (\"{}\", {of}{length}),", member.name);
    }
    text.push_str("    ]\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_written_count_up() {
        let text = in_python();
        assert!(text.contains("FIEF_REASON_NONE = 0\nFIEF_SYN_TAKEN = 1\n"), "{text}");
        assert!(text.contains("FIEF_SOL = 0x46696566\n") && text.contains("FIEF_RIGHTS_ALL = 15\n"), "{text}");
        assert!(text.contains("        (\"name\", ctypes.c_char * FIEF_NAME_LEN),\n"), "{text}");
        assert!(
            text.contains("FIEF_ASSIGN_FILE = 18\n") && text.contains("        (\"head\", ctypes.c_uint32),\n"),
            "{text}"
        );
    }
}
