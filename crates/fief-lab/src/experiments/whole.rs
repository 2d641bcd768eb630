// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `whole`: what everything together costs an unmodified nginx: the shim, the front door with rules of requests, charging and
//! following sockets; by the number of clients, against the same nginx without.
//!
//! Both classes of clients have the same priority, so nobody is served before others, and what differs is cost. The floor is
//! the nginx without, with empty programs where Fief's are; it has no shim.

mod cpu;
mod outcome;

use crate::command::{DOWN, PolicyFile};
use crate::effort::is_least;
use crate::error::{Error, Result};
use crate::experiments::Outcome;
use crate::progress::Progress;
use crate::sample::{Sample, WAYS};
use crate::sides::{empty_programs, places};
use crate::stage::{LASTING, start_nginx};
use fief_bpf::floor::{Floor, Place};
use fief_testkit::{Cgroup, Nginx, NginxConfig, Topology, pin_command};
use serde_json::Value;

const PORT: u16 = 80;
const PATH: &str = "/page.html";
/// Numbers of closed-loop clients.
const LOADS: [usize; 5] = [1, 5, 20, 40, 100];

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Plain,
    Floor,
    Whole,
    Queue,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Plain, Way::Floor, Way::Whole, Way::Queue];

    pub fn title(self) -> &'static str {
        match self {
            Way::Plain => "plain nginx",
            Way::Floor => "empty programs",
            Way::Whole => "Fief, everything on",
            Way::Queue => "Fief, with the queue",
        }
    }

    /// How the classes reach nginx under Fief.
    fn reach(self) -> Option<&'static str> {
        match self {
            Way::Plain | Way::Floor => None,
            Way::Whole => Some("classes = \"listeners\""),
            Way::Queue => Some("queue = true"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    rounds: usize,
    seconds: f64,
    /// Of the stage without wake-ups, and batches of 5 ms in each.
    stage_rounds: usize,
    batches: usize,
}

impl Plan {
    fn of(quick: bool) -> Plan {
        match quick {
            _ if is_least() => Plan { rounds: 1, seconds: 0.1, stage_rounds: 1, batches: 3 },
            true => Plan { rounds: 3, seconds: 1.5, stage_rounds: 3, batches: 200 },
            false => Plan { rounds: 11, seconds: 1.5, stage_rounds: 15, batches: 200 },
        }
    }
}

/// One sample with where it belongs.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub way: Way,
    pub clients: usize,
    /// Among [`WAYS`].
    pub manner: usize,
    pub sample: Sample,
}

pub fn run(quick: bool) -> Result<Outcome> {
    for reach in Way::ALL.into_iter().filter_map(Way::reach) {
        crate::command::can_run_with(&policy(reach))?;
    }
    let plan = Plan::of(quick);
    let steps = Way::ALL.len() * (plan.rounds * LOADS.len() * WAYS.len() + plan.stage_rounds);
    let mut progress = Progress::new("whole", steps);
    let (measured, mut measurements) = by_clients(&plan, &mut progress)?;
    let mut outcome = outcome::of(&measured, plan.rounds);
    outcome.measurements.append(&mut measurements);
    cpu::run(&plan, &mut progress, &mut outcome)?;
    Ok(outcome)
}

fn by_clients(plan: &Plan, progress: &mut Progress) -> Result<(Vec<Measured>, Vec<Value>)> {
    let topology = Topology::new()?;
    let stand = Stand::new(&topology)?;
    let (mut measured, mut measurements) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        for turn in 0..Way::ALL.len() {
            let way = Way::ALL[(round + turn) % Way::ALL.len()];
            let running = stand.start(way)?;
            let server = topology.server.pids();
            for clients in LOADS {
                for (manner, how) in WAYS.iter().enumerate() {
                    progress.step(&format!(
                        "round {}, {}, {clients} clients, {}",
                        round + 1,
                        way.title(),
                        how.manner.title()
                    ))?;
                    let mut load = (how.load)(plan.seconds, PORT, PATH);
                    load.clients = clients;
                    let sample = Sample::take(&topology, &server, &load)?;
                    let mut object = sample.to_json("whole", way.title(), round);
                    object["clients"] = clients.into();
                    object["how"] = how.manner.title().into();
                    measurements.push(object);
                    measured.push(Measured { way, clients, manner, sample });
                }
            }
            running.stop()?;
        }
    }
    Ok((measured, measurements))
}

/// What the ways are made of.
struct Stand<'a> {
    topology: &'a Topology,
    cgroup: Cgroup,
    places: Vec<Place>,
}

/// Ends with its guard.
struct Running {
    nginx: Option<Nginx>,
    is_asked: bool,
    _floor: Option<Floor>,
}

impl<'a> Stand<'a> {
    fn new(topology: &'a Topology) -> Result<Stand<'a>> {
        let places = find_places(topology)?;
        Ok(Stand { topology, cgroup: Cgroup::new("nginx")?, places })
    }

    fn start(&self, way: Way) -> Result<Running> {
        if let Some(reach) = way.reach() {
            return under_fief(self.topology, reach);
        }
        let nginx = Some(start_nginx(self.topology, config()?, Some(&self.cgroup))?);
        let floor = match way {
            Way::Floor => Some(empty_programs(&self.topology.server, &self.places, Some(self.cgroup.path()))?),
            _ => None,
        };
        Ok(Running { nginx, is_asked: false, _floor: floor })
    }
}

fn under_fief(topology: &Topology, reach: &str) -> Result<Running> {
    let config = config()?;
    let policy = PolicyFile::new(&policy(reach))?;
    let mut command = policy.run(&topology.server, "nginx", config.arguments())?;
    command.stderr(std::process::Stdio::null());
    pin_command(&mut command, Topology::server_cpu());
    let nginx = Nginx::start_command(&topology.server, command, config)?;
    Ok(Running { nginx: Some(nginx), is_asked: true, _floor: None })
}

/// Those of class listeners: the queue's egress hook and clock are part of what it costs.
fn find_places(topology: &Topology) -> Result<Vec<Place>> {
    let running = under_fief(topology, "classes = \"listeners\"")?;
    let places = places()?;
    running.stop()?;
    Ok(places)
}

fn config() -> Result<NginxConfig> {
    let config = NginxConfig::listening(PORT, &[&PORT.to_string()], 1, LASTING)?;
    let page = |name: &str| config.folder().join(name);
    std::fs::copy(page("1k"), page("page.html")).map_err(|error| Error::failed(format!("make a page: {error}")))?;
    Ok(config)
}

impl Running {
    /// An error if Fief did not come down in order.
    fn stop(mut self) -> Result<()> {
        let nginx = self.nginx.take();
        match nginx.is_none_or(|nginx| !self.is_asked || nginx.stop(DOWN).is_some()) {
            true => Ok(()),
            false => Err(Error::failed(format!("fief run did not end within {DOWN:?}"))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A killed `fief run` would leave its programs in the kernel, so it is asked first.
        if let Some(nginx) = self.nginx.take()
            && self.is_asked
        {
            nginx.stop(DOWN);
        }
    }
}

/// Classes by the client's address, which `reach` the server in one way or the other, and rules of requests at the door; the load's requests match the
/// last rule.
fn policy(reach: &str) -> String {
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.web]\n\n[container.\"web/gold\"]\n\n[container.\"web/browse\"]\n\n\
         [container.\"web/cgi\"]\n\n[front]\ninterfaces = [\"{}\"]\n\n\
         [listener.web]\naddress = \"0.0.0.0:{PORT}\"\nadmit = true\n{reach}\n\
         isolate = {{ above = 1000, for = \"10s\" }}\nproven = {{ rate = 100000, burst = 10000 }}\n\n\
         [[listener.web.client]]\nfrom = [\"10.77.2.0/28\"]\ncontainer = \"web/gold\"\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n\n\
         [[listener.web.request]]\nmethod = \"POST\"\ncontainer = \"web/cgi\"\n\n\
         [[listener.web.request]]\npath = [\"/cgi-bin/*\", \"*.php\"]\ncontainer = \"web/cgi\"\n\
         rate = {{ per-second = 100, burst = 10 }}\n\n\
         [[listener.web.request]]\nheader = {{ \"user-agent\" = \"Bad*\" }}\nrefuse = \"503\"\n",
        Topology::SERVER
    )
}
