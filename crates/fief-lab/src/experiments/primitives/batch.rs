// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timing an operation that is shorter than the clock is fine: many in a batch, the least of many batches.

use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// ns by operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Costs(BTreeMap<String, f64>);

impl Costs {
    pub fn put(&mut self, name: &str, ns: f64) {
        self.0.insert(name.to_owned(), ns);
    }

    /// NaN if it was not measured.
    pub fn of(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(f64::NAN)
    }

    /// Measures an operation and keeps its cost.
    pub fn measure(&mut self, name: &str, size: u32, operation: impl FnMut() -> Result<()>) -> Result<()> {
        let ns = least(BATCHES, size, operation)?;
        self.put(name, ns);
        Ok(())
    }
}

pub const BATCHES: u32 = 40;

/// ns of one operation in the fastest batch; the first batch warms the caches and does not count.
pub fn least(batches: u32, size: u32, mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for batch in 0..=batches {
        let begin = Instant::now();
        for _ in 0..size {
            operation()?;
        }
        let ns = begin.elapsed().as_nanos() as f64 / f64::from(size);
        if batch > 0 {
            least = least.min(ns);
        }
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_batch_does_not_count() {
        let mut calls = 0;
        let slow_start = || {
            calls += 1;
            if calls == 1 {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Ok(())
        };
        assert!(least(3, 1, slow_start).expect("measured") < 10e6);
        assert_eq!(calls, 4);
    }
}
