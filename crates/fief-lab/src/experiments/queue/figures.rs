// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of the closed loop, each with what it must be. Pure.
//!
//! Nothing is said of a server whose queue was not measured.

use super::case::{Case, Connections};
use super::kind::Kind;
use super::plan::{FEW, MANY, MOST, Plan, SOME, first_cost_us};
use super::sample::Sample;
use super::way::Way;
use crate::figures::{Bound, Figures};
use crate::statistics::median;
use crate::table::cost_ms;

pub fn figures(plan: &Plan, sample: &Sample) -> Figures {
    let mut figures = Figures::default();
    for &kind in &plan.kinds {
        for cost_us in plan.costs_us(kind) {
            for connections in Connections::ALL {
                let case = Case { kind, way: Way::Queue, connections, low: MANY, cost_us };
                let mut place = Place { sample, case, figures: &mut figures };
                match kind.is_main() {
                    true => place.main(),
                    false => place.other(),
                }
            }
        }
    }
    figures
}

/// One server, with one kind of connection and one cost of a request.
struct Place<'a> {
    sample: &'a Sample,
    /// Of the queue, beside many others.
    case: Case,
    figures: &'a mut Figures,
}

impl Place<'_> {
    fn name(&self, name: &str) -> String {
        let cost = if self.case.cost_us == first_cost_us(self.case.kind) { "" } else { "_1ms" };
        format!("{}.{name}{}{cost}", self.case.kind.name(), self.case.connections.suffix())
    }

    fn add(&mut self, name: &str, value: f64, bound: Option<Bound>, unit: &'static str, metric: &str) {
        let name = self.name(name);
        let Case { kind, connections, low, cost_us, .. } = self.case;
        let figure = match bound {
            Some(bound) => self.figures.must(name, value, bound),
            None => self.figures.add(name, value),
        };
        let load = format!(
            "{}, {}, requests of {}: {low} others, as fast as they are answered, where no other number is said; one \
             paying client",
            kind.title(),
            connections.title(),
            cost_ms(cost_us)
        );
        figure.of(metric, unit, load);
    }

    /// A ratio of this case to another, if both were measured.
    fn ratio(
        &mut self,
        name: &str,
        of: impl Fn(&Sample, Case) -> Vec<f64>,
        (over, under): (Case, Case),
        bound: Option<Bound>,
        metric: &str,
    ) {
        if self.sample.has_case(over) && self.sample.has_case(under) {
            let value = self.sample.ratio(of, over, under);
            self.add(name, value, bound, "ratio", metric);
        }
    }

    fn at(&self, low: usize) -> Case {
        Case { low, ..self.case }
    }

    fn by(&self, way: Way) -> Case {
        Case { way, ..self.case }
    }

    fn main(&mut self) {
        let Case { kind, connections, .. } = self.case;
        let is_go = kind == Kind::Go;
        let is_persistent = connections == Connections::Persistent;
        let many = self.case;
        let (plain, admit) = (self.by(Way::Plain), self.by(Way::Admit));
        let (most, least) = (|most| Some(Bound::AtMost(most)), |least| Some(Bound::AtLeast(least)));
        let (means, p99s, all) = (Sample::means, Sample::p99s, Sample::throughputs);

        let flat = "of the paying client's, of that beside 5";
        self.ratio("flatness", means, (many, self.at(FEW)), most(1.15), &format!("mean response time {flat}"));
        self.ratio("p99_flatness", p99s, (many, self.at(FEW)), most(1.5), &format!("99th percentile {flat}"));
        let bound = most(if is_go { 0.02 } else { 0.03 });
        self.ratio(
            "t200_vs_plain",
            means,
            (many, plain),
            bound,
            "mean response time of the paying client's, of plain's",
        );
        let bound = least(if is_go || is_persistent { 0.97 } else { 0.90 });
        self.ratio("throughput_vs_plain", all, (many, plain), bound, "requests a second of all clients, of plain's");
        let bound = if is_go { None } else { least(0.97) };
        let metric = "requests a second of all clients, of admission's without a queue";
        self.ratio("throughput_vs_admission", all, (many, admit), bound, metric);

        let thousand = (self.at(MOST), many);
        let metric = "mean response time of the paying client's beside 1000, of that beside 200";
        self.ratio("t1000_vs_t200", means, thousand, most(1.3), metric);
        let thousand = (self.at(MOST), Case { low: MOST, ..plain });
        let metric = "requests a second of all clients at 1000, of plain's";
        self.ratio("throughput_1000", all, thousand, least(0.9), metric);

        if let Some(peer) = self.sample.peer(many) {
            let by = peer.way.title();
            let metric = format!("mean response time of the paying client's, of that by {by} (the peer)");
            self.ratio("vs_peer_t200", means, (many, peer), most(1.0), &metric);
            let metric = format!("requests a second of all clients, of those by {by} (the peer)");
            self.ratio("vs_peer_throughput", all, (many, peer), least(1.1), &metric);
        }
        let alone = (self.at(0), Case { low: 0, ..admit });
        let metric = "mean response time of the paying client's beside nobody, of that with admission and no queue";
        self.ratio("alone", means, alone, most(1.05), metric);
        self.absolute();
    }

    /// What the ratios are made of.
    fn absolute(&mut self) {
        for way in [Way::Queue, Way::Auto, Way::Plain, Way::Shim] {
            let case = self.by(way);
            if self.sample.has_case(case) && self.sample.has_case(self.case) {
                let (name, title) = (way.name(), way.title());
                let (mean, p99) = (median(&self.sample.means(case)), self.sample.p99_us(case));
                let metric = format!("mean response time of the paying client's: {title}");
                self.add(&format!("{name}_t200"), mean / 1000.0, None, "ms", &metric);
                let metric = format!("99th percentile of the paying client's response time: {title}");
                self.add(&format!("{name}_p99_t200"), p99 / 1000.0, None, "ms", &metric);
            }
        }
    }

    fn other(&mut self) {
        let some = self.at(SOME);
        self.case = some;
        let plain = self.by(Way::Plain);
        let bound = Some(Bound::AtMost(0.2));
        let metric = "mean response time of the paying client's, of plain's";
        self.ratio("t40_vs_plain", Sample::means, (some, plain), bound, metric);
        let metric = "requests a second of all clients, of plain's";
        self.ratio("throughput_vs_plain", Sample::throughputs, (some, plain), None, metric);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::{case, measured};
    use super::*;

    fn sample() -> Sample {
        let mut sample = Sample::default();
        for (way, low, us, requests) in [
            (Way::Plain, FEW, 2000, 3000),
            (Way::Plain, MANY, 70_000, 3000),
            (Way::Queue, FEW, 700, 3000),
            (Way::Queue, MANY, 770, 2970),
            (Way::Queue, 0, 400, 1000),
            (Way::Admit, 0, 400, 1000),
            (Way::Haproxy(1), MANY, 1100, 2500),
            (Way::Haproxy(4), MANY, 2000, 2970),
        ] {
            sample.push(measured(case(way, low), us, requests));
        }
        sample
    }

    #[test]
    fn figures_are_ratios_within_a_round_and_the_peer_is_one_configuration() {
        let figures = figures(&Plan::quick(), &sample());
        let figure = |name: &str| figures.get(name).unwrap_or_else(|| panic!("{name} in {figures:?}"));
        let is = |name: &str, value: f64| assert!((figure(name) - value).abs() < 1e-6, "{name} {}", figure(name));
        is("go.flatness", 1.1);
        is("go.t200_vs_plain", 0.011);
        is("go.throughput_vs_plain", 0.99);
        is("go.vs_peer_t200", 0.7);
        is("go.vs_peer_throughput", 1.188);
        is("go.alone", 1.0);
        assert_eq!(figures.missed().count(), 0, "{:?}", figures.missed().collect::<Vec<_>>());
    }

    #[test]
    fn a_query_has_bounds_on_either_kind_of_connection_and_no_cost_in_its_name() {
        let mut sample = Sample::default();
        for connections in Connections::ALL {
            for (way, us) in [(Way::Plain, 40_000), (Way::Queue, 36_000)] {
                let case = Case { kind: Kind::Postgres, connections, cost_us: 1000, ..case(way, SOME) };
                sample.push(measured(case, us, 500));
            }
        }
        let figures = figures(&Plan::full(), &sample);
        let missed: Vec<_> = figures.missed().map(|figure| figure.name.as_str()).collect();
        assert_eq!(missed, ["postgresql.t40_vs_plain", "postgresql.t40_vs_plain_persistent"]);
    }

    #[test]
    fn what_was_not_measured_is_no_figure() {
        let figures = figures(&Plan::quick(), &sample());
        for name in ["nginx.flatness", "go.flatness_persistent", "go.t1000_vs_t200", "go.throughput_vs_admission"] {
            assert!(figures.get(name).is_none(), "{name}");
        }
    }
}
