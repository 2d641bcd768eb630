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

use crate::Fief;
use crate::names::Names;
use crate::namespace::Namespace;
use crate::verdicts::{VerdictView, address};

/// Drops or refusals of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
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
            for notice in records.iter().filter_map(|record| view(record, &names, is_here)) {
                each(Told::Notice(notice))?;
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Whether the interfaces of the policy are those that the caller sees.
    fn steers_here(&self) -> Result<bool> {
        Ok(open::steered(self.pins()) == Some(Namespace::of_caller()?.inode))
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
