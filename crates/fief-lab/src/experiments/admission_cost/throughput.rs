// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a saturated nginx keeps of its throughput with admission: every handshake held back until the first bytes, every
//! request ruled.
//!
//! One nginx runs through it all; the policy is applied and taken down around it, so both sides have the same process
//! with the same memory.

use super::{PORT, Plan};
use crate::command::PolicyFile;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::installation::Installation;
use crate::progress::Progress;
use crate::sample::{CLIENTS, Comparison, Sample, WAYS, Way, warn};
use crate::statistics::median;
use crate::table::number;
use fief_testkit::{Nginx, Topology};

/// Rules as an operator has them; the load's requests match the last one.
fn policy() -> String {
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.web]\n\n[container.\"web/gold\"]\n\n[container.\"web/browse\"]\n\n\
         [container.\"web/cgi\"]\n\n[front]\ninterfaces = [\"{}\"]\n\n\
         [listener.web]\naddress = \"0.0.0.0:{PORT}\"\nadmit = true\nclasses = \"shared\"\n\
         isolate = {{ above = 1000, for = \"10s\" }}\nproven = {{ rate = 100000, burst = 10000 }}\n\n\
         [[listener.web.client]]\nfrom = [\"10.77.1.0/24\"]\ncontainer = \"web/gold\"\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n\n\
         [[listener.web.request]]\nmethod = \"POST\"\ncontainer = \"web/cgi\"\n\n\
         [[listener.web.request]]\npath = [\"/cgi-bin/*\", \"*.php\"]\ncontainer = \"web/cgi\"\n\
         rate = {{ per-second = 100, burst = 10 }}\n\n\
         [[listener.web.request]]\nheader = {{ \"user-agent\" = \"Bad*\" }}\nrefuse = \"503\"\n\n\
         [[listener.web.request]]\npath = \"/page.*\"\ncontainer = \"web/browse\"\n",
        Topology::SERVER
    )
}

pub fn run(
    plan: &Plan,
    topology: &Topology,
    nginx: &Nginx,
    progress: &mut Progress,
    outcome: &mut Outcome,
) -> Result<()> {
    let policy = PolicyFile::new(&policy())?;
    let workers = nginx.workers();
    let mut samples: [[Vec<Sample>; 2]; WAYS.len()] = Default::default();
    for round in 0..plan.pairs {
        for turn in 0..2 {
            let with = (round + turn) % 2;
            let what = if with == 1 { "with admission" } else { "without" };
            progress.step(&format!("nginx {what}"))?;
            let installation = match with {
                1 => Some(Installation::apply_in(&policy, &topology.server)?),
                _ => None,
            };
            for (way, samples) in WAYS.iter().zip(&mut samples) {
                let sample = Sample::take(topology, &workers, &(way.load)(plan.load_seconds, PORT, "/page.html"))?;
                outcome.measurements.push(sample.to_json(&format!("admission-cost{}", way.suffix), what, round));
                samples[with].push(sample);
            }
            if let Some(installation) = installation {
                installation.down()?;
            }
        }
    }
    for (way, samples) in WAYS.iter().zip(&samples) {
        report(plan, way, samples, outcome);
    }
    Ok(())
}

fn report(plan: &Plan, way: &Way, samples: &[Vec<Sample>; 2], outcome: &mut Outcome) {
    let comparison = Comparison::of(&samples[1], &samples[0]);
    let mut table = way.table();
    let middle =
        |with: usize, of: fn(&Sample) -> f64| number(median(&samples[with].iter().map(of).collect::<Vec<_>>()));
    let [by_second, by_cpu_second] = comparison.cells();
    let cells = |with: usize| (middle(with, |one| one.per_second), middle(with, |one| one.per_cpu_second));
    let (rate, cpu_rate) = cells(0);
    table.row(["without".to_owned(), rate, String::new(), cpu_rate, String::new()]);
    let (rate, cpu_rate) = cells(1);
    table.row(["with admission".to_owned(), rate, by_second, cpu_rate, by_cpu_second]);
    comparison.note(&mut table);
    table.note(format!("{} pairs; {CLIENTS} clients, {}, a file of 1 kB.", plan.pairs, way.title));
    warn(samples.iter().flatten(), &mut table);
    outcome.tables.push(table);
    outcome.figures.must(format!("throughput{}", way.suffix), comparison.figure(), Bound::AtLeast(0.98));
}
