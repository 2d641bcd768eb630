// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a thread that goes from container to container is charged what its own clock says.
//!
//! The kernel's clock of a thread holds the softirqs that ran on top of it; its containers do not. So packets come in
//! two ways. In a thread of their own (threaded NAPI) which interrupts the measured ones on their CPU: then both sides
//! are compared container by container. And as softirq on top of a single real-time thread: then what both sides have
//! in all is compared, with the receive work that was charged meanwhile.

use super::Plan;
use super::misattribution::{WORK, open};
use super::packets::From;
use super::stage::Stage;
use super::worker::{Answer, Binding, Clocked, Order};
use crate::command::usage;
use crate::error::{Error, Result};
use crate::experiments::Outcome;
use crate::figures::Bound;
use crate::progress::Progress;
use crate::table::{Table, number};
use fief_testkit::Topology;
use serde_json::json;

const HERTZ: [u32; 4] = [10, 1_000, 10_000, 100_000];
/// Packets a second of both classes together.
const RATE: f64 = 10_000.0;

/// Of a run under softirqs. From its 950th ms on, a real-time thread that leaves its CPU to nobody has to wait for others
/// (kernel/sched/deadline.c, the fair server); what is received meanwhile is not on top of it, and would count.
const LONGEST_ALONE: f64 = 0.3;

/// How packets come while the threads rebind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    Threaded,
    Softirq,
}

impl Receive {
    const ALL: [Receive; 2] = [Receive::Threaded, Receive::Softirq];

    fn title(self) -> &'static str {
        match self {
            Receive::Threaded => "beside a NAPI thread",
            Receive::Softirq => "under softirq",
        }
    }

    fn seconds(self, plan: &Plan) -> f64 {
        match self {
            Receive::Threaded => plan.binding_seconds,
            Receive::Softirq => plan.binding_seconds.min(LONGEST_ALONE),
        }
    }
}

pub fn steps(plan: &Plan) -> usize {
    plan.binding_runs * HERTZ.len() * Receive::ALL.len()
}

pub fn run(plan: &Plan, stage: &mut Stage, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let mut table = Table::new(
        "Threads that rebind: containers against the threads' own clocks, worst of the runs",
        &["receive work", "rebinds a second", "error of the sum", "error of a container", "steal, ms"],
    );
    let mut worst: f64 = 0.0;
    let mut doubt = 0;
    let mut runs = 0;
    for receive in Receive::ALL {
        stage.topology.set_receive(receive == Receive::Threaded, true)?;
        let mask = match receive {
            Receive::Threaded => 0,
            Receive::Softirq => 1u64 << Topology::server_cpu(),
        };
        stage.topology.server.write_device("sv/queues/rx-0/rps_cpus", &format!("{mask:x}"))?;
        for hertz in HERTZ {
            let mut errors = [0.0f64; 2];
            let mut stolen = 0;
            for round in 0..plan.binding_runs {
                progress.step(&format!("threads {}, {hertz} rebinds a second", receive.title()))?;
                let one = measure(plan, stage, receive, hertz)?;
                outcome.measurements.push(json!({
                    "experiment": "thread_error", "receive": receive.title(), "hertz": hertz, "round": round,
                    "error_of_sum": one.of_sum, "error_of_container": one.of_container, "steal_ns": one.steal_ns,
                    "rebinds": one.binds, "own_ns": one.own_ns, "threads": one.threads,
                }));
                errors[0] = errors[0].max(one.of_sum);
                errors[1] = errors[1].max(one.of_container.unwrap_or(0.0));
                stolen += one.steal_ns;
                doubt += one.threads.iter().map(|thread| thread.doubt_ns).sum::<u64>();
                runs += 1;
            }
            worst = worst.max(errors[0]).max(errors[1]);
            let of_container = match receive {
                Receive::Threaded => percent(errors[1]),
                Receive::Softirq => "-".to_owned(),
            };
            let stolen = number(stolen as f64 / 1e6);
            table.row([receive.title().to_owned(), hertz.to_string(), percent(errors[0]), of_container, stolen]);
        }
        stage.topology.server.write_device("sv/queues/rx-0/rps_cpus", "0")?;
    }
    table.note(format!(
        "{runs} runs of {} s beside a NAPI thread and {} s under softirq, with {RATE} packets a second on the threads' CPU; of \
         three containers one has half of the time.",
        Receive::Threaded.seconds(plan),
        Receive::Softirq.seconds(plan)
    ));
    table.note(format!(
        "{} ms were spent in calls that something interrupted; by so much an error of a container is not one.",
        number(doubt as f64 / 1e6)
    ));
    outcome.tables.push(table);
    let metric = format!("CPU time charged to a container, against the thread's own clock; the worst of {runs} runs");
    let load = format!("threads that rebind 10 to 100,000 times a second beside {RATE} packets a second");
    outcome.figures.must("thread_error", worst, Bound::AtMost(0.01)).of(metric, "ratio", load);
    Ok(())
}

fn percent(part: f64) -> String {
    format!("{:.3} %", part * 100.0)
}

struct Errors {
    of_sum: f64,
    of_container: Option<f64>,
    steal_ns: u64,
    binds: u64,
    own_ns: u64,
    threads: Vec<Clocked>,
}

fn measure(plan: &Plan, stage: &mut Stage, receive: Receive, hertz: u32) -> Result<Errors> {
    let mut sender = open(stage, false, WORK)?;
    let stolen = steal()?;
    let order = Order::Bind(Binding {
        hertz,
        seconds: receive.seconds(plan),
        threads: if receive == Receive::Threaded { 2 } else { 1 },
        cpu: Topology::server_cpu(),
        // So that no other thread is under the softirqs.
        fifo: if receive == Receive::Threaded { 0 } else { 10 },
        under_softirq: receive == Receive::Softirq,
    });
    stage.tell(&order)?;
    sender.stream(From::Beside, &[0, 1], RATE, receive.seconds(plan))?;
    let Answer::Bound(threads) = stage.answer()? else {
        return Err(Error::failed("the worker did not say what its threads used"));
    };
    let received: u64 = threads.iter().map(|thread| thread.received_ns).sum();
    let sum = |of: fn(&Clocked) -> [u64; 3]| threads.iter().flat_map(of).sum::<u64>();
    let own_ns = sum(|thread| thread.own_ns);
    let charged = sum(|thread| thread.charged_ns) + received;
    Ok(Errors {
        of_sum: relative(charged, own_ns),
        of_container: (receive == Receive::Threaded).then(|| {
            let each = threads.iter().flat_map(|thread| {
                let pairs = thread.charged_ns.into_iter().zip(thread.own_ns);
                pairs.map(|(charged, own)| {
                    charged.abs_diff(own).saturating_sub(thread.doubt_ns) as f64 / own.max(1) as f64
                })
            });
            each.fold(0.0, f64::max)
        }),
        steal_ns: steal()? - stolen,
        binds: threads.iter().map(|thread| thread.binds).sum(),
        own_ns,
        threads,
    })
}

fn relative(value: u64, to: u64) -> f64 {
    value.abs_diff(to) as f64 / to.max(1) as f64
}

fn steal() -> Result<u64> {
    let usage = usage()?;
    Ok(usage.iter().find(|one| one.container == "steal").map_or(0, |one| one.thread_ns))
}
