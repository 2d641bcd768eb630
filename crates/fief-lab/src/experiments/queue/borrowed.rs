// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How soon the others have what a class does not use: a class of 60 % asks no more, and those of 30 and 10 % go on.
//!
//! All requests cost the same, so their number tells. The others have borrowed all of it once they are answered in a tenth of a
//! second nine tenths of what they are later on.

use super::case::Connections;
use crate::error::{Error, Result};
use crate::load::{Load, Running};
use fief_testkit::{Client, Topology};
use std::time::Instant;

/// The classes that go on.
const OTHERS: [Client; 2] = [Client::Low, Client::Middle];
const CLIENTS: usize = 20;
const STEP_MS: u64 = 10;
/// In which the rate is looked at.
const WINDOW_MS: u64 = 100;
const ENOUGH: f64 = 0.9;

/// When a load told how many requests were answered since it told that last.
type Told = Vec<(Instant, u64)>;

/// ms from the end of the class's last request until the others have its share, at a server that divides the CPU among the three.
pub fn once(topology: &Topology, seconds: f64) -> Result<f64> {
    let load = |class: Client, seconds: f64| Load {
        seconds,
        close: Connections::Persistent.close(),
        live_ms: STEP_MS,
        ..Load::of(class, CLIENTS as u8, CLIENTS)
    };
    let others = OTHERS.map(|class| load(class, 2.0 * seconds).start(&topology.clients));
    let ends = Load { live_ms: 0, ..load(Client::High, seconds / 2.0) }.start(&topology.clients)?;
    let told = std::thread::scope(|scope| -> Result<_> {
        let others = others.map(|other| scope.spawn(move || watch(other?)));
        ends.finish()?;
        let end = Instant::now();
        let mut all: Told = Vec::new();
        for other in others {
            all.extend(other.join().unwrap_or_else(|_| Err(Error::failed("nobody watched a load")))?);
        }
        Ok(since(end, &all))
    })?;
    borrowed_ms(&told).ok_or_else(|| Error::failed("the others were not answered any more"))
}

fn watch(load: Running) -> Result<Told> {
    let mut told = Vec::new();
    load.watch(|seen| told.push((Instant::now(), seen.latency.count())))?;
    Ok(told)
}

/// The same from a time on, in ms.
fn since(end: Instant, told: &Told) -> Vec<(u64, u64)> {
    told.iter().filter_map(|(at, count)| Some((at.checked_duration_since(end)?.as_millis() as u64, *count))).collect()
}

/// The begin of the first window in which as much is answered as in the middle ones; `None`: nothing is.
fn borrowed_ms(told: &[(u64, u64)]) -> Option<f64> {
    let last = told.iter().map(|(at, _)| *at).max()?;
    let within = |from: u64, until: u64| -> f64 {
        told.iter().filter(|(at, _)| (from..until).contains(at)).map(|(_, count)| *count as f64).sum()
    };
    let (from, until) = (last / 4, last * 3 / 4);
    let later = within(from, until) / (until - from).max(1) as f64 * WINDOW_MS as f64;
    let is_all = |at: &u64| within(*at, at + WINDOW_MS) >= ENOUGH * later;
    (later > 0.0).then(|| (0..=last).step_by(STEP_MS as usize).find(is_all).unwrap_or(last) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_borrowed_at_once_takes_no_time() {
        let told: Vec<_> = (0..100).map(|n| (n * STEP_MS, 30)).collect();
        assert_eq!(borrowed_ms(&told), Some(0.0));
    }

    #[test]
    fn what_is_borrowed_late_takes_as_long() {
        let told: Vec<_> = (0..100).map(|n| (n * STEP_MS, if n < 20 { 12 } else { 30 })).collect();
        assert!(borrowed_ms(&told).is_some_and(|ms| (150.0..=200.0).contains(&ms)), "{:?}", borrowed_ms(&told));
        assert_eq!(borrowed_ms(&[(0, 0), (500, 0)]), None);
    }
}
