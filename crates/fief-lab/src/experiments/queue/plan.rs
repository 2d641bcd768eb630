// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is measured, and how often. FIEF_LAB_ONLY chooses servers, ways and parts by their names. Pure.

use super::case::{Case, Connections};
use super::kind::Kind;
use super::way::Way;
use crate::load::Protocol;
use crate::wanted::Wanted;

/// Of a request; the figures of all but the first end in their cost.
pub const COSTS_US: [u64; 2] = [300, 1000];

/// Of a server's requests, first of all. Queries, and requests over TLS, are measured at the higher one alone: at the other the
/// connection would be nearly all of it, and the load's core, which has half of each handshake, the bottleneck.
pub fn first_cost_us(kind: Kind) -> u64 {
    COSTS_US[usize::from(kind.protocol() != Protocol::Http)]
}

/// Loads between which the high client must not feel a difference.
pub const FEW: usize = 5;
pub const MANY: usize = 200;
/// Where servers are compared that are only looked at.
pub const SOME: usize = 40;
pub const MOST: usize = 1000;

#[derive(Clone, Debug)]
pub struct Plan {
    pub kinds: Vec<Kind>,
    pub ways: Vec<Way>,
    /// Numbers of low-priority clients.
    pub loads: Vec<usize>,
    pub costs_us: Vec<u64>,
    pub rounds: usize,
    pub seconds: f64,
    pub warm_up: f64,
    /// How often a disturbed measurement may be taken again.
    pub retries: usize,
}

impl Plan {
    pub fn quick() -> Plan {
        Plan {
            kinds: Kind::ALL.to_vec(),
            ways: vec![Way::Plain, Way::Queue, Way::Admit, Way::Shim, Way::LimitConn, Way::Haproxy(1), Way::Haproxy(4)],
            loads: vec![0, FEW, SOME, MANY],
            costs_us: vec![COSTS_US[0]],
            rounds: 3,
            seconds: 1.5,
            warm_up: 0.4,
            retries: 0,
        }
    }

    /// Steps tried once, of each kind.
    pub fn least() -> Plan {
        let kinds = vec![Kind::Nginx, Kind::NginxTls, Kind::Go, Kind::Gunicorn, Kind::Postgres];
        let ways = vec![Way::Plain, Way::Queue, Way::Admit, Way::Shim, Way::LimitConn, Way::Haproxy(4)];
        Plan { kinds, ways, rounds: 1, seconds: 0.2, warm_up: 0.1, ..Plan::quick() }
    }

    pub fn full() -> Plan {
        let quick = Plan::quick();
        let ways = [quick.ways, vec![Way::Haproxy(2), Way::Haproxy(8)]].concat();
        Plan {
            ways,
            loads: vec![0, FEW, SOME, MANY, MOST],
            costs_us: COSTS_US.to_vec(),
            rounds: 5,
            retries: 2,
            ..Plan::quick()
        }
    }

    /// Whether each step is only tried.
    pub fn is_tried(&self) -> bool {
        self.seconds < 0.5
    }

    /// Leaves out what was not asked for.
    pub fn only(mut self, wanted: &Wanted) -> Plan {
        self.kinds = chosen(wanted, self.kinds, |kind| kind.name().to_owned());
        self.ways = chosen(wanted, self.ways, |way| way.name());
        self
    }

    /// Costs of a request at which a server is measured.
    pub fn costs_us(&self, kind: Kind) -> Vec<u64> {
        if kind.protocol() == Protocol::Http { self.costs_us.clone() } else { vec![first_cost_us(kind)] }
    }

    /// What is measured of one running server after the other.
    pub fn stands(&self) -> Vec<Vec<Case>> {
        let mut stands = Vec::new();
        for &kind in &self.kinds {
            for cost_us in self.costs_us(kind) {
                for connections in Connections::ALL {
                    let of = |way: &Way| self.cases(Case { kind, way: *way, connections, low: 0, cost_us });
                    stands.extend(self.ways.iter().map(of).filter(|cases| !cases.is_empty()));
                }
            }
        }
        stands
    }

    /// At each of the loads.
    fn cases(&self, case: Case) -> Vec<Case> {
        self.loads.iter().map(|&low| Case { low, ..case }).filter(|case| self.has(case)).collect()
    }

    fn has(&self, case: &Case) -> bool {
        let Case { kind, way, connections, low, cost_us } = *case;
        let is_full = self.loads.contains(&MOST);
        if self.is_tried() && is_like_another(case) {
            return false;
        }
        if !way.is_for(kind) {
            return false;
        }
        if !kind.is_main() {
            // clients of PostgreSQL keep their connections, and however these began
            let is_wanted = match connections {
                Connections::Each => true,
                Connections::Persistent => kind == Kind::Postgres || is_full && !kind.is_postgres(),
            };
            return cost_us == first_cost_us(kind)
                && is_wanted
                && low == SOME
                && matches!(way, Way::Plain | Way::Queue);
        }
        if cost_us != first_cost_us(kind) && (connections == Connections::Persistent || ![FEW, MANY].contains(&low)) {
            return false;
        }
        match way {
            // beside nobody it is compared with admission
            Way::Plain | Way::Queue => is_full || low != SOME && (low > 0 || way == Way::Queue),
            Way::Admit => low == 0 || low == MANY,
            Way::Shim => [FEW, MANY].contains(&low) && (is_full || connections == Connections::Each),
            Way::Auto => low == MANY,
            Way::LimitConn => low == MANY && connections == Connections::Each,
            Way::Haproxy(_) => low == MANY,
        }
    }
}

/// Whether another case does the same as this one, where each is only tried.
fn is_like_another(case: &Case) -> bool {
    match case.way {
        Way::Admit => case.kind != Kind::Nginx || case.connections == Connections::Persistent,
        Way::Haproxy(_) => case.connections == Connections::Persistent,
        _ => case.kind == Kind::NginxTls && case.connections == Connections::Persistent,
    }
}

/// Those of a group that were asked for; all of it if none was.
pub fn chosen<T: Clone>(wanted: &Wanted, all: Vec<T>, name: impl Fn(&T) -> String) -> Vec<T> {
    let some: Vec<T> = all.iter().filter(|one| wanted.any(&[&name(one)])).cloned().collect();
    if some.is_empty() { all } else { some }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(plan: &Plan) -> Vec<Case> {
        plan.stands().concat()
    }

    #[test]
    fn every_main_server_is_compared_with_plain_and_with_admission_at_many_clients() {
        for plan in [Plan::quick(), Plan::full()] {
            let cases = cases(&plan);
            for kind in Kind::ALL.into_iter().filter(|kind| kind.is_main()) {
                let ways = [Way::Plain, Way::Queue, Way::Admit, Way::Haproxy(1)];
                for way in ways.into_iter().filter(|way| way.is_for(kind)) {
                    for connections in Connections::ALL {
                        let case = Case { kind, way, connections, low: MANY, cost_us: first_cost_us(kind) };
                        assert!(cases.contains(&case), "{case:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn one_running_server_has_one_kind_of_work() {
        for stand in Plan::full().stands() {
            let work = |case: &Case| (case.kind, case.way, case.connections, case.cost_us);
            assert!(stand.iter().all(|case| work(case) == work(&stand[0])), "{stand:?}");
        }
    }

    #[test]
    fn queries_are_measured_at_one_cost_and_first_on_connections_of_their_own() {
        for plan in [Plan::quick(), Plan::full()] {
            let all = cases(&plan);
            let queries = all.iter().filter(|case| case.kind.is_postgres());
            assert!(queries.clone().all(|case| (case.cost_us, case.low) == (COSTS_US[1], SOME)));
            for way in [Way::Plain, Way::Queue] {
                assert!(
                    queries.clone().any(|case| case.way == way && case.connections == Connections::Each),
                    "{way:?}"
                );
            }
        }
    }

    #[test]
    fn the_shim_is_for_nginx_alone() {
        let shim: Vec<Kind> =
            cases(&Plan::full()).iter().filter(|case| case.way == Way::Shim).map(|case| case.kind).collect();
        assert!(!shim.is_empty() && shim.iter().all(|kind| *kind == Kind::Nginx), "{shim:?}");
    }
}
