// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies in examples/.

#![allow(dead_code, reason = "each test program uses its part")]

use fief_policy::{Policy, parse};

/// Name and text of every one, so that none is forgotten.
pub fn examples() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut examples = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder of examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            examples.push((name, std::fs::read_to_string(&path).expect("a text")));
        }
    }
    examples
}

/// What one of them means.
pub fn example(name: &str) -> Policy {
    let found = examples().into_iter().find(|(file, _)| file == name);
    let (_, text) = found.unwrap_or_else(|| panic!("examples/{name}"));
    parse(&text, name).unwrap_or_else(|errors| panic!("{errors}"))
}
