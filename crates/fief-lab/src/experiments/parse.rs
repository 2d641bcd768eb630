// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading requests before a server does: what a head costs whatever its segments are, and whether what is read is what
//! servers read.
//!
//! A head of almost 16 kB comes in segments of one byte, and so does what else is kept until it is whole. The kernel's own
//! count of the installed program's runs tells what each part of it cost a segment. Mutated heads and ClientHellos, sent
//! through Fief and without to real servers, tell how often Fief and a server disagree.

mod differential;
mod head;
mod kept;
mod load;
mod outcome;
mod segments;

use crate::effort::is_least;
use crate::error::{Error, Kind, Result};
use crate::experiments::Outcome;
use crate::progress::Progress;
use crate::wanted::Wanted;
use kept::Kept;

const PORT: u16 = 80;
/// Where balancers send PROXY heads.
const BALANCED_PORT: u16 = 81;

#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Heads that are sent byte by byte and timed by position.
    heads: usize,
    /// What else is kept until it is whole, of each kind.
    others: usize,
    /// Of a load of such segments at a constant rate.
    loads: usize,
    load_seconds: f64,
    /// Mutated heads and hellos for each server.
    cases: usize,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        match quick {
            _ if is_least() => Plan { heads: 1, others: 1, loads: 1, load_seconds: 0.2, cases: 20 },
            true => Plan { heads: 5, others: 5, loads: 3, load_seconds: 5.0, cases: 20_000 },
            false => Plan { heads: 25, others: 15, loads: 7, load_seconds: 5.0, cases: 100_000 },
        }
    }

    fn steps(&self) -> usize {
        self.heads + self.others * Kept::OTHERS.len() + self.loads + 1
    }
}

pub fn run(quick: bool) -> Result<Outcome> {
    crate::command::can_run()?;
    let plan = Plan::of(quick);
    let wanted = Wanted::from_env();
    let mut progress = Progress::new("parse", plan.steps());
    let mut heads = Vec::new();
    let mut others = Kept::OTHERS.map(|kept| (kept, Vec::new()));
    let mut loads = Vec::new();
    if wanted.any(&["segments", "load"]) {
        let door = head::Door::open()?;
        for _ in 0..plan.heads {
            progress.step("a head in segments of one byte")?;
            heads.push(segments::measure(&door, Kept::First)?);
        }
        for _ in 0..plan.others {
            for (kept, rounds) in &mut others {
                progress.step(&format!("{} in segments of one byte", kept.title()))?;
                rounds.push(segments::measure(&door, *kept)?);
            }
        }
        for _ in 0..plan.loads {
            progress.step("10,000 segments of one byte a second")?;
            loads.push(load::measure(&door, plan.load_seconds)?);
        }
        door.close()?;
    }
    progress.step("mutated heads and hellos against real servers")?;
    let difference = match wanted.any(&["differential"]) {
        true => differential::measure(plan.cases),
        false => Err(Error::new(Kind::Missing, "not asked for")),
    };
    let (difference, note) = match difference {
        Ok(difference) => (Some(difference), None),
        Err(error) if error.kind() == Kind::Missing => (None, Some(error.to_string())),
        Err(error) => return Err(error),
    };
    Ok(outcome::of(&heads, &others, &loads, difference.as_ref(), note))
}
