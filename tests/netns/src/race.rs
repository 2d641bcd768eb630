// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two packets that come to two CPUs at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fief_testkit::{RawClients, pin};

/// The other CPU, which sends a packet the moment that it is asked to.
pub struct Rival<'a> {
    go: &'a AtomicUsize,
    done: &'a AtomicUsize,
    /// Empty: it ends.
    packet: &'a Mutex<Vec<u8>>,
}

impl Rival<'_> {
    /// Turn by turn from 1: the other CPU sends `other`, and this one `own`, so many spins after that began. Both have been sent.
    pub fn race(&self, turn: usize, other: Vec<u8>, spins: usize, own: impl FnOnce()) {
        *self.packet.lock().unwrap() = other;
        self.go.store(turn, Ordering::Release);
        self.wait(turn * 2);
        (0..spins).for_each(|_| std::hint::spin_loop());
        own();
        self.wait(turn * 2 + 1);
    }

    fn wait(&self, step: usize) {
        while self.done.load(Ordering::Acquire) < step {
            std::hint::spin_loop();
        }
    }
}

impl Drop for Rival<'_> {
    fn drop(&mut self) {
        self.packet.lock().unwrap().clear();
        self.go.store(usize::MAX, Ordering::Release);
    }
}

/// Runs `body` on the second of two CPUs, with a rival on the first. `idle`: what the rival does between turns.
pub fn with_rival(cpus: &[usize], wire: RawClients, turns: usize, idle: fn(), body: impl FnOnce(&Rival<'_>)) {
    let (go, done, packet) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let (go, done, packet, cpu) = (&go, &done, &packet, cpus[0]);
        scope.spawn(move || {
            pin(0, cpu).unwrap();
            for turn in 1..=turns {
                while go.load(Ordering::Acquire) < turn {
                    idle();
                }
                let packet: Vec<u8> = packet.lock().unwrap().clone();
                if packet.is_empty() {
                    return;
                }
                done.store(turn * 2, Ordering::Release);
                wire.send_packet(&[], &packet).unwrap();
                done.store(turn * 2 + 1, Ordering::Release);
            }
        });
        let rival = Rival { go, done, packet };
        pin(0, cpus[1]).unwrap();
        body(&rival);
    });
}
