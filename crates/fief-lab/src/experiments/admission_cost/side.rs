// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What admission costs a server: the policy that is in force, and what its figures promise. nginx itself is not managed.

use super::{PORT, Plan, put_page};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::progress::Progress;
use crate::sides::{Promise, Setting, Sides, Trial, cpu, throughput};
use crate::stage::Stage;
use fief_testkit::{NetNs, Nginx, Topology};

const ABOUT: &str = "nginx not managed";

/// CPU of a request, server and client on one core.
pub fn cpu(plan: &Plan, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let mut stage = Stage::start("/page.html", None, put_page)?;
    let topology = stage.topology();
    let sides = sides(&topology.server)?;
    let promise = Promise {
        name: "admission_cpu",
        added: Some("admission_added_ns"),
        least: [Some(0.96); 2],
        least_of_floor: [None; 2],
    };
    let plan = cpu::Plan { rounds: plan.stage_rounds, batches: plan.batches };
    let trial = Trial { sides: &sides, about: ABOUT, promises: &[promise] };
    cpu::run(plan, &mut stage, trial, progress, outcome, |_| Ok(()))?;
    stage.stop()
}

/// Requests a second, the clients on the other core: every handshake held back until the first bytes, every request ruled.
pub fn throughput(
    plan: &Plan,
    topology: &Topology,
    nginx: &Nginx,
    progress: &mut Progress,
    outcome: &mut Outcome,
) -> Result<()> {
    let sides = sides(&topology.server)?;
    let promise = Promise { name: "throughput", added: None, least: [Some(0.9); 2], least_of_floor: [Some(0.98); 2] };
    let plan = throughput::Plan { rounds: plan.pairs, seconds: plan.load_seconds, port: PORT, path: "/page.html" };
    let trial = Trial { sides: &sides, about: ABOUT, promises: &[promise] };
    throughput::run(plan, (topology, &nginx.workers()), trial, progress, outcome, |_| Ok(()))
}

fn sides(servers: &NetNs) -> Result<Sides<'_>> {
    Ok(Sides::new(vec![Setting::new("with admission", &policy(), servers, None)?]))
}

/// Rules as an operator has them; the load's requests match the last one.
fn policy() -> String {
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.web]\n\n[container.\"web/gold\"]\n\n[container.\"web/browse\"]\n\n\
         [container.\"web/cgi\"]\n\n[front]\ninterfaces = [\"{}\"]\n\n\
         [listener.web]\naddress = \"0.0.0.0:{}\"\nadmit = true\nclasses = \"shared\"\n\
         isolate = {{ above = 1000, for = \"10s\" }}\nproven = {{ rate = 100000, burst = 10000 }}\n\n\
         [[listener.web.client]]\nfrom = [\"10.77.1.0/24\"]\ncontainer = \"web/gold\"\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n\n\
         [[listener.web.request]]\nmethod = \"POST\"\ncontainer = \"web/cgi\"\n\n\
         [[listener.web.request]]\npath = [\"/cgi-bin/*\", \"*.php\"]\ncontainer = \"web/cgi\"\n\
         rate = {{ per-second = 100, burst = 10 }}\n\n\
         [[listener.web.request]]\nheader = {{ \"user-agent\" = \"Bad*\" }}\nrefuse = \"503\"\n\n\
         [[listener.web.request]]\npath = \"/page.*\"\ncontainer = \"web/browse\"\n",
        Topology::SERVER,
        PORT
    )
}
