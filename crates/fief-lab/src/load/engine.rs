// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event loop of the load: one thread, one epoll, every client at most one connection.

use super::connection::{Connection, Progress};
use super::turns::{Due, Turn, Turns};
use super::{Close, Line, Load, Protocol, Seen, postgres};
use crate::error::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const STALL: Duration = Duration::from_millis(900);
/// What a server answers that is up and will not.
const REFUSALS: [u16; 2] = [503, 429];
/// epoll's word for the timer; clients have small numbers.
const TIMER: u64 = u64::MAX;

/// Told once of each change, so that no connection has to be registered twice.
fn events() -> EpollFlags {
    EpollFlags::EPOLLOUT | EpollFlags::EPOLLIN | EpollFlags::EPOLLET
}

struct Engine<'a> {
    load: &'a Load,
    request: Vec<u8>,
    epoll: Epoll,
    timer: TimerFd,
    /// When the timer will fire.
    armed: Option<Instant>,
    clients: Vec<Client>,
    turns: Turns,
    seen: Seen,
    live: Seen,
    buffer: Vec<u8>,
}

#[derive(Default)]
struct Client {
    connection: Option<Connection>,
    /// For the next request.
    kept: Option<Connection>,
    requests: usize,
}

/// Loads the server for its time and tells what it saw.
pub fn run(load: &Load, mut tell: impl FnMut(Line)) -> Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an epoll")?;
    // epoll's own timeout counts in ms, too coarse for a think time of two.
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK).context("make a timer")?;
    epoll
        .add(timer.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER))
        .context("watch the timer")?;
    let begin = Instant::now();
    let mut engine = Engine {
        load,
        request: request(load),
        epoll,
        timer,
        armed: None,
        clients: (0..load.clients).map(|_| Client::default()).collect(),
        turns: Turns::new(load, begin),
        seen: Seen::default(),
        live: Seen::default(),
        buffer: vec![0; 65536],
    };
    let warm = begin + Duration::from_secs_f64(load.warm_up);
    let end = warm + Duration::from_secs_f64(load.seconds);
    let interval = Duration::from_millis(load.live_ms);
    let mut told = begin;
    let mut is_warm = false;
    loop {
        let now = Instant::now();
        if now >= end {
            break;
        }
        if !is_warm && now >= warm {
            is_warm = true;
            engine.seen = Seen::default();
        }
        if load.live_ms > 0 && now - told >= interval {
            let mut live = std::mem::take(&mut engine.live);
            live.seconds = (now - told).as_secs_f64();
            tell(Line::Live(live));
            told = now;
        }
        engine.give_up_due(now);
        engine.start_due(now)?;
        engine.step(end.min(now + Duration::from_millis(50)))?;
    }
    engine.seen.seconds = (Instant::now() - warm).as_secs_f64();
    engine.seen.stalls += engine.stalled();
    tell(Line::Done(engine.seen));
    Ok(())
}

fn request(load: &Load) -> Vec<u8> {
    match load.protocol {
        Protocol::Postgres { .. } => postgres::query(&load.path),
        // Compression is for the servers that are told to; it makes their requests cost CPU.
        Protocol::Http | Protocol::Tls => format!(
            "GET {} HTTP/1.{}\r\nHost: server\r\nAccept-Encoding: gzip\r\n\r\n",
            load.path,
            u8::from(load.close == Close::Keep)
        )
        .into_bytes(),
    }
}

impl Engine<'_> {
    fn start_due(&mut self, now: Instant) -> Result<()> {
        while let Some(due) = self.turns.take(now) {
            match due {
                Due::Start(client) => self.start(client)?,
                Due::Shed => self.seen.shed += 1,
            }
        }
        Ok(())
    }

    /// Closes what nobody waits for any more.
    fn give_up_due(&mut self, now: Instant) {
        while let Some(turn) = self.turns.take_given_up(now) {
            let client = &mut self.clients[turn.client];
            if client.requests == turn.request && client.connection.take().is_some() {
                self.seen.given_up += 1;
                self.live.given_up += 1;
                self.turns.failed(turn.client, now);
            }
        }
    }

    fn start(&mut self, number: usize) -> Result<()> {
        let client = &mut self.clients[number];
        client.requests += 1;
        self.seen.begun += 1;
        let now = Instant::now();
        self.turns.begun(Turn { client: number, request: client.requests }, now);
        if let Some(mut kept) = client.kept.take() {
            kept.started = now;
            client.connection = Some(kept);
            // it has been writable before, so no event comes
            return self.handle(number, EpollFlags::empty());
        }
        match Connection::open(self.load, number, client.requests) {
            Ok(connection) => {
                self.epoll
                    .add(connection.fd(), EpollEvent::new(events(), number as u64))
                    .context("watch a connection")?;
                client.connection = Some(connection);
            }
            Err(errno) => {
                // A wrong address would fail for ever; the rest is load.
                if matches!(errno, nix::errno::Errno::EADDRNOTAVAIL | nix::errno::Errno::EINVAL)
                    && self.seen.errors > 10_000
                {
                    return Err(errno).context("connect");
                }
                self.fail(number);
            }
        }
        Ok(())
    }

    /// Waits for events, or until the next client is due, and handles them.
    fn step(&mut self, until: Instant) -> Result<()> {
        if let Some(next) = self.turns.next()
            && self.armed != Some(next)
        {
            let pause = next.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
            self.timer
                .set(Expiration::OneShot(TimeSpec::from_duration(pause)), TimerSetTimeFlags::empty())
                .context("set the timer")?;
            self.armed = Some(next);
        }
        let most = until.saturating_duration_since(Instant::now()).as_millis() as u16;
        let mut events = [EpollEvent::empty(); 64];
        let count = match self.epoll.wait(&mut events, EpollTimeout::from(most)) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(errno) => return Err(errno).context("wait for events"),
        };
        for event in &events[..count] {
            match event.data() {
                TIMER => self.armed = None,
                client => self.handle(client as usize, event.events())?,
            }
        }
        Ok(())
    }

    fn handle(&mut self, number: usize, flags: EpollFlags) -> Result<()> {
        let Some(connection) = self.clients[number].connection.as_mut() else {
            return Ok(());
        };
        let failed = flags.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        match connection.proceed(&self.request, failed, &mut self.buffer) {
            Progress::Waiting => {}
            Progress::Complete(status) => self.complete(number, status)?,
            Progress::Failed => self.fail(number),
        }
        Ok(())
    }

    fn complete(&mut self, number: usize, status: u16) -> Result<()> {
        let Some(connection) = self.clients[number].connection.take() else {
            return Ok(());
        };
        let now = Instant::now();
        let took = now - connection.started;
        self.clients[number].kept = connection.end(self.load.close, &mut self.buffer);
        match status {
            200..=299 => {
                let ns = took.as_nanos() as u64;
                self.seen.latency.record(ns);
                self.seen.stalls += u64::from(took >= STALL);
                if self.load.live_ms > 0 {
                    self.live.latency.record(ns);
                }
            }
            _ if REFUSALS.contains(&status) => {
                self.seen.refused += 1;
                self.live.refused += 1;
            }
            _ => {
                self.seen.errors += 1;
                self.live.errors += 1;
            }
        }
        match self.turns.answered(number, now) {
            true => self.start(number),
            false => Ok(()),
        }
    }

    fn fail(&mut self, number: usize) {
        self.clients[number].connection = None;
        self.seen.errors += 1;
        self.live.errors += 1;
        self.turns.failed(number, Instant::now());
    }

    fn stalled(&self) -> u64 {
        let connections = self.clients.iter().filter_map(|client| client.connection.as_ref());
        connections.filter(|connection| connection.started.elapsed() >= STALL).count() as u64
    }
}

#[cfg(test)]
mod tests {
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
            cpu: 0,
            fifo: 0,
            live_ms: 0,
        }
    }

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
                let seen = done(&topology, &load(family, close, 5));
                assert!(seen.latency.count() > 0, "{family:?} {close:?}");
                assert_eq!((seen.errors, seen.stalls), (0, 0), "{family:?} {close:?}");
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
        let opened = || {
            let text = topology.server.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).expect("inside");
            let lines: Vec<_> =
                text.expect("read").lines().filter(|line| line.starts_with("Tcp:")).map(str::to_owned).collect();
            let of = |line: &str, place| line.split(' ').nth(place).map(str::to_owned);
            let place = lines[0].split(' ').position(|name| name == "PassiveOpens").expect("a counter");
            of(&lines[1], place).and_then(|count| count.parse::<u64>().ok()).expect("a number")
        };
        let before = opened();
        let seen = done(&topology, &Load { warm_up: 0.0, ..load(Family::V4, Close::Keep, 5) });
        assert_eq!((seen.errors, seen.stalls), (0, 0));
        let connections = opened() - before;
        // the last ones of the load bear fewer
        assert!(
            connections * 7 >= seen.begun && connections * 7 < seen.begun + 5 * 7,
            "{connections} for {}",
            seen.begun
        );
    }

    #[test]
    fn a_think_time_keeps_the_load_slow() {
        if !(require(Feature::NetNs) && require(Feature::Nginx)) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let _nginx = Nginx::start(&topology.server, 80).expect("nginx");
        let load = Load { think_us: 50_000, ..load(Family::V4, Close::Rst, 1) };
        let seen = done(&topology, &load);
        assert!((1..=6).contains(&seen.latency.count()), "{} requests in 300 ms", seen.latency.count());
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
        let load = Load { arrivals, patience_ms: 100, warm_up: 0.2, ..load(Family::V4, Close::Fin, 60) };
        let seen = done(&topology, &load);
        assert!((50..=62).contains(&seen.begun), "{} requests in 300 ms", seen.begun);
        assert!((50..=62).contains(&seen.given_up), "{} given up", seen.given_up);
        assert_eq!((seen.latency.count(), seen.shed, seen.errors), (0, 0, 0));
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
        assert!((50..=62).contains(&done(&topology, &load).shed));
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
        let seen = |path: &str| done(&topology, &Load { path: path.to_owned(), ..load(Family::V4, Close::Rst, 2) });
        let (busy, gone) = (seen("/busy"), seen("/gone"));
        assert!(busy.refused > 0 && busy.errors == 0 && busy.latency.count() == 0, "{busy:?}");
        assert!(gone.errors > 0 && gone.refused == 0 && gone.latency.count() == 0, "{gone:?}");
    }

    #[test]
    fn a_server_that_is_not_there_is_errors_and_no_hang() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let seen = done(&topology, &load(Family::V4, Close::Rst, 2));
        assert_eq!(seen.latency.count(), 0);
        assert!(seen.errors > 0);
    }
}
