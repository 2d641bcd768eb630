// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which clients, and which networks of clients, cost most CPU time while this command looked, and since that is counted.

use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde::Serialize;

use crate::cli::Explain;
use crate::clock;
use crate::failure::{Failure, Result};
use crate::look::Reader;
use crate::output::{Align, Output, Table};
use crate::quantity::{counted, duration, part};
use fief_control::{COSTS_GO_ON, Costliest, Costly, Ranking};
use ipnet::IpNet;

/// How long one look lasts, if nothing else is said.
const LASTS: Duration = Duration::from_secs(1);

pub fn run(args: &Explain, output: &mut Output) -> Result<()> {
    let reader = Reader::open()?;
    let lasts = args.interval.unwrap_or(LASTS);
    let looks = match args.interval {
        None => Some(1),
        Some(_) => args.count.map(NonZeroU32::get),
    };
    let most = args.most.get() as usize;
    let (ended, end) = channel();
    ctrlc::set_handler(move || {
        let _ = ended.send(());
    })
    .map_err(|error| Failure::new(format!("cannot wait for Ctrl-C: {error}")))?;
    let mut before = reader.costs(lasts)?;
    for round in 1_u32.. {
        if !goes_on(&end, lasts, || reader.costs(lasts).map(drop))? {
            break;
        }
        let now = reader.costs(lasts)?;
        let costliest = now.since(&before);
        before = now;
        if round > 1 && !args.json {
            output.line("")?;
        }
        match args.json {
            true => objects(&costliest, most).iter().try_for_each(|object| output.json(object)),
            false => output.text(page(&costliest, most)),
        }?;
        output.flush()?;
        if Some(round) == looks {
            break;
        }
    }
    Ok(())
}

/// Waits for as long, and reads in between: the count ends some time after a reading, which the agent's are too. False: Ctrl-C.
fn goes_on(end: &Receiver<()>, lasts: Duration, read: impl Fn() -> Result<()>) -> Result<bool> {
    let mut left = lasts;
    while left > COSTS_GO_ON / 2 {
        if end.recv_timeout(COSTS_GO_ON / 2).is_ok() {
            return Ok(false);
        }
        left -= COSTS_GO_ON / 2;
        read()?;
    }
    Ok(end.recv_timeout(left).is_err())
}

/// The names are a promise to programs; `docs/cli.md` lists them.
#[derive(Serialize)]
#[serde(untagged)]
enum Object {
    Cost {
        record: &'static str,
        kind: &'static str,
        client: String,
        from_ns: u64,
        to_ns: u64,
        charged_ns: u64,
        receive_ns: u64,
        since_ns: u64,
        all_charged_ns: u64,
        all_receive_ns: u64,
        at_most_more_ns: u64,
    },
    All {
        record: &'static str,
        kind: &'static str,
        from_ns: u64,
        to_ns: u64,
        since_ns: u64,
        charged_ns: u64,
        all_charged_ns: u64,
        others_at_most_ns: u64,
        all_others_at_most_ns: u64,
    },
}

fn objects(costliest: &Costliest, most: usize) -> Vec<Object> {
    let (from_ns, to_ns) = (costliest.from_ns, costliest.to_ns);
    let kinds = [("client", &costliest.clients), ("network", &costliest.networks)];
    kinds
        .into_iter()
        .flat_map(|(kind, ranking)| {
            let cost = move |one: &Costly| Object::Cost {
                record: "cost",
                kind,
                client: name(one.from),
                from_ns,
                to_ns,
                charged_ns: one.ns,
                receive_ns: one.receive_ns,
                since_ns: one.all.since_ns,
                all_charged_ns: one.all.ns,
                all_receive_ns: one.all.receive_ns,
                at_most_more_ns: one.before_ns,
            };
            let (others, all_others) = others(ranking, most);
            let all = Object::All {
                record: "costs",
                kind,
                from_ns,
                to_ns,
                since_ns: costliest.since_ns,
                charged_ns: ranking.ns,
                all_charged_ns: ranking.all_ns,
                others_at_most_ns: others,
                all_others_at_most_ns: all_others,
            };
            ranking.costly.iter().take(most).map(cost).chain([all]).collect::<Vec<_>>()
        })
        .collect()
}

/// What a client that is not shown cost at most: in the interval, and in all.
fn others(ranking: &Ranking, most: usize) -> (u64, u64) {
    let rest = ranking.costly.get(most..).unwrap_or_default();
    let largest = |ns: fn(&Costly) -> u64| rest.iter().map(ns).max().unwrap_or(0);
    (ranking.left_out_ns + largest(|one| one.ns), ranking.left_out_all_ns + largest(|one| one.all.ns))
}

/// An address, or the prefix.
fn name(from: IpNet) -> String {
    match from {
        IpNet::V4(net) if net.prefix_len() == 32 => net.addr().to_string(),
        net => net.to_string(),
    }
}

fn page(costliest: &Costliest, most: usize) -> String {
    let head = format!(
        "{} clients cost {} of CPU time in {}, {} in the {} that they are counted\n",
        clock::wall_second(costliest.to_ns),
        duration(costliest.clients.ns),
        duration(costliest.to_ns.saturating_sub(costliest.from_ns)),
        duration(costliest.clients.all_ns),
        duration(costliest.to_ns.saturating_sub(costliest.since_ns)),
    );
    let (clients, networks) = (table("CLIENT", &costliest.clients, most), table("NETWORK", &costliest.networks, most));
    format!("{head}{clients}{networks}")
}

fn table(title: &'static str, ranking: &Ranking, most: usize) -> String {
    if ranking.costly.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("TIME", Align::Right),
        ("%", Align::Right),
        ("RECEIVE", Align::Right),
        ("IN ALL", Align::Right),
        (title, Align::Left),
    ]);
    for one in ranking.costly.iter().take(most) {
        let fraction = one.ns as f64 / ranking.ns.max(1) as f64;
        table.push([duration(one.ns), part(fraction), duration(one.receive_ns), duration(one.all.ns), name(one.from)]);
    }
    let (others, all_others) = others(ranking, most);
    let has_others = ranking.costly.len() > most || ranking.left_out_all_ns > 0;
    let rest = match has_others {
        true => format!(
            "{} remembered; any other cost {} at most, {} in all\n",
            counted(ranking.costly.len(), &title.to_lowercase()),
            duration(others),
            duration(all_others)
        ),
        false => String::new(),
    };
    format!("{table}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_control::ClientCost;

    fn costliest() -> Costliest {
        let cost = |from: &str, ns, all_ns| Costly {
            from: from.parse().expect("a prefix"),
            ns,
            receive_ns: ns / 4,
            all: ClientCost {
                from: from.parse().expect("a prefix"),
                ns: all_ns,
                receive_ns: all_ns / 4,
                since_ns: 3,
                forgotten_ns: 0,
            },
            before_ns: 9,
        };
        let ranking = |costly: Vec<Costly>| Ranking {
            ns: 1_000_000_000,
            all_ns: 9_000_000_000,
            left_out_ns: 1_000_000,
            left_out_all_ns: 2_000_000,
            costly,
        };
        Costliest {
            from_ns: 10_000_000_000,
            to_ns: 11_000_000_000,
            since_ns: 2_000_000_000,
            clients: ranking(vec![
                cost("192.0.2.7/32", 750_000_000, 800_000_000),
                cost("2001:db8:0:1::/64", 200_000_000, 3_000_000_000),
                cost("192.0.2.9/32", 5_000_000, 6_000_000),
            ]),
            networks: ranking(vec![cost("192.0.2.0/24", 755_000_000, 806_000_000)]),
        }
    }

    #[test]
    fn a_page_has_the_costliest_first_and_says_what_others_cost_at_most() {
        let page = page(&costliest(), 2);
        let lines: Vec<_> = page.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(
            lines[0]
                .ends_with("clients cost 1.000 s of CPU time in 1.000 s, 9.000 s in the 9.000 s that they are counted"),
            "{page}"
        );
        assert!(lines[2].starts_with("750 ms 75.0 ") && lines[2].ends_with("800 ms 192.0.2.7"), "{page}");
        assert!(lines[3].ends_with("3.000 s 2001:db8:0:1::/64"), "{page}");
        assert!(lines[4].contains("6 ms at most, 8 ms in all"), "{page}");
        assert!(!page.contains("192.0.2.9"), "{page}");
        assert!(page.contains("192.0.2.0/24"), "{page}");
    }

    #[test]
    fn every_name_of_the_objects_is_in_the_documentation() {
        let page = include_str!("../../../../../docs/cli.md");
        for object in objects(&costliest(), 2) {
            let object = serde_json::to_value(&object).expect("texts and numbers");
            for name in object.as_object().expect("an object").keys() {
                assert!(page.contains(&format!("`{name}`")), "{name} is missing");
            }
        }
    }
}
