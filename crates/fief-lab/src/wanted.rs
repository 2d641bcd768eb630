// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which parts of an experiment to make: figures or ways named in FIEF_LAB_ONLY, separated by commas; all of them
//! without it. For whoever looks for a cause.

use crate::error::Result;

#[derive(Debug)]
pub struct Wanted {
    only: Option<String>,
}

impl Wanted {
    pub fn from_env() -> Wanted {
        Wanted { only: std::env::var("FIEF_LAB_ONLY").ok() }
    }

    /// Whether one of them was asked for.
    pub fn any(&self, names: &[&str]) -> bool {
        self.only.as_ref().is_none_or(|only| only.split(',').any(|name| names.contains(&name)))
    }

    /// What a shell needs before a command for it to make these parts.
    pub fn before_command(&self) -> String {
        self.only.as_ref().map_or_else(String::new, |only| format!("FIEF_LAB_ONLY={} ", quoted(only)))
    }
}

/// Characters that a shell takes as they are.
const PLAIN: &str = "-_,./:";

/// As one word of a shell's.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || PLAIN.contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Those ways that this machine can do, and for the others why not.
pub fn usable<W>(
    ways: impl IntoIterator<Item = W>,
    check: impl Fn(&W) -> Result<()>,
    title: impl Fn(&W) -> String,
) -> (Vec<W>, Vec<String>) {
    let (mut usable, mut notes) = (Vec::new(), Vec::new());
    for way in ways {
        match check(&way) {
            Ok(()) => usable.push(way),
            Err(error) => {
                let said = error.to_string();
                notes.push(format!("{} was left out: {}", title(&way), said.lines().next().unwrap_or_default()));
            }
        }
    }
    (usable, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_makes_the_same_parts_by_what_stands_before_the_command() {
        let before = |only: Option<&str>| Wanted { only: only.map(str::to_owned) }.before_command();
        assert_eq!(before(None), "");
        assert_eq!(before(Some("go,plain,queue")), "FIEF_LAB_ONLY=go,plain,queue ");
        assert_eq!(before(Some("it's one")), "FIEF_LAB_ONLY='it'\\''s one' ");
    }
}
