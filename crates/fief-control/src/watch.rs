// SPDX-License-Identifier: Apache-2.0 OR MIT
//! By which threads, ports and kernel threads a container is charged, while somebody looks (`fief explain --charge`).
//!
//! The kernel side sums by source for one container at a time, and ends that by itself when its reader does not come again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fief_bpf::abi;
use fief_bpf::table::Table;
use fief_bpf::watch;
use fief_bpf::{Error, ErrorKind, Result};
use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};

use crate::Fief;
use crate::charge::{SYSTEM_KINDS, now_ns};
use crate::run_folder::{self, RUN};
use crate::tree::Tree;
use crate::wire;

/// Beyond the next look, for a reader that the machine lets wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// How time came to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The thread is at home there.
    Home,
    /// The thread was bound by a call, or by `fief bind`.
    Call,
    /// The thread took the container of the connection or file it worked on.
    Follow,
    /// The thread is of a program that a server started for a client.
    Program,
    /// A kernel thread wrote a labelled file back.
    Writeback,
    /// Packets for its sockets were received.
    Packet,
    /// The same, in the thread of a lane.
    Lane,
    /// Softirqs and interrupts.
    Kernel,
    /// A kernel thread.
    KernelThread,
    /// A thread that nobody manages.
    Unmanaged,
    /// Sources that there was no room for.
    Rest,
}

impl Why {
    fn of(why: u32) -> Self {
        match why {
            abi::FIEF_WHY_HOME => Self::Home,
            abi::FIEF_WHY_CALL => Self::Call,
            abi::FIEF_WHY_FOLLOW => Self::Follow,
            abi::FIEF_WHY_PROGRAM => Self::Program,
            abi::FIEF_WHY_WRITEBACK => Self::Writeback,
            abi::FIEF_WHY_PACKET => Self::Packet,
            abi::FIEF_WHY_LANE => Self::Lane,
            abi::FIEF_WHY_KERNEL => Self::Kernel,
            abi::FIEF_WHY_KTHREAD => Self::KernelThread,
            abi::FIEF_WHY_UNMANAGED => Self::Unmanaged,
            _ => Self::Rest,
        }
    }

    /// Its word, for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Call => "call",
            Self::Follow => "follow",
            Self::Program => "program",
            Self::Writeback => "writeback",
            Self::Packet => "packet",
            Self::Lane => "lane",
            Self::Kernel => "kernel",
            Self::KernelThread => "kernel-thread",
            Self::Unmanaged => "unmanaged",
            Self::Rest => "rest",
        }
    }

    /// Why the time is the container's.
    pub fn means(self) -> &'static str {
        match self {
            Self::Home => "thread, at home there",
            Self::Call => "thread, bound by a call or by fief bind",
            Self::Follow => "thread, worked on its connections or files",
            Self::Program => "thread, of a program started for a client",
            Self::Writeback => "kernel thread, wrote its files back",
            Self::Packet => "packets for its sockets",
            Self::Lane => "packets for its sockets, in its lane",
            Self::Kernel => "softirqs and interrupts for nobody",
            Self::KernelThread => "kernel thread, worked for nobody",
            Self::Unmanaged => "thread that nobody manages",
            Self::Rest => "sources beyond those that have room",
        }
    }
}

/// A thread that a container was charged for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargedThread {
    /// Of the thread.
    pub id: i32,
    /// Of its process; `None`: it was gone.
    pub process: Option<i32>,
    /// Of the thread; empty: it was gone.
    pub name: String,
}

/// What a container was charged for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeSource {
    /// Why.
    pub why: Why,
    /// By which thread, if by one.
    pub thread: Option<ChargedThread>,
    /// The local port of received packets, if it is known.
    pub port: Option<u16>,
    /// Which softirq, by the names of `fief show system`.
    #[serde(deserialize_with = "wire::some_word")]
    pub kind: Option<wire::Word>,
    /// How much.
    pub ns: u64,
    /// In how many charges.
    pub charges: u64,
}

/// What one container was charged between two looks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charges {
    /// Its path.
    pub container: String,
    /// Whether those below it are counted in.
    pub below: bool,
    /// CLOCK_MONOTONIC of both looks.
    pub from_ns: u64,
    /// Of the later one.
    pub to_ns: u64,
    /// The largest first.
    pub sources: Vec<ChargeSource>,
}

impl Charges {
    /// All sources together.
    pub fn ns(&self) -> u64 {
        self.sources.iter().map(|source| source.ns).sum()
    }
}

/// The right to watch, and the watch; it ends with this.
#[derive(Debug)]
pub struct Watch {
    fief: Fief,
    kernel: watch::Watch,
    container: abi::fief_ref,
    path: String,
    below: bool,
    turn: u32,
    since_ns: u64,
    lock: PathBuf,
    _lock: Flock<File>,
}

impl Fief {
    /// Watches a container, and all below it, from now on. It is looked at within `lasts`.
    ///
    /// Errors: [`ErrorKind::NotFound`] there is none of this path; [`ErrorKind::Exists`] another process watches.
    pub fn watch(&self, path: &str, lasts: Duration) -> Result<Watch> {
        self.require_installed()?;
        let tree = Tree::read(&Table::open(self.pins())?);
        let container = tree.require(path)?.container;
        if [abi::FIEF_IDLE, abi::FIEF_STEAL, abi::FIEF_RETIRED].contains(&container.id) {
            let what = format!("nothing is charged to {path}: its time is what others did not have");
            return Err(Error::new(ErrorKind::Other, what).remedy("name another container; `fief ls` shows them"));
        }
        let kernel = watch::Watch::open(self.pins()).map_err(of_another_version)?;
        let lock = Path::new(RUN).join(format!("{}.watch.lock", self.pins().scope()));
        let held = run_folder::lock_now(&lock)?.ok_or_else(|| {
            Error::new(ErrorKind::Exists, "another process watches charges already").remedy("wait until it ends")
        })?;
        kernel.clear()?;
        let below = container.id == abi::FIEF_USERS || container.id >= abi::FIEF_FIRST_ID;
        let path = path.to_owned();
        let mut watch =
            Watch { fief: self.clone(), kernel, container, path, below, turn: 0, since_ns: 0, lock, _lock: held };
        watch.turn_over(lasts)?;
        if self.ensure_charged()? {
            watch.since_ns = now_ns()?;
        }
        Ok(watch)
    }
}

impl Watch {
    /// What was charged since the last look, or since the watch began. The next look is within `lasts`.
    pub fn look(&mut self, lasts: Duration) -> Result<Charges> {
        self.fief.require_installed()?;
        let (over, from_ns) = (self.turn, self.since_ns);
        self.kernel.forget(1 - over)?;
        self.turn_over(lasts)?;
        // where the last look was too long ago, another command may have found that nobody needs it
        if self.fief.ensure_charged()? {
            self.since_ns = now_ns()?;
        }
        let sums = self.kernel.sums()?;
        let own = sums.iter().filter(|(source, sum)| source.turn == over && sum.ns > 0);
        let mut sources: Vec<_> = own.map(|(key, sum)| source(key, sum)).collect();
        sources.sort_by_key(|source| (std::cmp::Reverse(source.ns), source.why));
        Ok(Charges { container: self.path.clone(), below: self.below, from_ns, to_ns: self.since_ns, sources })
    }

    fn turn_over(&mut self, lasts: Duration) -> Result<()> {
        let until = now_ns()? + (lasts + PATIENCE).as_nanos() as u64;
        self.turn = 1 - self.turn;
        self.kernel.place(self.container, self.below, self.turn, until).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::new(ErrorKind::NotFound, format!("the container {} has ended", self.path)),
            _ => error,
        })?;
        self.since_ns = now_ns()?;
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // what fails here ends by itself
        let _ = self.kernel.end();
        let _ = fs::remove_file(&self.lock);
        let _ = self.fief.need_ends();
    }
}

fn source(key: &abi::fief_charge_source, sum: &abi::fief_charge_sum) -> ChargeSource {
    let why = Why::of(key.why);
    let is_thread = !matches!(why, Why::Packet | Why::Lane | Why::Kernel | Why::Rest);
    let name: Vec<u8> = sum.name.iter().map(|letter| *letter as u8).take_while(|letter| *letter != 0).collect();
    ChargeSource {
        why,
        thread: is_thread.then(|| ChargedThread {
            id: key.number as i32,
            process: Some(sum.process).filter(|process| *process > 0),
            name: String::from_utf8_lossy(&name).into_owned(),
        }),
        port: matches!(why, Why::Packet | Why::Lane).then_some(key.number as u16).filter(|port| *port > 0),
        kind: SYSTEM_KINDS.get(key.number as usize).copied().filter(|_| why == Why::Kernel),
        ns: sum.ns,
        charges: sum.charges,
    }
}

fn of_another_version(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "what is in force is of a version that watches nothing")
            .remedy("apply the policy again: fief apply FILE"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(why: u32, number: u32) -> abi::fief_charge_source {
        abi::fief_charge_source { turn: 1, why, number }
    }

    #[test]
    fn each_reason_says_what_its_number_is() {
        let mut sum = abi::fief_charge_sum { ns: 5, charges: 2, process: 40, ..Default::default() };
        for (to, from) in sum.name.iter_mut().zip(b"nginx") {
            *to = *from as _;
        }
        let thread = source(&key(abi::FIEF_WHY_FOLLOW, 41), &sum);
        let named = ChargedThread { id: 41, process: Some(40), name: "nginx".into() };
        assert_eq!((thread.why, thread.thread, thread.port, thread.kind), (Why::Follow, Some(named), None, None));
        let none = abi::fief_charge_sum { ns: 1, ..Default::default() };
        let packet = source(&key(abi::FIEF_WHY_PACKET, 443), &none);
        assert_eq!((packet.thread, packet.port, packet.kind), (None, Some(443), None));
        assert_eq!(source(&key(abi::FIEF_WHY_LANE, 0), &none).port, None, "it is not known");
        let kernel = source(&key(abi::FIEF_WHY_KERNEL, abi::FIEF_SYSTEM_NET_RX), &none);
        assert_eq!((kernel.thread, kernel.kind), (None, Some("softirq_net_rx")));
        let rest = source(&key(abi::FIEF_WHY_REST, 0), &none);
        assert_eq!((rest.why, rest.thread, rest.port), (Why::Rest, None, None));
    }

    #[test]
    fn charges_come_over_as_they_are() {
        let of = |why, kind| ChargeSource { why, thread: None, port: Some(443), kind, ns: 7, charges: 2 };
        let thread = ChargedThread { id: 41, process: None, name: "nginx".into() };
        let mut sources = vec![of(Why::KernelThread, None), of(Why::Kernel, Some("softirq_net_rx"))];
        sources[0].thread = Some(thread);
        let charges = Charges { container: "shop".into(), below: true, from_ns: 1, to_ns: 2, sources };
        let text = serde_json::to_string(&charges).expect("texts and numbers");
        assert_eq!(serde_json::from_str::<Charges>(&text).expect("the same"), charges);
    }

    #[test]
    fn every_reason_of_the_kernel_side_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<_> =
            (0..abi::FIEF_WHYS).map(|why| (Why::of(why).as_str(), Why::of(why).means())).collect();
        assert_eq!(words.len(), abi::FIEF_WHYS as usize);
    }
}
