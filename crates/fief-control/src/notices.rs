// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drops and refusals as they happen: the kernel side reports them at most once in 10 ms for each bucket, listener and reason,
//! with their number.
//!
//! There is one ring, and each notice is read once: two readers at a time each get a part.

use std::net::SocketAddr;
use std::time::Duration;

use fief_bpf::abi;
use fief_bpf::map;
use fief_bpf::table::Table;
use fief_bpf::{Error, Result};

use crate::Fief;
use crate::charge::now_ns;
use crate::names::Names;
use crate::verdicts::{VerdictView, address};

/// Drops or refusals of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// When, by CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Of the last one.
    pub source: SocketAddr,
    /// Where it wanted to.
    pub destination: SocketAddr,
    /// By what; `count` says how many it stands for.
    pub verdict: VerdictView,
}

/// How often it is asked whether to go on while nothing happens.
const TICK: Duration = Duration::from_millis(200);

impl Fief {
    /// Calls `each` with every notice from now on, until `goes_on` says no or nothing is in force any more.
    pub fn follow<E: From<Error>>(
        &self,
        goes_on: impl Fn() -> bool,
        mut each: impl FnMut(Notice) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.require_installed()?;
        let map = self.map("notices")?;
        let began = now_ns()?;
        let (mut names, mut epoch) = (self.names()?, self.epoch()?);
        map::follow::<abi::fief_notice, E>(&map, TICK, |told| {
            // those from the time when nobody read are no news
            let fresh: Vec<_> = told.into_iter().filter(|notice| notice.time_ns >= began).collect();
            let now = if fresh.is_empty() { epoch } else { self.epoch()? };
            if now != epoch {
                (names, epoch) = (self.names()?, now);
            }
            for notice in fresh.iter().filter_map(|record| view(record, &names)) {
                each(notice)?;
            }
            Ok(goes_on() && self.installed())
        })
    }

    /// How many policies have been applied.
    fn epoch(&self) -> Result<u32> {
        Ok(Table::open(self.pins())?.policy().1)
    }
}

fn view(record: &abi::fief_notice, names: &Names) -> Option<Notice> {
    Some(Notice {
        time_ns: record.time_ns,
        source: SocketAddr::new(address(&record.source), record.source_port),
        destination: SocketAddr::new(address(&record.destination), record.destination_port),
        verdict: VerdictView::new(&record.verdict, record.count.into(), names)?,
    })
}
