// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a measurement can be believed: was the server's core the bottleneck, and who else used the CPU.
//!
//! Closed-loop figures mean something only while the server is saturated and the load is not. And a compiler that ran
//! beside it makes a round worthless; the lab measures that round again, or says so.

use crate::error::Result;
use std::collections::HashMap;
use std::time::Instant;

/// Kernel ticks of every CPU, and the CPU time of every process that is not ours.
#[derive(Debug)]
pub struct Snapshot {
    at: Instant,
    cores: Vec<Core>,
    foreign: HashMap<u32, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Core {
    idle: u64,
    steal: u64,
    total: u64,
}

/// What happened between two snapshots, as parts of one CPU.
#[derive(Clone, Debug, Default)]
pub struct Noise {
    /// Busy part of each core, 0..=1.
    pub busy: Vec<f64>,
    /// Part of each core's time that the hypervisor took, 0..=1.
    pub stolen: Vec<f64>,
    /// CPU that processes outside of the lab used.
    pub foreign: f64,
}

/// Above it a round counts as disturbed. The machine's own services need a few percent.
pub const MOST_FOREIGN: f64 = 0.15;
/// The ticks are coarse, and a core that waits for the load's next packet shows a little idle time.
const SATURATED: f64 = 0.95;
const NOT_SATURATED: f64 = 0.98;

impl Snapshot {
    pub fn take() -> Snapshot {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Snapshot { at: Instant::now(), cores: cores(&text), foreign: foreign() }
    }

    pub fn until_now(&self) -> Noise {
        let now = Snapshot::take();
        let ticks = now.at.duration_since(self.at).as_secs_f64() * 100.0;
        let pairs = || self.cores.iter().zip(&now.cores);
        let busy = pairs().map(|(before, after)| {
            let total = after.total.saturating_sub(before.total).max(1);
            1.0 - after.idle.saturating_sub(before.idle) as f64 / total as f64
        });
        let stolen = pairs().map(|(before, after)| after.steal.saturating_sub(before.steal) as f64 / ticks);
        let foreign: u64 = now
            .foreign
            .iter()
            .map(|(pid, ticks)| ticks.saturating_sub(self.foreign.get(pid).copied().unwrap_or(*ticks)))
            .sum();
        Noise { busy: busy.collect(), stolen: stolen.collect(), foreign: foreign as f64 / ticks }
    }
}

impl Noise {
    /// CPU that the hypervisor took from all cores.
    pub fn steal(&self) -> f64 {
        self.stolen.iter().sum()
    }

    /// Whether somebody else used so much CPU that the round should be measured again.
    pub fn is_disturbed(&self) -> bool {
        self.foreign > MOST_FOREIGN
    }

    /// Whether the server's core had no time left and the load's had.
    pub fn is_server_bound(&self, server: usize, load: usize) -> bool {
        let busy = |cpu: usize| self.busy.get(cpu).copied().unwrap_or(1.0);
        busy(server) >= SATURATED && (server == load || busy(load) < NOT_SATURATED)
    }
}

/// Measures once, and up to so many times again while others use the CPU. A later one counts if it is better than what counted before.
pub fn measure_again<T>(
    retries: usize,
    is_disturbed: impl Fn(&T) -> bool,
    is_better: impl Fn(&T, &T) -> bool,
    mut measure: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut best = measure()?;
    for _ in 0..retries {
        if !is_disturbed(&best) {
            break;
        }
        let again = measure()?;
        if is_better(&again, &best) {
            best = again;
        }
    }
    Ok(best)
}

/// Of several measurements the one in which others used the least CPU, or the first in which nobody else did.
pub fn quietest<T>(retries: usize, noise: impl Fn(&T) -> &Noise, measure: impl FnMut() -> Result<T>) -> Result<T> {
    let is_disturbed = |one: &T| noise(one).is_disturbed();
    measure_again(retries, is_disturbed, |again, best| noise(again).foreign < noise(best).foreign, measure)
}

/// Fields of a line: name user nice system idle iowait irq softirq steal ...
fn cores(stat: &str) -> Vec<Core> {
    stat.lines()
        .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "))
        .map(|line| {
            let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
            let field = |place: usize| fields.get(place).copied().unwrap_or(0);
            Core { idle: field(3) + field(4), steal: field(7), total: fields.iter().take(8).sum() }
        })
        .collect()
}

/// User processes that do not descend from this one. Kernel threads are left out: they do the lab's own work too.
fn foreign() -> HashMap<u32, u64> {
    let mut parents = HashMap::new();
    let mut times = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        if let Some((parent, ticks)) = parent_and_ticks(&stat) {
            parents.insert(pid, parent);
            times.insert(pid, ticks);
        }
    }
    let me = std::process::id();
    times.retain(|&pid, _| !descends(pid, me, &parents));
    times
}

/// pid (comm) state ppid ... utime stime at 14 and 15; comm may hold spaces and parentheses.
fn parent_and_ticks(stat: &str) -> Option<(u32, u64)> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|word| word.parse::<u64>().ok());
    Some((fields.get(1)?.parse().ok()?, ticks(11)? + ticks(12)?))
}

/// Whether the process is `ancestor`, one of its descendants, or a kernel thread (a child of 2).
fn descends(pid: u32, ancestor: u32, parents: &HashMap<u32, u32>) -> bool {
    let mut at = pid;
    for _ in 0..64 {
        if at == ancestor || at == 2 {
            return true;
        }
        match parents.get(&at) {
            Some(&parent) if parent != 0 => at = parent,
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_without_idle_ticks_is_saturated() {
        let before = "cpu  1 1 1 1\ncpu0 100 0 50 1000 10 0 5 2 0 0\ncpu1 0 0 0 0 0 0 0 0\nintr 5\n";
        let cores = cores(before);
        assert_eq!(cores.len(), 2);
        assert_eq!(cores[0], Core { idle: 1010, steal: 2, total: 1167 });
        let noise = Noise { busy: vec![0.99, 0.5], ..Noise::default() };
        assert!(noise.is_server_bound(0, 1) && !noise.is_server_bound(1, 0));
    }

    #[test]
    fn a_load_without_time_left_spoils_the_round() {
        let noise = Noise { busy: vec![1.0, 0.99], ..Noise::default() };
        assert!(!noise.is_server_bound(0, 1));
    }

    #[test]
    fn a_strange_command_name_does_not_confuse() {
        let stat = "7 (a) b) S 3 7 7 0 -1 0 0 0 0 0 11 4 0 0 20 0 1";
        assert_eq!(parent_and_ticks(stat), Some((3, 15)));
    }

    #[test]
    fn descendants_and_kernel_threads_are_ours() {
        let parents = HashMap::from([(10, 5), (5, 1), (1, 0), (20, 2), (2, 0), (30, 1)]);
        assert!(descends(10, 5, &parents) && descends(20, 5, &parents) && !descends(30, 5, &parents));
    }
}
