// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether another installation of Fief is loaded while the lab measures.
//!
//! Its programs at tracepoints are machine-wide: they run for the lab's servers too, on both sides of each comparison, and
//! flatter every ratio. It is looked for at each step, and said in the report; the lab does not refuse to run, since a
//! policy in force on the machine stays in force.

use crate::command::scope;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

/// What was seen since the experiment began.
#[derive(Debug, Default)]
struct Seen {
    looks: usize,
    accompanied: usize,
    scopes: BTreeSet<String>,
}

static SEEN: Mutex<Seen> = Mutex::new(Seen { looks: 0, accompanied: 0, scopes: BTreeSet::new() });

/// Looks once.
pub fn look() {
    let others = others(Path::new("/sys/fs/bpf"), &scope());
    if let Ok(mut seen) = SEEN.lock() {
        seen.looks += 1;
        seen.accompanied += usize::from(!others.is_empty());
        seen.scopes.extend(others);
    }
}

/// A sentence and an object for the report, if there was company at any step.
pub fn told() -> Option<(String, Value)> {
    let seen = SEEN.lock().ok()?;
    let Seen { looks, accompanied, scopes } = &*seen;
    let text = format!(
        "Another installation of Fief was loaded at {accompanied} of {looks} steps; its machine-wide programs ran on both \
         sides of each comparison, so ratios flatter."
    );
    let object = json!({ "other_fief_at_steps": accompanied, "steps": looks, "other_scopes": scopes });
    (*accompanied > 0).then_some((text, object))
}

/// Installations in bpffs but this one: each has a folder of machine-wide links.
fn others(bpffs: &Path, own: &str) -> Vec<String> {
    let entries = std::fs::read_dir(bpffs).into_iter().flatten().flatten();
    let names = entries.filter(|entry| entry.path().join("links").is_dir());
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.split('~').next() != Some(own)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_of_another_scope_is_company_and_ones_own_is_not() {
        let bpffs = tempfile::tempdir().expect("a folder");
        for name in ["fief/links", "ff-lab-1/links", "ff-lab-1~77/links", "somebody/maps"] {
            std::fs::create_dir_all(bpffs.path().join(name)).expect("made");
        }
        assert_eq!(others(bpffs.path(), "ff-lab-1"), ["fief"]);
    }
}
