// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a port of the loopback loses that no listener names, while a queue is in force in its network namespace.
//!
//! Where a policy names no interfaces, a small program at the loopback notes the machine's own calls of guarded ports. Where it names lo,
//! since a server behind a local proxy has its queue there, every packet of the loopback passes the door and the queue's clock, whoever's it is. The
//! stranger is measured beside both, and beside empty programs at the places of each.

use super::Plan;
use super::case::Connections;
use super::way;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::load::Load;
use crate::progress::Progress;
use crate::sides::{Setting, Side, Sides};
use crate::stage::{LASTING, start_nginx};
use crate::statistics::{median, ratios};
use crate::table::{Table, number};
use fief_testkit::{Client, NginxConfig, Topology};
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// No listener's.
const PORT: u16 = 8081;
const CLIENTS: usize = 20;
/// Rounds of this are short, and ratios near 1 want many.
const TIMES: usize = 4;
const SECONDS: f64 = 0.4;

/// Adds what came out to the outcome.
pub fn run(plan: &Plan, topology: &Topology, outcome: &mut Outcome) -> Result<()> {
    let (rounds, seconds) = if plan.is_tried() { (1, plan.seconds) } else { (plan.rounds * TIMES, SECONDS) };
    let sides = Sides::new(vec![
        Setting::new("Fief's queue", &way::policy("queue = true"), &topology.server, None)?,
        Setting::new("Fief's queue at the loopback", &way::policy_at_loopback("queue = true"), &topology.server, None)?,
    ]);
    let config = NginxConfig::listening(PORT, &[&format!("127.0.0.1:{PORT}")], 1, LASTING)?;
    let _nginx = start_nginx(topology, config, None)?;
    let mut progress = Progress::new("queue, loopback", rounds * sides.all().len());
    let measured = sides.rounds(rounds, "a port without a listener", &mut progress, |_, _| {
        let mut rates = [0.0; Connections::ALL.len()];
        for (connections, rate) in Connections::ALL.into_iter().zip(&mut rates) {
            let load = Load { seconds, warm_up: seconds / 4.0, close: connections.close(), ..local() };
            *rate = load.start(&topology.server)?.finish()?.per_second();
        }
        Ok(rates)
    })?;
    let mut table = Table::new(
        "loopback, a port that no listener names, beside a queue in force: requests a second".to_owned(),
        &["way", Connections::Each.title(), Connections::Persistent.title()],
    );
    for side in sides.all() {
        let cells = [0, 1].map(|place| {
            let all: Vec<f64> = measured.of(side).iter().map(|rates| rates[place]).collect();
            number(median(&all))
        });
        table.row(std::iter::once(sides.title(side)).chain(cells));
        outcome.measurements.extend(measured.of(side).iter().enumerate().map(|(round, rates)| {
            json!({
                "experiment": "queue", "part": "loopback", "way": sides.title(side), "round": round,
                "requests_per_second": rates[0], "requests_per_second_persistent": rates[1],
            })
        }));
    }
    table.note(sides.places());
    outcome.tables.push(table);
    for (place, connections) in Connections::ALL.into_iter().enumerate() {
        let of = |side: Side| measured.of(side).iter().map(|rates| rates[place]).collect::<Vec<_>>();
        let load = format!("loopback, {CLIENTS} closed-loop clients of nginx on another core, {}", connections.title());
        for (word, side) in
            [("", Side::With(0)), ("_floor", Side::Floor(0)), ("_door", Side::With(1)), ("_door_floor", Side::Floor(1))]
        {
            let name = format!("lo_stranger_rate{word}{}", connections.suffix());
            let value = median(&ratios(&of(side), &of(Side::Without)));
            let figure = match side {
                Side::With(_) => outcome.figures.must(name, value, Bound::AtLeast(0.99)),
                _ => outcome.figures.add(name, value),
            };
            let metric =
                format!("requests a second at a port without a listener, {}, of those without", sides.title(side));
            figure.of(metric, "ratio", load.clone());
        }
    }
    Ok(())
}

/// Clients within the server's namespace.
fn local() -> Load {
    let here = Ipv4Addr::LOCALHOST;
    Load { server: SocketAddr::new(here.into(), PORT), first: IpAddr::V4(here), ..Load::of(Client::Low, 20, CLIENTS) }
}
