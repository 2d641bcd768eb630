// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The declarations as they stand in the headers.

use crate::declaration::{Declaration, Kind, seen, seen_by_orders};

/// For applications.
pub fn in_c() -> String {
    written(seen())
}

/// For orders that are built outside of Fief.
pub fn orders_in_c() -> String {
    written(seen_by_orders())
}

fn written(declarations: impl Iterator<Item = Declaration>) -> String {
    let mut text = String::new();
    let mut was_constant = false;
    for declaration in declarations {
        let is_constant = declaration.kind == Kind::Constant;
        if !(text.is_empty() || is_constant && was_constant) {
            text.push('\n');
        }
        text.push_str(&declaration.text());
        text.push('\n');
        was_constant = is_constant;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_keeps_for_itself_is_not_seen() {
        let text = in_c();
        assert!(text.contains("struct fief_usage {") && text.contains("#define FIEF_SOL"), "{text}");
        let own =
            ["struct fief_container {", "struct fief_descriptor {", "struct fief_ring {", "struct fief_ring_place {"];
        for own in own.into_iter().chain(["FIEF_HANDLES_MASK", "FIEF_RINGS", "_Static_assert"]) {
            assert!(!text.contains(own), "{own} in {text}");
        }
    }

    #[test]
    fn a_comment_of_several_lines_comes_along() {
        let text = in_c();
        assert!(text.contains(" *\n * A thread writes at most FIEF_RING_RECORDS"), "{text}");
        assert_eq!(text.matches("/*").count(), text.matches("*/").count(), "{text}");
    }
}
