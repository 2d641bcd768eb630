// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The managed side: a child under `fief run` that makes containers, gives them work, and reads them.
//!
//! One order a line on standard input, one answer a line on standard output. A rate or a figure is worked out by the
//! side that asks; here are only counts and nanoseconds.

mod clocked;
mod hog;
mod receiver;

use super::pingpong::{Player, round_trip_ns};
use crate::error::{Context, Result};
use receiver::Receiver;
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::net::SocketAddr;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    Hello,
    /// Sockets of both classes; the former ones are closed.
    Receive {
        tcp: bool,
        work: [u16; 2],
    },
    /// What both classes used up to now.
    Look,
    /// Threads that rebind between three containers each.
    Bind(Binding),
    /// A hog that is read from another CPU.
    Lag {
        seconds: f64,
        cpu: usize,
        reader_cpu: usize,
    },
    /// Two threads in containers of their own that wake each other.
    Switch {
        cpu: usize,
        batches: usize,
    },
    /// A server on this address; it stays.
    Serve {
        address: SocketAddr,
        cpu: usize,
    },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Binding {
    pub hertz: u32,
    pub seconds: f64,
    pub threads: usize,
    pub cpu: usize,
    /// Real-time priority; 0: none.
    pub fifo: i32,
    /// Packets are received on top of the threads, not in a thread of their own.
    pub under_softirq: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Ready,
    /// Where the sockets of both classes and of long packets are.
    Receiving([u16; 3]),
    Looked([Look; 2]),
    Bound(Vec<Clocked>),
    Lagged(Lagged),
    Switched {
        round_trip_ns: f64,
    },
    Serving {
        process: u32,
    },
    Failed(String),
}

/// One container.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Look {
    pub thread_ns: u64,
    pub receive_ns: u64,
    pub packets_in: u64,
}

/// One thread: what its own clock says it spent in each container, and what the containers say.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Clocked {
    pub own_ns: [u64; 3],
    pub charged_ns: [u64; 3],
    /// Packets for others that were received on top of it.
    pub received_ns: u64,
    /// Of its own time: which of two containers it was spent in is not known.
    pub doubt_ns: u64,
    /// While it could have run, others did.
    pub waited_ns: u64,
    pub binds: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Lagged {
    pub reads: u64,
    /// The reader saw less than the hog had already told of.
    pub behind_ns: u64,
    /// The reader saw more than the hog told of afterwards.
    pub ahead_ns: u64,
    /// The same of all since the hog began, so that a lag that stays the same shows. What ran on top of the hog, which is in its
    /// clock and not in its container, is left out: both differ by so much at the end.
    pub behind_in_all_ns: u64,
    pub ahead_in_all_ns: u64,
    /// Windows that say nothing, because the hypervisor took the hog's CPU.
    pub stolen: u64,
    pub episodes: u64,
}

impl Lagged {
    fn add(&mut self, other: &Lagged) {
        self.reads += other.reads;
        self.behind_ns = self.behind_ns.max(other.behind_ns);
        self.ahead_ns = self.ahead_ns.max(other.ahead_ns);
        self.behind_in_all_ns = self.behind_in_all_ns.max(other.behind_in_all_ns);
        self.ahead_in_all_ns = self.ahead_in_all_ns.max(other.ahead_in_all_ns);
        self.stolen += other.stolen;
    }
}

impl Look {
    pub fn of(container: &fief::Container) -> Result<Look> {
        let usage = container.usage().context("read a container")?;
        Ok(Look { thread_ns: usage.thread_ns, receive_ns: usage.receive_ns, packets_in: usage.packets_in })
    }
}

pub fn worker_main() -> Result<()> {
    let mut receiver = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("hear an order")?;
        let answer = serde_json::from_str(&line)
            .context("read an order")
            .and_then(|order| obey(order, &mut receiver))
            .unwrap_or_else(|error| Answer::Failed(error.to_string()));
        println!("{}", serde_json::to_string(&answer).context("write down an answer")?);
    }
    Ok(())
}

fn obey(order: Order, receiver: &mut Option<Receiver>) -> Result<Answer> {
    match order {
        Order::Hello => Ok(Answer::Ready),
        Order::Receive { tcp, work } => {
            *receiver = None;
            let fresh = Receiver::open(tcp, work)?;
            let ports = fresh.ports;
            *receiver = Some(fresh);
            Ok(Answer::Receiving(ports))
        }
        Order::Look => match receiver {
            Some(receiver) => Ok(Answer::Looked(receiver.look()?)),
            None => Ok(Answer::Looked([Look::default(); 2])),
        },
        Order::Bind(binding) => {
            Ok(Answer::Bound(clocked::run(&binding, receiver.as_ref().filter(|_| binding.under_softirq))?))
        }
        Order::Lag { seconds, cpu, reader_cpu } => Ok(Answer::Lagged(hog::run(seconds, cpu, reader_cpu)?)),
        Order::Switch { cpu, batches } => Ok(Answer::Switched { round_trip_ns: switch(cpu, batches)? }),
        Order::Serve { address, cpu } => {
            super::request_server::start(address, cpu)?;
            Ok(Answer::Serving { process: std::process::id() })
        }
    }
}

fn switch(cpu: usize, batches: usize) -> Result<f64> {
    let make = || fief::Container::create().context("make a container");
    let containers = [make()?, make()?];
    round_trip_ns(cpu, batches, |player| {
        let container = if player == Player::Near { &containers[0] } else { &containers[1] };
        container.bind_thread().context("bind a player")
    })
}
