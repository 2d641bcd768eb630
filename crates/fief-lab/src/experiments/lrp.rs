// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lazy receiver processing under a flood that nobody polices: who pays for its packets, and who is served meanwhile.
//!
//! A high-priority client, twenty low ones and a flood from a prefix that is the lowest class. Plain nginx, copies of
//! nginx under Fief, and the same with receive work in a thread of each class, in turn. Without it, every packet of the
//! flood is worked through before any process runs; with it, the flood's thread waits for the others.
//!
//! Each for longer than the kernel keeps a connection request unanswered, and with two lengths of the listeners' queues:
//! what the kernel repeats of a full one comes a second after the flood began, and later.

mod charge;
mod measure;
mod outcome;
mod way;

use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::flood;
use crate::progress::Progress;
use crate::wanted::{Wanted, usable};
use fief_testkit::Topology;
use measure::{Load, Measurement, measure};
use way::Way;

const PORT: u16 = 80;
const SYNS_PER_SECOND: u32 = 200_000;
/// Of the listeners: nginx's own, and what a busy machine sets.
const BACKLOGS: [u32; 2] = [511, 4096];

#[derive(Clone, Debug)]
struct Plan {
    rounds: usize,
    seconds: f64,
    warm_up: f64,
    charge_seconds: f64,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        let full = Plan { rounds: 5, seconds: 10.0, warm_up: 1.0, charge_seconds: 4.0 };
        match quick {
            _ if is_least() => Plan { rounds: 1, seconds: 0.3, warm_up: 0.1, charge_seconds: 0.3 },
            true => Plan { rounds: 1, ..full },
            false => full,
        }
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    let plan = Plan::of(quick);
    let topology = Topology::new()?;
    flood::hush(&topology)?;
    let only = Wanted::from_env();
    let wanted = Way::ALL.into_iter().filter(|way| only.any(&[way.name()]));
    let (ways, notes) = usable(wanted, |way| way.check(), |way| way.title().to_owned());
    let each = ways.len() * Load::ALL.len() + 1;
    let mut progress = Progress::new("lrp", plan.rounds * BACKLOGS.len() * each);
    let (mut measurements, mut charges) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        for backlog in BACKLOGS {
            for turn in 0..ways.len() {
                let way = ways[(turn + round) % ways.len()];
                let server = way.start(&topology, backlog)?;
                let stage = format!("round {}, backlog {backlog}", round + 1);
                for load in Load::ALL {
                    progress.step(&format!("{stage}, {}, {}", way.title(), load.title()))?;
                    measurements.push(Measurement { backlog, ..measure(&plan, &topology, way, load, round)? });
                }
                if way == Way::Lanes {
                    progress.step(&format!("{stage}, whom the flood is charged to"))?;
                    charges.push(charge::measure(&plan, &topology)?);
                }
                server.stop()?;
                flood::forget_request_sockets(&topology.server);
            }
        }
    }
    Ok(outcome::of(&ways, &measurements, &charges, notes))
}
