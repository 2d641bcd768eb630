// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drops and refusals as they happen: the kernel side reports them at most once in 10 ms for each bucket, listener and reason,
//! with their number.
//!
//! Each reader has its own place in the log, and sees all. One that falls behind by more than the log holds is told how many it
//! missed.

use std::net::SocketAddr;
use std::time::Duration;

use fief_bpf::abi;
use fief_bpf::notices::Notices;
use fief_bpf::open;
use fief_bpf::table::Table;
use fief_bpf::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::Fief;
use crate::charge::now_ns;
use crate::names::Names;
use crate::namespace::Namespace;
use crate::verdicts::{VerdictView, address};

/// Drops or refusals of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// When, by CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Where the last one came in; `None`: that is not known, as of queues that overflow behind the door.
    pub interface: Option<String>,
    /// Of the last one.
    pub source: SocketAddr,
    /// Where it wanted to.
    pub destination: SocketAddr,
    /// By what; `count` says how many it stands for.
    pub verdict: VerdictView,
}

/// What a follower is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// A notice.
    Notice(Notice),
    /// So many notices were overwritten before this reader came to them.
    Lost(u64),
}

/// What was told lately, for readers who come again and again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    /// Number of the newest one; they count from 1 since the policy was first applied.
    pub newest: u64,
    /// With their numbers, the oldest first.
    pub notices: Vec<(u64, Notice)>,
}

impl Recent {
    /// What a reader is told that knows all up to the number `seen`, which is the newest one from then on.
    pub fn since(self, seen: &mut u64) -> Vec<Told> {
        if self.newest < *seen {
            // another log: what is in force was taken down and applied anew
            *seen = self.notices.first().map_or(self.newest, |(number, _)| number - 1);
        }
        let new: Vec<_> = self.notices.into_iter().filter(|(number, _)| number > seen).collect();
        let lost = (self.newest - *seen).saturating_sub(new.len() as u64);
        *seen = self.newest;
        let lost = (lost > 0).then_some(Told::Lost(lost));
        lost.into_iter().chain(new.into_iter().map(|(_, notice)| Told::Notice(notice))).collect()
    }
}

/// How often the log is looked at. It holds what comes in this time from 40 rules, each of which tells at its full rate.
const TICK: Duration = Duration::from_millis(50);

impl Fief {
    /// Calls `each` with every notice from now on, until `goes_on` says no or nothing is in force any more.
    pub fn follow<E: From<Error>>(
        &self,
        goes_on: impl Fn() -> bool,
        mut each: impl FnMut(Told) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.require_installed()?;
        let mut log = Notices::open(self.pins()).map_err(of_another_version)?;
        let (mut names, mut epoch) = (self.names()?, self.epoch()?);
        let is_here = self.steers_here()?;
        while goes_on() && self.installed() {
            let (records, lost) = log.read();
            if lost > 0 {
                each(Told::Lost(lost))?;
            }
            let now = if records.is_empty() { epoch } else { self.epoch()? };
            if now != epoch {
                (names, epoch) = (self.names()?, now);
            }
            for notice in records.iter().filter_map(|(_, record)| view(record, &names, is_here)) {
                each(Told::Notice(notice))?;
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// What was told in the time before now, as far as the log has it still.
    pub fn recent(&self, time: Duration) -> Result<Recent> {
        self.require_installed()?;
        let mut log = Notices::open_at_oldest(self.pins()).map_err(of_another_version)?;
        let since = now_ns()?.saturating_sub(time.as_nanos() as u64);
        let (mut records, _) = log.read();
        records.retain(|(_, record)| record.time_ns >= since);
        let newest = log.newest();
        if records.is_empty() {
            return Ok(Recent { newest, notices: Vec::new() });
        }
        let (names, is_here) = (self.names()?, self.steers_here()?);
        let notice = |(number, record): (u64, abi::fief_notice)| Some((number, view(&record, &names, is_here)?));
        Ok(Recent { newest, notices: records.into_iter().filter_map(notice).collect() })
    }

    /// Whether the interfaces of the policy are those that the caller sees.
    fn steers_here(&self) -> Result<bool> {
        let here = Namespace::of_caller()?.known;
        Ok(open::steered(self.pins()).is_some_and(|netns| here.is(netns.into())))
    }

    /// How many policies have been applied.
    fn epoch(&self) -> Result<u32> {
        Ok(Table::open(self.pins())?.policy().1)
    }
}

fn of_another_version(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "what is in force is of a version with another log")
            .remedy("apply the policy again: fief apply FILE"),
        _ => error,
    }
}

fn view(record: &abi::fief_notice, names: &Names, is_here: bool) -> Option<Notice> {
    let named = |index: u32| match crate::front::name(index) {
        Some(name) if is_here => name,
        _ => format!("#{index}"),
    };
    Some(Notice {
        time_ns: record.time_ns,
        interface: (record.interface != 0).then(|| named(record.interface)),
        source: SocketAddr::new(address(&record.source), record.source_port),
        destination: SocketAddr::new(address(&record.destination), record.destination_port),
        verdict: VerdictView::new(&record.verdict, record.count.into(), names)?,
    })
}

#[cfg(test)]
mod tests {
    use fief::Reason;

    use super::*;

    fn notice(time_ns: u64) -> Notice {
        Notice {
            time_ns,
            interface: None,
            source: "10.88.3.4:5123".parse().expect("an address"),
            destination: "[::1]:80".parse().expect("an address"),
            verdict: VerdictView {
                listener: "web".into(),
                container: "shop".into(),
                rule: Some(2),
                reason: Reason::SynRate,
                monitored: false,
                count: 3,
            },
        }
    }

    fn recent(newest: u64, numbers: &[u64]) -> Recent {
        Recent { newest, notices: numbers.iter().map(|&number| (number, notice(number))).collect() }
    }

    #[test]
    fn a_reader_that_comes_again_is_told_what_is_new_and_what_it_missed() {
        let mut seen = 5;
        let mut told = |newest, numbers: &[u64]| -> Vec<String> {
            let word = |told| match told {
                Told::Notice(notice) => notice.time_ns.to_string(),
                Told::Lost(count) => format!("{count} lost"),
            };
            recent(newest, numbers).since(&mut seen).into_iter().map(word).collect()
        };
        assert_eq!(told(5, &[4, 5]), [""; 0], "nothing is new");
        assert_eq!(told(7, &[4, 5, 6, 7]), ["6", "7"]);
        assert_eq!(told(7, &[7]), [""; 0]);
        assert_eq!(told(12, &[11, 12]), ["3 lost", "11", "12"]);
        assert_eq!(told(14, &[]), ["2 lost"]);
        assert_eq!(told(3, &[2, 3]), ["2", "3"], "of another log");
        assert_eq!(told(4, &[4]), ["4"]);
        assert_eq!(told(0, &[]), [""; 0]);
    }

    #[test]
    fn notices_come_over_as_they_are() {
        let text = serde_json::to_string(&recent(9, &[8, 9])).expect("texts and numbers");
        assert_eq!(serde_json::from_str::<Recent>(&text).expect("the same"), recent(9, &[8, 9]));
    }
}
