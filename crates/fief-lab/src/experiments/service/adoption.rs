// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a unit that is started anew without a drop-in is in nobody's account: until `fief manage --keep` has it again.

use super::crowd::Crowd;
use super::unit::{Start, Unit};
use super::{Plan, policy};
use crate::command::{DOWN, PolicyFile, fief};
use crate::error::{Context, Error, Result};
use crate::installation::Installation;
use crate::progress::Progress;
use fief_testkit::{Process, Topology};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A unit that `manage --keep` does not have by then is counted as lost.
const SOON: Duration = Duration::from_secs(30);

/// `fief manage --keep`, and when it said each time that it has the unit.
struct Keeper {
    told: Receiver<Instant>,
    _process: Process,
}

impl Keeper {
    fn start(unit: &Unit) -> Result<Self> {
        let mut command = fief()?;
        command.args(["manage", "--keep", "--json", "--follow", "--container", &policy::home(0)]).arg(unit.cgroup());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        process.ask_first(DOWN);
        let lines = BufReader::new(process.child().stdout.take().expect("it was piped")).lines();
        let (tells, told) = channel();
        // ends with the process
        std::thread::spawn(move || lines.map_while(|line| line.ok()).try_for_each(|_| tells.send(Instant::now())));
        Ok(Self { told, _process: process })
    }

    fn has_it(&self) -> Result<Instant> {
        let told = self.told.recv_timeout(SOON);
        told.map_err(|_| Error::failed(format!("fief manage --keep did not have the unit within {SOON:?}")))
    }
}

/// From the making of the unit's new cgroup, ms.
pub fn measure(plan: &Plan, topology: &Topology, progress: &mut Progress) -> Result<Vec<f64>> {
    let policy = PolicyFile::new(&policy::text(0))?;
    let installation = Installation::apply_in(&policy, &topology.server)?;
    let mut unit = Unit::start(topology, Start::Plain)?;
    let keeper = Keeper::start(&unit)?;
    keeper.has_it().context("the first time")?;
    let crowd = Crowd::start(topology)?;
    std::thread::sleep(plan.rest);
    let mut all = Vec::new();
    for number in 1..=plan.adoptions {
        progress.step(&format!("restart {number} of a unit that is kept"))?;
        unit.restart()?;
        all.push(keeper.has_it()?.saturating_duration_since(unit.made()).as_secs_f64() * 1e3);
        std::thread::sleep(plan.rest);
    }
    crowd.end()?;
    drop((keeper, unit));
    installation.down()?;
    Ok(all)
}
