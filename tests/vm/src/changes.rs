// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tree of containers changes while all of them want the CPU, and threads that may run on one CPU alone beside those that may run
//! anywhere.

use crate::policies::pin;
use crate::report::{Found, Report};
use crate::schedule::{apply, held, must, percents, start};

pub fn check(report: &mut Report) {
    report.check("containers that move in the tree under load have what they are given there", moves);
    report.check("a CPU is not idle while one thread of very many may run there", is_not_idle);
}

/// Those of a policy, and percent of the machine that `a`, `b` and `c` get.
type Change = (&'static [(&'static str, &'static str)], [f64; 3]);

const CHANGES: [Change; 5] = [
    (&[("a", "cpu.share = \"50%\""), ("b", "cpu.share = \"30%\""), ("c", "")], [50.0, 30.0, 20.0]),
    (
        &[
            ("g", "cpu.share = \"60%\""),
            ("g/a", "was = \"a\"\ncpu.share = \"20%\""),
            ("g/b", "was = \"b\"\ncpu.share = \"40%\""),
            ("c", ""),
        ],
        [20.0, 40.0, 40.0],
    ),
    (
        &[
            ("g", "cpu.limit = \"40%\""),
            ("g/a", "cpu.weight = 100"),
            ("g/h", "cpu.weight = 300"),
            ("g/h/b", "was = \"g/b\""),
            ("c", ""),
        ],
        [10.0, 30.0, 60.0],
    ),
    (
        &[("c", "cpu.share = \"80%\""), ("c/b", "was = \"g/h/b\"\ncpu.share = \"50%\""), ("a", "was = \"g/a\"")],
        [20.0, 50.0, 30.0],
    ),
    (&[("a", "cpu.share = \"50%\""), ("b", "was = \"c/b\"\ncpu.share = \"30%\""), ("c", "")], [50.0, 30.0, 20.0]),
];

fn moves() -> Found {
    let names = ["a", "b", "c"];
    apply(CHANGES[0].0)?;
    let spinners = start(&names.map(|name| (name, 3)))?;
    let mut told = Vec::new();
    for (at, (containers, expected)) in CHANGES.iter().enumerate() {
        apply(containers)?;
        let found = held(expected, 1.5, || percents(&names, &[&spinners]));
        told.push(found.map_err(|e| format!("change {at}: {e}"))?);
    }
    must(true)?;
    Ok(told.pop().unwrap_or_default())
}

const PINNED: [&str; 24] = [
    "p00", "p01", "p02", "p03", "p04", "p05", "p06", "p07", "p08", "p09", "p10", "p11", "p12", "p13", "p14", "p15",
    "p16", "p17", "p18", "p19", "p20", "p21", "p22", "p23",
];

/// All but one may run on the first CPU only, and are behind the one that has the other.
fn is_not_idle() -> Found {
    let mut containers: Vec<(&str, &str)> = PINNED.iter().map(|name| (*name, "cpu.weight = 1000")).collect();
    containers.extend([("free", ""), ("unused", "cpu.share = \"1%\"")]);
    apply(&containers)?;
    let pinned = start(&PINNED.map(|name| (name, 1)))?;
    pinned.iter().try_for_each(|one| pin(one.pid()))?;
    let free = start(&[("free", 2)])?;
    held(&[50.0], 2.0, || percents(&["free"], &[&free]))
}
