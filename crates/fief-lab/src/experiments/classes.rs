// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures 7 and 8 and Table 3 of the overload paper: three classes of clients before 50 blocking workers.
//!
//! The classes have equally many clients and different priority, so what they get differs only by the order in which
//! connections leave the listen queue. Below as many clients as workers there is no queue and no order. Then the low class
//! alone grows; and in the end the high class is limited at its SYNs, so that the others get what it leaves.

mod outcome;

use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::experiments::overload::{self, Crowd, PORT, Plan, Program, Site, Step, Way};
use fief_testkit::{Client, Family, Topology};

/// In each class, where the server is saturated and every worker could serve the high class.
const MANY: usize = 80;
/// High clients while the low class grows.
const FEW: usize = 10;
/// The paper's clients of the limited high class, and of each other class.
const LIMITED: (usize, usize) = (150, 30);
/// Limits of the high class: rate and burst.
const RATES: [u32; 2] = [300, 200];
/// Who heard nothing asks again after this; the kernel would only send the SYN again after a second.
const PATIENCE_MS: u64 = 250;
const CLASSES: [Client; 3] = [Client::High, Client::Middle, Client::Low];

fn plan(quick: bool) -> Plan {
    match quick {
        _ if is_least() => Plan { rounds: 1, seconds: 0.2, warm_up: 0.1, retries: 0 },
        true => Plan { rounds: 3, seconds: 2.0, warm_up: 0.5, retries: 0 },
        false => Plan { rounds: 5, seconds: 2.0, warm_up: 0.5, retries: 2 },
    }
}

/// What is measured in which numbers of clients.
#[derive(Clone, Copy, Debug)]
struct Loads {
    equal: &'static [usize],
    /// Of the low class: fewer clients than workers in all, so that nobody queues; and from where all workers are busy.
    growing: &'static [usize],
    rates: &'static [u32],
}

fn loads(quick: bool) -> Loads {
    match quick {
        true => Loads { equal: &[MANY], growing: &[30, 60, 240], rates: &RATES[..1] },
        false => {
            Loads { equal: &[5, 10, 20, 30, 40, 60, MANY, 150], growing: &[0, 30, 60, 120, 240, 480], rates: &RATES }
        }
    }
}

fn equal(clients: usize) -> String {
    format!("{clients} clients in each class")
}

fn growing(clients: usize) -> String {
    format!("{FEW} high and {clients} low clients")
}

fn limited(rate: u32) -> String {
    format!("high limited to {rate}")
}

const LISTENERS: &str = "classes = \"listeners\"";
const QUEUE: &str = "queue = true";

/// The low class is served when nothing else waits; the middle one gets a turn now and then. `reach`: how they reach the server.
fn policy(reach: &str, high: Option<u32>) -> String {
    let limit = high.map(|rate| format!("syn = {{ rate = {rate}, burst = {rate} }}\n")).unwrap_or_default();
    let [high, middle, low] = CLASSES.map(|class| class.prefix(Family::V4));
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.high]\ncpu.priority = 200\n\n[container.middle]\n\n\
         [container.low]\ncpu.priority = 0\n\n[listener.web]\naddress = \"0.0.0.0:{PORT}\"\n{reach}\n\n\
         [[listener.web.client]]\nfrom = [\"{high}\"]\ncontainer = \"high\"\n{limit}\n\
         [[listener.web.client]]\nfrom = [\"{middle}\"]\ncontainer = \"middle\"\n\n\
         [[listener.web.client]]\nfrom = [\"{low}\"]\ncontainer = \"low\"\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"low\"\n"
    )
}

fn ways(loads: &Loads) -> Vec<Way> {
    let site = |policy| Site { program: Program::Workers, policy };
    let crowd = |class, clients| Crowd::closed(class, "/item", clients);
    let equally = || {
        let step = |&clients: &usize| Step::new(equal(clients), CLASSES.map(|class| crowd(class, clients)).to_vec());
        loads.equal.iter().map(step).collect::<Vec<_>>()
    };
    let grown = || {
        let step = |&clients: &usize| {
            let mut crowds = vec![crowd(Client::High, FEW)];
            crowds.extend((clients > 0).then(|| crowd(Client::Low, clients)));
            Step::new(growing(clients), crowds)
        };
        loads.growing.iter().map(step).collect::<Vec<_>>()
    };
    let steps = || equally().into_iter().chain(grown()).collect::<Vec<_>>();
    let mut ways = vec![
        Way { name: "plain".to_owned(), title: "workers".to_owned(), site: site(None), steps: steps() },
        Way {
            name: "strict".to_owned(),
            title: "workers under Fief".to_owned(),
            site: site(Some(policy(LISTENERS, None))),
            steps: steps(),
        },
        Way {
            name: "queue".to_owned(),
            title: "workers under Fief's queue".to_owned(),
            site: site(Some(policy(QUEUE, None))),
            steps: steps(),
        },
    ];
    ways.extend(loads.rates.iter().map(|&rate| {
        let (high, others) = LIMITED;
        let crowds = vec![
            crowd(Client::High, high).impatient(PATIENCE_MS),
            crowd(Client::Middle, others),
            crowd(Client::Low, others),
        ];
        // The bucket is full at first: its burst has to be used up before the rate shows.
        let step = Step::new(limited(rate), crowds).slow(4.0, 2.0);
        Way {
            name: limited(rate),
            title: format!("workers under Fief, {}", limited(rate)),
            site: site(Some(policy(LISTENERS, Some(rate)))),
            steps: vec![step],
        }
    }));
    ways
}

pub fn run(quick: bool) -> Result<Outcome> {
    let loads = loads(quick);
    let topology = Topology::new()?;
    let (ways, notes) = overload::usable(ways(&loads));
    let sample = overload::run("classes", &plan(quick), &topology, &ways)?;
    Ok(outcome::of(&sample, &loads, notes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::overload::WORKERS;

    #[test]
    fn every_worker_could_serve_the_high_class() {
        assert!(MANY > WORKERS && LIMITED.0 > WORKERS);
    }

    #[test]
    fn without_a_queue_is_fewer_clients_than_workers() {
        let fewest = loads(true).growing[0];
        assert!(FEW + fewest < WORKERS && FEW + loads(true).growing[1] > WORKERS);
    }

    #[test]
    fn the_others_leave_workers_to_the_low_class() {
        assert!(LIMITED.1 < WORKERS);
    }
}
