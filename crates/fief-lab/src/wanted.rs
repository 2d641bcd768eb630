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
