// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which parts of an experiment to make: figures or ways named in FIEF_LAB_ONLY, separated by commas; all of them
//! without it. For whoever looks for a cause.

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
