// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A link that loses, doubles and reorders TCP packets, the same ones for the same seed.
//!
//! It stands in a namespace between the two ends and carries frames from one to the other in user space, since not every
//! kernel has netem. What becomes of the n-th TCP packet of a direction depends on the seed, the direction and n alone;
//! what is not TCP passes. Frames must come with whole checksums and unmerged, so the offloads of both ends are off.

use crate::segment::{IPV4, IPV6, TCP};
use crate::{Dice, Error, NetNs, Result, Wire};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Of a thousand packets, how many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Impairment {
    pub seed: u64,
    pub lost: u32,
    pub doubled: u32,
    /// Kept back until one to three others have passed, or for [`PATIENCE_MS`].
    pub reordered: u32,
}

/// A kept packet goes on after so long without another.
pub const PATIENCE_MS: u16 = 5;

/// What was done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impaired {
    pub passed: u64,
    pub lost: u64,
    pub doubled: u64,
    pub reordered: u64,
}

#[derive(Debug, Default)]
struct Counters {
    passed: AtomicU64,
    lost: AtomicU64,
    doubled: AtomicU64,
    reordered: AtomicU64,
}

/// Carries frames until it is dropped.
#[derive(Debug)]
pub struct Impairer {
    counters: Arc<Counters>,
    /// Closed: both directions end.
    stop: Option<OwnedFd>,
    directions: Vec<JoinHandle<()>>,
}

impl Impairer {
    /// Between two interfaces of a namespace.
    pub fn start(namespace: &NetNs, interfaces: [&str; 2], impairment: Impairment) -> Result<Impairer> {
        let counters = Arc::new(Counters::default());
        let (stopped, stop) =
            nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|errno| Error::errno("make a pipe", errno))?;
        let stopped = Arc::new(stopped);
        let wires = interfaces.map(|interface| Wire::open(namespace, interface).map(Arc::new));
        let [near, far] = wires;
        let (near, far) = (near?, far?);
        let mut directions = Vec::new();
        for (number, (from, to)) in [(near.clone(), far.clone()), (far, near)].into_iter().enumerate() {
            let dice = Dice::new(impairment.seed ^ (number as u64 + 1) << 32);
            let direction = Direction { impairment, dice, from, to, kept: None, counters: counters.clone() };
            let stopped = stopped.clone();
            directions.push(std::thread::spawn(move || direction.carry(&stopped)));
        }
        Ok(Impairer { counters, stop: Some(stop), directions })
    }

    pub fn so_far(&self) -> Impaired {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Impaired {
            passed: read(&self.counters.passed),
            lost: read(&self.counters.lost),
            doubled: read(&self.counters.doubled),
            reordered: read(&self.counters.reordered),
        }
    }
}

impl Drop for Impairer {
    fn drop(&mut self) {
        drop(self.stop.take());
        for direction in self.directions.drain(..) {
            // A panic there has been reported, and the packets that it did not carry fail the test.
            let _ = direction.join();
        }
    }
}

struct Direction {
    impairment: Impairment,
    dice: Dice,
    from: Arc<Wire>,
    to: Arc<Wire>,
    /// A packet, and how many others are to pass before it.
    kept: Option<(Vec<u8>, u32)>,
    counters: Arc<Counters>,
}

impl Direction {
    fn carry(mut self, stopped: &OwnedFd) {
        let mut buffer = vec![0; 1 << 17];
        loop {
            let patience = if self.kept.is_some() { PollTimeout::from(PATIENCE_MS) } else { PollTimeout::NONE };
            let mut ready = [self.from.as_fd(), stopped.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let count = poll(&mut ready, patience).unwrap_or(0);
            if ready[1].any().unwrap_or(false) {
                return;
            }
            if count == 0 {
                self.release();
            }
            while let Some(length) = self.from.receive_now(&mut buffer) {
                self.frame(&buffer[..length]);
            }
        }
    }

    fn frame(&mut self, frame: &[u8]) {
        if !is_tcp(frame) {
            return self.pass(frame);
        }
        // Each packet takes the same number of rolls, so that the n-th one's fate depends on nothing before it.
        let [lost, doubled, reordered] = [(); 3].map(|()| self.dice.roll(1000) as u32);
        let others = 1 + self.dice.roll(3) as u32;
        if lost < self.impairment.lost {
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if reordered < self.impairment.reordered && self.kept.is_none() {
            self.counters.reordered.fetch_add(1, Ordering::Relaxed);
            self.kept = Some((frame.to_vec(), others));
            return;
        }
        if doubled < self.impairment.doubled {
            self.counters.doubled.fetch_add(1, Ordering::Relaxed);
            self.pass(frame);
        }
        self.pass(frame);
        if let Some((_, others)) = &mut self.kept {
            *others -= 1;
            if *others == 0 {
                self.release();
            }
        }
    }

    fn release(&mut self) {
        if let Some((frame, _)) = self.kept.take() {
            self.pass(&frame);
        }
    }

    fn pass(&self, frame: &[u8]) {
        self.counters.passed.fetch_add(1, Ordering::Relaxed);
        // An end that is down or full loses it, as a link does.
        let _ = self.to.send(frame);
    }
}

fn is_tcp(frame: &[u8]) -> bool {
    let protocol = match frame.get(12..14).map(|kind| u16::from_be_bytes([kind[0], kind[1]])) {
        Some(IPV4) => frame.get(23),
        Some(IPV6) => frame.get(20),
        _ => None,
    };
    protocol == Some(&TCP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, Feature, Topology, require};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_stream_survives_what_the_link_does_to_its_packets() {
        if !require(Feature::NetNs) {
            return;
        }
        let impairment = Impairment { seed: 7, lost: 20, doubled: 50, reordered: 100 };
        let topology = Topology::impaired(impairment).expect("a topology");
        let server = Topology::server_address(Family::V4, 4000);
        let listener = topology.server.run(|| TcpListener::bind(server)).expect("inside").expect("bound");
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut words = Vec::new();
            stream.read_to_end(&mut words).expect("all of it");
            stream.write_all(&words).expect("sent");
        });
        let words: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let mut stream = topology.clients.run(|| TcpStream::connect(server)).expect("inside").expect("connected");
        stream.write_all(&words).expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("half closed");
        let mut back = Vec::new();
        stream.read_to_end(&mut back).expect("all of it");
        assert!(back == words);
        echo.join().expect("the server");
        let done = topology.impairer.as_ref().expect("an impaired link").so_far();
        assert!(done.passed > 200 && done.lost > 0 && done.doubled > 0 && done.reordered > 0, "{done:?}");
    }
}
