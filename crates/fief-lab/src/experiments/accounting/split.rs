// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How nginx's time is split between two classes, against ground truth: what each class costs alone, by the kernel's clocks.
//!
//! One class gets a page that nginx compresses anew for each request, the other a file by sendfile. Alone, the CPU time of
//! nginx and of the receiving thread by the scheduler's clock gives a request's cost. In the mix, requests times costs give
//! the share that each class must have. Fief is in force all the time, so its own cost is on both sides.

use super::Plan;
use crate::command::{PolicyFile, usage};
use crate::cpu_time::cpu_seconds;
use crate::error::{Context, Error, Result};
use crate::experiments::Outcome;
use crate::experiments::overload::text;
use crate::figures::Bound;
use crate::installation::Installation;
use crate::load::{Load, Seen};
use crate::plot::Plot;
use crate::progress::Progress;
use crate::stage::start_nginx;
use crate::statistics::{median, ratios};
use crate::table::{Table, number};
use fief_testkit::{Cgroup, Client, NginxConfig, Topology, napi_threads};
use serde_json::json;
use std::time::Duration;

const PORT: u16 = 80;
const POLICY: &str = "version = 1\n\n[container.web]\n\n[container.\"web/packed\"]\n\n[container.\"web/sent\"]\n\n\
                      [listener.web]\naddress = \"0.0.0.0:80\"\nclasses = \"shared\"\n\n\
                      [[listener.web.client]]\nfrom = [\"10.77.1.0/24\"]\ncontainer = \"web/packed\"\n\n\
                      [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/sent\"\n";
/// Some 300 us of compressing, and a file of the size of a small picture.
const PAGE: usize = 40_000;
const FILE: usize = 16_384;
/// In all, alone as in the mix, so that the server finds as many events at once. The dear class has fewer, so that neither
/// has most of the time.
const CLIENTS: usize = 40;
const MIXED: [usize; 2] = [10, 30];
/// What was begun ends within it, and its packets are received.
const SETTLE: Duration = Duration::from_millis(50);

/// One of the classes, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Packed,
    Sent,
    Both,
}

const TURNS: [Turn; 3] = [Turn::Packed, Turn::Sent, Turn::Both];

impl Turn {
    fn title(self) -> &'static str {
        match self {
            Turn::Packed => "gzip alone",
            Turn::Sent => "sendfile alone",
            Turn::Both => "both",
        }
    }

    fn clients(self) -> [usize; 2] {
        match self {
            Turn::Packed => [CLIENTS, 0],
            Turn::Sent => [0, CLIENTS],
            Turn::Both => MIXED,
        }
    }
}

/// Seconds and requests.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    requests: [f64; 2],
    /// By the scheduler's clock: nginx and the receiving thread.
    threads: f64,
    receive: f64,
    /// By Fief, of each class.
    charged_threads: [f64; 2],
    charged: [f64; 2],
}

/// Of one round.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// Parts of the time of both classes that the gzip class has: must have, and by Fief.
    truth: f64,
    fief: f64,
    thread_truth: f64,
    thread_fief: f64,
    /// Time charged to both classes, of what the scheduler saw.
    reached: f64,
}

pub fn steps(plan: &Plan) -> usize {
    plan.split_rounds * TURNS.len()
}

pub fn run(plan: &Plan, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let topology = Topology::new()?;
    let cgroup = Cgroup::new("nginx")?;
    let nginx = start_nginx(&topology, config()?, Some(&cgroup))?;
    let policy = PolicyFile::new(POLICY)?;
    let installation = Installation::apply_in(&policy, &topology.server)?;
    installation.manage(cgroup.path(), "web", true)?;
    let mut splits = Vec::new();
    for round in 0..plan.split_rounds {
        let mut taken = [Taken::default(); 3];
        for turn in 0..TURNS.len() {
            let place = (round + turn) % TURNS.len();
            progress.step(&format!("nginx's split by class, {}", TURNS[place].title()))?;
            taken[place] = take(plan, &topology, &nginx.workers(), TURNS[place])?;
            outcome.measurements.push(taken[place].to_json(TURNS[place], round));
        }
        splits.push(Split::of(&taken));
    }
    installation.down()?;
    report(&splits, outcome);
    Ok(())
}

fn config() -> Result<NginxConfig> {
    let more = "sendfile on; gzip on; gzip_http_version 1.0; gzip_types text/plain; gzip_min_length 2000;\n\
                location /file { gzip off; }\n";
    let config = NginxConfig::listening(PORT, &[&PORT.to_string()], 1, more)?;
    let put = |name: &str, bytes: String| std::fs::write(config.folder().join(name), bytes).context("make a page");
    put("page", text(PAGE))?;
    put("file", "x".repeat(FILE))?;
    Ok(config)
}

fn take(plan: &Plan, topology: &Topology, workers: &[u32], turn: Turn) -> Result<Taken> {
    let receivers = napi_threads(&topology.server, Topology::SERVER)?;
    let look = || -> Result<Taken> {
        let used = usage()?;
        let of = |class: &str| {
            let found = used.iter().find(|one| one.container == class);
            found.ok_or_else(|| Error::failed(format!("fief usage does not list {class}")))
        };
        let classes = [of("web/packed")?, of("web/sent")?];
        Ok(Taken {
            requests: [0.0; 2],
            threads: cpu_seconds(workers),
            receive: cpu_seconds(&receivers),
            charged_threads: classes.map(|one| one.thread_ns as f64 / 1e9),
            charged: classes.map(|one| (one.thread_ns + one.receive_ns) as f64 / 1e9),
        })
    };
    let before = look()?;
    let kinds = [(Client::High, "/page"), (Client::Low, "/file")];
    let loads = kinds.into_iter().zip(turn.clients()).map(|((class, path), clients)| {
        // all requests count, as all of the server's time does
        let load = Load { path: path.to_owned(), seconds: plan.split_seconds, ..Load::of(class, 20, clients) };
        if clients > 0 { load.start(&topology.clients).map(Some) } else { Ok(None) }
    });
    let loads: Vec<_> = loads.collect::<Result<_>>()?;
    let mut requests = [0.0; 2];
    for (requests, load) in requests.iter_mut().zip(loads) {
        let seen = load.map_or(Ok(Seen::default()), |load| load.finish())?;
        if seen.errors > seen.latency.count() / 100 {
            return Err(Error::failed(format!("{} requests failed where a class's cost is measured", seen.errors)));
        }
        *requests = seen.latency.count() as f64;
    }
    std::thread::sleep(SETTLE);
    let after = look()?;
    let grown = |of: fn(&Taken) -> [f64; 2]| [0, 1].map(|place| of(&after)[place] - of(&before)[place]);
    Ok(Taken {
        requests,
        threads: after.threads - before.threads,
        receive: after.receive - before.receive,
        charged_threads: grown(|one| one.charged_threads),
        charged: grown(|one| one.charged),
    })
}

impl Taken {
    fn to_json(self, turn: Turn, round: usize) -> serde_json::Value {
        json!({
            "experiment": "accounting", "part": "split", "what": turn.title(), "round": round,
            "requests": self.requests, "nginx_s": self.threads, "receive_s": self.receive,
            "charged_thread_s": self.charged_threads, "charged_s": self.charged,
        })
    }
}

impl Split {
    /// In the order of [`TURNS`].
    fn of([packed, sent, both]: &[Taken; 3]) -> Split {
        let truth = |time: fn(&Taken) -> f64| {
            let cost = [time(packed) / packed.requests[0], time(sent) / sent.requests[1]];
            part([0, 1].map(|class| both.requests[class] * cost[class]))
        };
        Split {
            truth: truth(|one| one.threads + one.receive),
            fief: part(both.charged),
            thread_truth: truth(|one| one.threads),
            thread_fief: part(both.charged_threads),
            reached: (both.charged[0] + both.charged[1]) / (both.threads + both.receive),
        }
    }
}

fn part(of: [f64; 2]) -> f64 {
    of[0] / (of[0] + of[1])
}

fn report(splits: &[Split], outcome: &mut Outcome) {
    let of = |value: fn(&Split) -> f64| splits.iter().map(value).collect::<Vec<_>>();
    let errors = |ours: fn(&Split) -> f64, truth: fn(&Split) -> f64| {
        let ratios = ratios(&of(ours), &of(truth));
        ratios.into_iter().zip(of(truth)).map(|(ratio, truth)| (ratio - 1.0).abs() * truth * 100.0).collect::<Vec<_>>()
    };
    let all = errors(|one| one.fief, |one| one.truth);
    let threads = errors(|one| one.thread_fief, |one| one.thread_truth);
    let mut table = Table::new(
        "Two classes of one nginx: the part that the gzip class has of the time of both, %",
        &["", "by what each costs alone", "by Fief", "error, points"],
    );
    let percent = |value: fn(&Split) -> f64| format!("{:.2}", median(&of(value)) * 100.0);
    table.row(["nginx and receiving".into(), percent(|one| one.truth), percent(|one| one.fief), number(median(&all))]);
    let row = ["nginx".into(), percent(|one| one.thread_truth), percent(|one| one.thread_fief)];
    table.row(row.into_iter().chain([number(median(&threads))]));
    table.note(format!(
        "{} rounds of each class alone and both; {:.1} % of the scheduler's time of nginx and its receiving thread was charged \
         to the two classes, the rest is the server's own.",
        splits.len(),
        median(&of(|one| one.reached)) * 100.0
    ));
    outcome.tables.push(table);
    let percent = |value: fn(&Split) -> f64| of(value).into_iter().map(|part| part * 100.0).collect::<Vec<_>>();
    outcome.plots.push(Plot::of_rounds(
        "nginx-split",
        "The gzip class's part of the time of both classes of nginx",
        "percent",
        [
            ("by what each costs alone", percent(|one| one.truth)),
            ("by Fief", percent(|one| one.fief)),
            ("nginx alone, by what each costs alone", percent(|one| one.thread_truth)),
            ("nginx alone, by Fief", percent(|one| one.thread_fief)),
        ]
        .map(|(name, values)| (name.to_owned(), values)),
    ));
    let load = format!(
        "{} clients of a page of {PAGE} bytes that nginx compresses, {} of a file of {FILE} by sendfile, a connection per request",
        MIXED[0], MIXED[1]
    );
    let metric = "part of the time of both classes that one is charged, against requests times what each costs alone";
    let name = "nginx_split_error_points";
    outcome.figures.must(name, median(&all), Bound::AtMost(2.0)).of(
        format!("{metric}; nginx and its receiving thread"),
        "percentage points",
        &load,
    );
    outcome.figures.add("nginx_split_thread_error_points", median(&threads)).of(
        format!("{metric}; nginx alone"),
        "percentage points",
        load,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_is_held_against_what_each_class_costs_alone() {
        let packed = Taken { requests: [100.0, 0.0], threads: 2.0, receive: 1.0, ..Taken::default() };
        let sent = Taken { requests: [0.0, 100.0], threads: 0.5, receive: 0.5, ..Taken::default() };
        let both = Taken {
            requests: [10.0, 30.0],
            threads: 0.35,
            receive: 0.25,
            charged_threads: [0.2, 0.15],
            charged: [0.27, 0.33],
        };
        let split = Split::of(&[packed, sent, both]);
        assert!((split.truth - 0.5).abs() < 1e-9 && (split.fief - 0.45).abs() < 1e-9);
        assert!((split.thread_truth - 0.2 / 0.35).abs() < 1e-9 && (split.reached - 1.0).abs() < 1e-9);
        let mut outcome = Outcome::default();
        report(&[split], &mut outcome);
        assert!((outcome.figures.get("nginx_split_error_points").expect("a figure") - 5.0).abs() < 1e-6);
        let [plot] = outcome.plots.as_slice() else { panic!("{:?}", outcome.plots) };
        let parts: Vec<f64> = plot.series.iter().map(|series| series.points[0].y.median.round()).collect();
        assert_eq!((plot.name.as_str(), parts), ("nginx-split", vec![50.0, 45.0, 57.0, 57.0]));
    }
}
