// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends SYNs at a constant rate, some at a time, so that what is left of the core stays with the load beside it.

use super::frame::Syn;
use super::{FIRST_CLIENT_PORT, Flood, Sent};
use crate::error::{Context, Result};
use fief_testkit::{PacketSender, Topology};
use nix::time::{ClockId, clock_gettime};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What it may fall behind before it gives up the rest: to catch up for long would be another load.
const LAG: Duration = Duration::from_millis(10);

/// Until its time or count is over, or `ended` is set.
pub fn run(flood: &Flood, ended: &AtomicBool) -> Result<Sent> {
    let sender = PacketSender::open(Topology::CLIENTS)?;
    let mut frames = vec![Syn::new(flood.server_mac, flood.server); PacketSender::BATCH];
    let mut streams = vec![Stream::new(0.0)];
    if flood.again_s > 0.0 {
        // the same numbers later make the same SYNs
        streams.push(Stream::new(flood.again_s));
    }
    let rate = flood.per_second / streams.len() as f64;
    let began_ns = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).context("read the clock")?).as_nanos() as u64;
    let begin = Instant::now();
    let end = Duration::from_secs_f64(flood.seconds);
    let most = (flood.per_second * flood.seconds) as u64;
    let sent = |streams: &[Stream]| streams.iter().map(|stream| stream.sent).sum::<u64>();
    let mut elapsed = begin.elapsed();
    while elapsed < end && sent(&streams) < most && !ended.load(Ordering::Relaxed) {
        for stream in &mut streams {
            stream.catch_up(flood, rate, elapsed, &sender, &mut frames)?;
        }
        std::thread::sleep(Duration::from_micros(flood.pause_us.into()));
        elapsed = begin.elapsed();
    }
    Ok(Sent { syns: sent(&streams), seconds: elapsed.as_secs_f64(), began_ns })
}

/// SYNs at a constant rate from some time on; two streams send the same ones.
struct Stream {
    random: Random,
    from_s: f64,
    sent: u64,
    skipped: u64,
}

impl Stream {
    fn new(from_s: f64) -> Stream {
        Stream { random: Random(0x9e37_79b9_7f4a_7c15), from_s, sent: 0, skipped: 0 }
    }

    fn catch_up(
        &mut self,
        flood: &Flood,
        rate: f64,
        elapsed: Duration,
        sender: &PacketSender,
        frames: &mut [Syn],
    ) -> Result<()> {
        let due = ((elapsed.as_secs_f64() - self.from_s).max(0.0) * rate) as u64;
        let lag = due.saturating_sub(self.sent + self.skipped);
        let given_up = lag.saturating_sub((LAG.as_secs_f64() * rate) as u64 + 1);
        (0..given_up).for_each(|_| _ = self.next(flood));
        self.skipped += given_up;
        while self.sent + self.skipped < due {
            let count = (due - self.sent - self.skipped).min(frames.len() as u64) as usize;
            for frame in &mut frames[..count] {
                let (address, port, sequence) = self.next(flood);
                frame.set(address, port, sequence);
            }
            let sent = sender.send(&frames[..count])? as u64;
            self.sent += sent;
            // What a full queue did not take is lost, as on a wire.
            self.skipped += count as u64 - sent;
        }
        Ok(())
    }

    /// Source, port and number of the next SYN.
    fn next(&mut self, flood: &Flood) -> (Ipv4Addr, u16, u32) {
        let (address, sequence) = (self.random.next() as u32, self.random.next() as u32);
        let port = 1 + (self.random.next() % u64::from(FIRST_CLIENT_PORT - 1)) as u16;
        (flood.sources.address(address), port, sequence)
    }
}

/// xorshift64*: fast, and every run floods alike.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sources, hush};
    use super::*;
    use fief_testkit::{Feature, PacketCounter, require};

    /// SYN without ACK over IPv4, without options in front of it.
    const SYNS: [(u16, u8, u8, u32); 6] = [
        (0x28, 0, 0, 12),
        (0x15, 0, 3, 0x0800),
        (0x30, 0, 0, 47),
        (0x15, 0, 1, 2),
        (0x06, 0, 0, u32::MAX),
        (0x06, 0, 0, 0),
    ];

    #[test]
    fn a_second_stream_sends_the_same_syns() {
        let flood = Flood {
            server: "10.77.0.1:80".parse().expect("an address"),
            server_mac: [0; 6],
            sources: Sources::new([10, 128, 0, 0], 10),
            per_second: 1.0,
            seconds: 1.0,
            again_s: 1.0,
            pause_us: 250,
            cpu: 0,
        };
        let [mut first, mut second] = [0.0, 1.0].map(Stream::new);
        let syns = |stream: &mut Stream| (0..100).map(|_| stream.next(&flood)).collect::<Vec<_>>();
        let (first, second) = (syns(&mut first), syns(&mut second));
        assert_eq!(first, second);
        assert_ne!(first[0], first[1]);
    }

    #[test]
    fn a_flood_keeps_its_rate_and_all_of_it_arrives() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        hush(&topology).expect("hushed");
        let counter = topology.server.run(|| PacketCounter::open("sv", &SYNS)).expect("inside").expect("a counter");
        let flood = Flood::of(&topology, Sources::new([10, 88, 0, 0], 16), 20_000.0, 0.5);
        // a busy machine keeps it from its core; no try may be faster, or lose any
        let is_steady = (0..5).any(|_| {
            let sent = topology.clients.run(|| run(&flood, &AtomicBool::new(false))).expect("inside").expect("sent");
            assert!(sent.syns <= 10_000, "{sent:?}");
            let mut counted = 0;
            let arrived = fief_testkit::wait_until(Duration::from_secs(20), || {
                counted += counter.take().unwrap_or_default();
                counted >= sent.syns
            });
            assert!(arrived.is_ok() && counted == sent.syns, "{counted} of {sent:?}");
            sent.syns >= 3_000
        });
        assert!(is_steady, "it does not keep its rate");
    }
}
