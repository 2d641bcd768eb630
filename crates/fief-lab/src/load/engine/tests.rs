// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The load against nginx, and against nobody.

use super::*;
use crate::load::Arrivals;
use fief_testkit::{Client, Family, Feature, Nginx, NginxConfig, Topology, require};

fn load(family: Family, close: Close, clients: usize) -> Load {
    Load {
        server: Topology::server_address(family, 80),
        protocol: Protocol::Http,
        path: "/1k".to_owned(),
        seconds: 0.3,
        warm_up: 0.05,
        first: Client::Low.address(family, 1),
        addresses: 20,
        clients,
        think_us: 0,
        arrivals: None,
        patience_ms: 0,
        close,
        settle_ms: 0,
        cpu: 0,
        fifo: 0,
        live_ms: 0,
    }
}

/// A machine that stands still keeps back what was due then; no try may have more.
const TRIES: usize = 5;

fn done(topology: &Topology, load: &Load) -> Seen {
    topology.clients.run(|| crate::load::seen_here(load)).expect("inside").expect("loaded")
}

#[test]
fn every_request_is_answered_over_both_families_with_either_close() {
    if !(require(Feature::NetNs) && require(Feature::Nginx)) {
        return;
    }
    let topology = Topology::new().expect("a topology");
    let _nginx = Nginx::start(&topology.server, 80).expect("nginx");
    for family in [Family::V4, Family::V6] {
        for close in [Close::Rst, Close::Fin] {
            let is_answered = (0..TRIES).any(|_| {
                let seen = done(&topology, &load(family, close, 5));
                assert_eq!(seen.errors, 0, "{family:?} {close:?}");
                seen.latency.count() > 0 && seen.stalls == 0
            });
            assert!(is_answered, "{family:?} {close:?}");
        }
    }
}

#[test]
fn kept_connections_bear_one_request_after_the_other_and_outlive_their_end_by_the_server() {
    if !(require(Feature::NetNs) && require(Feature::Nginx)) {
        return;
    }
    let topology = Topology::new().expect("a topology");
    let config = NginxConfig::new(80, 1, "keepalive_requests 7;").expect("written");
    let _nginx = Nginx::start_with(&topology.server, config).expect("nginx");
    let opened = || topology.server.tcp_counter("PassiveOpens").expect("a counter");
    let is_smooth = (0..TRIES).any(|_| {
        let before = opened();
        let seen = done(&topology, &Load { warm_up: 0.0, ..load(Family::V4, Close::Keep, 5) });
        assert_eq!(seen.errors, 0);
        if seen.stalls > 0 {
            return false;
        }
        let connections = opened() - before;
        // the last one of a client may bear no answer
        assert!((connections - 5..=connections).contains(&seen.connections), "{connections}: {seen:?}");
        // the last ones of the load bear fewer; at its end each client may have begun a request on one that the server has not made yet
        let most = connections * 7;
        assert!(most + 5 >= seen.begun && most < seen.begun + 5 * 7, "{connections} for {}", seen.begun);
        true
    });
    assert!(is_smooth, "requests stall");
}

#[test]
fn a_think_time_keeps_the_load_slow() {
    if !(require(Feature::NetNs) && require(Feature::Nginx)) {
        return;
    }
    let topology = Topology::new().expect("a topology");
    let _nginx = Nginx::start(&topology.server, 80).expect("nginx");
    let load = Load { think_us: 50_000, ..load(Family::V4, Close::Rst, 1) };
    let is_loaded = (0..TRIES).any(|_| {
        let count = done(&topology, &load).latency.count();
        assert!(count <= 6, "{count} requests in 300 ms");
        count > 0
    });
    assert!(is_loaded, "no request in 300 ms");
}

#[test]
fn what_is_under_way_at_the_end_is_waited_for_and_else_given_up() {
    if !(require(Feature::NetNs) && require(Feature::Nginx)) {
        return;
    }
    let topology = Topology::new().expect("a topology");
    let settled = |close| Load { warm_up: 0.0, settle_ms: 5000, ..load(Family::V4, close, 5) };
    {
        let _nginx = Nginx::start(&topology.server, 80).expect("nginx");
        for close in [Close::Fin, Close::Keep] {
            let seen = done(&topology, &settled(close));
            assert_eq!((seen.begun, seen.lost()), (seen.latency.count(), 0), "{close:?}: {seen:?}");
            match close {
                // nginx ends one after 1000 requests
                Close::Keep => assert!((5..=5 + seen.begun / 1000).contains(&seen.connections), "{seen:?}"),
                _ => assert_eq!(seen.connections, seen.begun),
            }
        }
    }
    let address = Topology::server_address(Family::V4, 80);
    // nginx's worker may end after its master, who alone is waited for
    let mut listener = None;
    let bind = || topology.server.run(|| std::net::TcpListener::bind(address)).expect("inside");
    let listens = fief_testkit::wait_until(std::time::Duration::from_secs(20), || {
        listener = bind().ok();
        listener.is_some()
    });
    listens.expect("the port is free");
    let seen = done(&topology, &Load { settle_ms: 50, ..settled(Close::Fin) });
    assert_eq!((seen.begun, seen.given_up, seen.connections), (5, 5, 0), "{seen:?}");
}

#[test]
fn an_open_loop_comes_at_its_rate_though_nothing_is_answered() {
    if !require(Feature::NetNs) {
        return;
    }
    let topology = Topology::new().expect("a topology");
    // It listens and never accepts: connections are made, requests sent, and nobody answers.
    let address = Topology::server_address(Family::V4, 80);
    let _listener = topology.server.run(|| std::net::TcpListener::bind(address)).expect("inside").expect("listens");
    let arrivals = Some(Arrivals::evenly(200.0));
    let load = Load { arrivals, patience_ms: 100, warm_up: 0.0, settle_ms: 10_000, ..load(Family::V4, Close::Fin, 60) };
    let is_steady = (0..TRIES).any(|_| {
        let seen = done(&topology, &load);
        assert!(seen.begun + seen.shed <= 62, "{seen:?} in 300 ms");
        assert_eq!((seen.given_up, seen.latency.count(), seen.errors), (seen.begun, 0, 0), "{seen:?}");
        seen.begun >= 50 && seen.shed == 0
    });
    assert!(is_steady, "it does not come at its rate");
}

#[test]
fn arrivals_without_a_free_client_are_shed() {
    if !require(Feature::NetNs) {
        return;
    }
    let topology = Topology::new().expect("a topology");
    let address = Topology::server_address(Family::V4, 80);
    let _listener = topology.server.run(|| std::net::TcpListener::bind(address)).expect("inside").expect("listens");
    let load = Load { arrivals: Some(Arrivals::evenly(200.0)), ..load(Family::V4, Close::Fin, 3) };
    let is_steady = (0..TRIES).any(|_| {
        let shed = done(&topology, &load).shed;
        assert!(shed <= 62, "{shed}");
        shed >= 50
    });
    assert!(is_steady, "not all are shed");
}

#[test]
fn a_refusal_is_told_apart_from_an_answer_and_from_a_failure() {
    if !(require(Feature::NetNs) && require(Feature::Nginx)) {
        return;
    }
    let topology = Topology::new().expect("a topology");
    let refuse = "location /busy { return 503; }\nlocation /gone { return 410; }";
    let config = NginxConfig::new(80, 1, refuse).expect("written");
    let _nginx = Nginx::start_with(&topology.server, config).expect("nginx");
    let is_all = |path: &str, told: fn(&Seen) -> u64| {
        let load = Load { path: path.to_owned(), ..load(Family::V4, Close::Rst, 2) };
        (0..TRIES).any(|_| {
            let seen = done(&topology, &load);
            assert_eq!((seen.refused + seen.errors, seen.latency.count()), (told(&seen), 0), "{path}: {seen:?}");
            told(&seen) > 0
        })
    };
    assert!(is_all("/busy", |seen| seen.refused), "nothing was refused");
    assert!(is_all("/gone", |seen| seen.errors), "nothing failed");
}

#[test]
fn a_server_that_is_not_there_is_errors_and_no_hang() {
    if !require(Feature::NetNs) {
        return;
    }
    let topology = Topology::new().expect("a topology");
    let is_told = (0..TRIES).any(|_| {
        let seen = done(&topology, &load(Family::V4, Close::Rst, 2));
        assert_eq!(seen.latency.count(), 0);
        seen.errors > 0
    });
    assert!(is_told, "no error in 300 ms");
}
