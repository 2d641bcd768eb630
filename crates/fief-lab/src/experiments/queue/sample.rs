// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was measured in all rounds, and how to ask for it. Pure.

use super::case::{Case, Measured};
use super::way::Way;
use crate::load::Seen;
use crate::statistics::{median, ratios};

#[derive(Debug, Default)]
pub struct Sample {
    measured: Vec<Measured>,
}

impl Sample {
    pub fn push(&mut self, measured: Measured) {
        self.measured.push(measured);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Measured> {
        self.measured.iter()
    }

    pub fn has_case(&self, case: Case) -> bool {
        self.iter().any(|one| one.case == case)
    }

    /// One value a round, in their order.
    fn of(&self, case: Case, value: impl Fn(&Measured) -> f64) -> Vec<f64> {
        let mut chosen: Vec<_> = self.iter().filter(|one| one.case == case).collect();
        chosen.sort_by_key(|one| one.round);
        chosen.into_iter().map(value).collect()
    }

    /// Mean response times of the high client in us.
    pub fn means(&self, case: Case) -> Vec<f64> {
        self.of(case, |one| one.high.mean_us())
    }

    pub fn p99s(&self, case: Case) -> Vec<f64> {
        self.of(case, |one| one.high.p99_us())
    }

    /// Of all rounds in one: a percentile needs many requests.
    pub fn p99_us(&self, case: Case) -> f64 {
        let mut all = Seen::default();
        self.iter().filter(|one| one.case == case).for_each(|one| all.merge(&one.high));
        all.p99_us()
    }

    pub fn throughputs(&self, case: Case) -> Vec<f64> {
        self.of(case, Measured::throughput)
    }

    /// The median over the rounds of ratios within a round.
    pub fn ratio(&self, of: impl Fn(&Self, Case) -> Vec<f64>, over: Case, under: Case) -> f64 {
        median(&ratios(&of(self, over), &of(self, under)))
    }

    /// HAProxy where the high client waits least, of all that was tried in its place.
    pub fn peer(&self, case: Case) -> Option<Case> {
        let mut peers: Vec<Case> = self.iter().map(|one| one.case).filter(|one| is_peer(*one, case)).collect();
        peers.sort_by_key(|peer| peer.way);
        peers.dedup();
        peers.into_iter().min_by(|one, other| median(&self.means(*one)).total_cmp(&median(&self.means(*other))))
    }

    /// What makes the figures less certain.
    pub fn warnings(&self) -> Vec<String> {
        let count = |condition: &dyn Fn(&Measured) -> bool| self.iter().filter(|one| condition(one)).count();
        let sum = |value: &dyn Fn(&Seen) -> u64| -> usize {
            self.iter().map(|one| value(&one.high) + value(&one.low)).sum::<u64>() as usize
        };
        let total = self.measured.len();
        let disturbed = count(&|one| one.noise.is_disturbed());
        let unbound = count(&|one| !one.is_server_bound());
        let (stalls, errors, refused) = (sum(&|seen| seen.stalls), sum(&|seen| seen.errors), sum(&|seen| seen.refused));
        let quiet = "a quiet machine tells more";
        [
            (disturbed, format!("in {disturbed} of {total} measurements other programs used the CPU; {quiet}")),
            (unbound, format!("in {unbound} of {total} measurements the server's core was not the bottleneck")),
            (stalls, format!("{stalls} requests took 0.9 s or more")),
            (errors, format!("{errors} connections failed")),
            (refused, format!("{refused} requests were refused with 503")),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(_, text)| text)
        .collect()
    }
}

fn is_peer(one: Case, case: Case) -> bool {
    matches!(one.way, Way::Haproxy(_)) && Case { way: case.way, ..one } == case
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::experiments::queue::case::Connections;
    use crate::experiments::queue::kind::Kind;
    use crate::noise::Noise;
    use crate::statistics::Histogram;

    pub fn case(way: Way, low: usize) -> Case {
        Case { kind: Kind::Go, way, connections: Connections::Each, low, cost_us: 300 }
    }

    /// The high client waited so long, and so many requests a second were served.
    pub fn measured(case: Case, us: u64, requests: usize) -> Measured {
        let seen = |us: u64, count: usize| {
            let mut latency = Histogram::default();
            (0..count).for_each(|_| latency.record(us * 1000));
            Seen { seconds: 1.0, latency, ..Seen::default() }
        };
        let noise = Noise { busy: vec![1.0, 0.5], ..Noise::default() };
        Measured { case, round: 0, high: seen(us, 100), low: seen(900, requests - 100), noise }
    }

    #[test]
    fn the_peer_is_the_haproxy_that_lets_the_high_client_wait_least() {
        let mut sample = Sample::default();
        for (most, us) in [(1, 900), (2, 800), (4, 1500)] {
            sample.push(measured(case(Way::Haproxy(most), 200), us, 1000));
        }
        sample.push(measured(case(Way::Haproxy(8), 40), 1, 1000));
        assert_eq!(sample.peer(case(Way::Queue, 200)), Some(case(Way::Haproxy(2), 200)));
        assert_eq!(sample.peer(case(Way::Queue, 5)), None);
    }

    #[test]
    fn a_load_that_was_the_bottleneck_is_told() {
        let mut sample = Sample::default();
        sample.push(measured(case(Way::Plain, 200), 60_000, 3000));
        assert!(sample.warnings().is_empty(), "{:?}", sample.warnings());
        sample.measured[0].noise.busy = vec![0.5, 1.0];
        assert!(sample.warnings()[0].contains("1 of 1"), "{:?}", sample.warnings());
    }
}
