// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief probe`: what this kernel gives, found out by trying, and what to do about what it lacks.

use serde::Serialize;

use crate::cli;
use crate::failure::{Failure, Result};
use crate::output::{Align, Output, Table, printable};
use crate::quantity;
use fief_control::{Feature, Fief, Probe};

pub fn run(args: &cli::Probe, output: &mut Output) -> Result<()> {
    let probe = Fief::from_env()?.probe();
    if args.json {
        output.json(&Machine::of(&probe))?;
        for feature in &probe.features {
            output.json(&Tried::of(feature))?;
        }
    } else {
        output.text(page(&probe))?;
    }
    if is_enough(&probe) { Ok(()) } else { output.flush().and(Err(Failure::told(1))) }
}

fn is_enough(probe: &Probe) -> bool {
    probe.features.iter().all(|feature| feature.available || !feature.required)
}

#[derive(Serialize)]
struct Machine<'a> {
    kernel: &'a str,
    /// Nothing that Fief cannot do without is missing.
    enough: bool,
    containers: u32,
    bytes_per_container: usize,
    table_bytes: u64,
}

impl<'a> Machine<'a> {
    fn of(probe: &'a Probe) -> Self {
        Self {
            kernel: &probe.kernel,
            enough: is_enough(probe),
            containers: probe.containers,
            bytes_per_container: probe.bytes_per_container,
            table_bytes: probe.table_bytes,
        }
    }
}

#[derive(Serialize)]
struct Tried<'a> {
    feature: &'a str,
    verb: &'a str,
    available: bool,
    required: bool,
    detail: &'a str,
    remedy: Option<&'a str>,
}

impl<'a> Tried<'a> {
    fn of(feature: &'a Feature) -> Self {
        Self {
            feature: feature.name,
            verb: feature.verb,
            available: feature.available,
            required: feature.required,
            detail: &feature.detail,
            remedy: feature.remedy.as_deref(),
        }
    }
}

fn page(probe: &Probe) -> String {
    let mut table =
        Table::new(&[("VERB", Align::Left), ("FEATURE", Align::Left), ("HERE", Align::Left), ("DETAIL", Align::Left)]);
    for feature in &probe.features {
        let here = match (feature.available, feature.required) {
            (true, _) => "yes",
            (false, true) => "NO",
            (false, false) => "no",
        };
        table.push([feature.verb.into(), feature.name.into(), here.into(), feature.detail.clone()]);
    }
    let mut page = format!(
        "kernel {}; room for {} containers of {} bytes, {} in all\n\n{table}",
        printable(&probe.kernel),
        probe.containers,
        probe.bytes_per_container,
        quantity::bytes(probe.table_bytes),
    );
    let missing = probe.features.iter().filter(|feature| !feature.available);
    let mut heading = "\n";
    for feature in missing {
        let need = if feature.required { "missing" } else { "missing, not needed" };
        let remedy = feature.remedy.as_deref().unwrap_or("no remedy on this machine");
        page.push_str(&format!("{heading}{} ({need}): {}\n", feature.name, printable(remedy)));
        heading = "";
    }
    if !is_enough(probe) {
        page.push_str("\nFief cannot work on this machine before what is missing is there\n");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(available: bool, required: bool) -> Probe {
        Probe {
            kernel: "6.18.1".into(),
            features: vec![Feature {
                name: "sk_lookup",
                verb: "steer",
                available,
                required,
                detail: "EPERM".into(),
                remedy: Some("run as root".into()),
            }],
            bytes_per_container: 320,
            containers: 65_536,
            table_bytes: 20 << 20,
        }
    }

    #[test]
    fn what_is_missing_is_shown_with_its_remedy() {
        let page = page(&probe(false, true));
        assert!(page.contains("steer  sk_lookup  NO    EPERM"), "{page}");
        assert!(page.contains("sk_lookup (missing): run as root"), "{page}");
        assert!(page.contains("cannot work"), "{page}");
    }

    #[test]
    fn what_is_not_needed_is_no_failure() {
        assert!(is_enough(&probe(false, false)));
        assert!(!is_enough(&probe(false, true)));
        assert!(!page(&probe(true, true)).contains("missing"));
    }

    #[test]
    fn the_json_objects_keep_their_names() {
        let machine = serde_json::to_string(&Machine::of(&probe(true, true))).expect("texts and numbers");
        let expected =
            r#"{"kernel":"6.18.1","enough":true,"containers":65536,"bytes_per_container":320,"table_bytes":20971520}"#;
        assert_eq!(machine, expected);
        let tried = serde_json::to_string(&Tried::of(&probe(true, true).features[0])).expect("texts and numbers");
        let expected = r#"{"feature":"sk_lookup","verb":"steer","available":true,"required":true,"detail":"EPERM","remedy":"run as root"}"#;
        assert_eq!(tried, expected);
    }
}
