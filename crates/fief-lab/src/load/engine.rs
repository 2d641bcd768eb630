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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const STALL: Duration = Duration::from_millis(900);
/// What a server answers that is up and will not.
const REFUSALS: [u16; 2] = [503, 429];
/// epoll's word for the timer; clients have small numbers.
const TIMER: u64 = u64::MAX;
/// How soon it sees that it is to end.
const LOOKS: Duration = Duration::from_millis(50);

/// Somebody asked the load of this process to end.
static ENDING: AtomicBool = AtomicBool::new(false);

pub fn end() {
    ENDING.store(true, Ordering::Relaxed);
}

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
    is_settling: bool,
}

#[derive(Default)]
struct Client {
    connection: Option<Connection>,
    /// For the next request.
    kept: Option<Connection>,
    /// Its connection has borne no answer yet.
    is_new: bool,
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
        is_settling: false,
    };
    let warm = begin + Duration::from_secs_f64(load.warm_up);
    let end = warm + Duration::from_secs_f64(load.seconds);
    let interval = Duration::from_millis(load.live_ms);
    let mut told = begin;
    let mut is_warm = false;
    loop {
        let now = Instant::now();
        if now >= end || ENDING.load(Ordering::Relaxed) {
            break;
        }
        if !is_warm && now >= warm {
            is_warm = true;
            if warm > begin {
                // what was due before is the warm-up's, however late this comes
                engine.give_up_due(warm);
                engine.start_due(warm)?;
                engine.seen = Seen::default();
            }
        }
        if load.live_ms > 0 && now - told >= interval {
            let mut live = std::mem::take(&mut engine.live);
            live.seconds = (now - told).as_secs_f64();
            tell(Line::Live(live));
            told = now;
        }
        engine.give_up_due(now);
        engine.start_due(now)?;
        engine.step(end.min(now + LOOKS))?;
    }
    engine.seen.seconds = Instant::now().saturating_duration_since(warm).as_secs_f64();
    engine.settle()?;
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

    /// Waits for what is under way.
    fn settle(&mut self) -> Result<()> {
        if self.load.settle_ms == 0 {
            return Ok(());
        }
        self.is_settling = true;
        let under_way = |engine: &Self| engine.clients.iter().filter(|client| client.connection.is_some()).count();
        let end = Instant::now() + Duration::from_millis(self.load.settle_ms);
        while under_way(self) > 0 && Instant::now() < end {
            self.give_up_due(Instant::now());
            self.step(end.min(Instant::now() + LOOKS))?;
        }
        self.seen.given_up += under_way(self) as u64;
        Ok(())
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
            client.is_new = false;
            // it has been writable before, so no event comes
            return self.handle(number, EpollFlags::empty());
        }
        match Connection::open(self.load, number, client.requests) {
            Ok(connection) => {
                self.epoll
                    .add(connection.fd(), EpollEvent::new(events(), number as u64))
                    .context("watch a connection")?;
                client.connection = Some(connection);
                client.is_new = true;
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
        self.seen.connections += u64::from(self.clients[number].is_new);
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
            true if !self.is_settling => self.start(number),
            _ => Ok(()),
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
mod tests;
