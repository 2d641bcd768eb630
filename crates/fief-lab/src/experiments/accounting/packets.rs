// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams of small packets at a known rate, from the clients' namespace: one class alone, or both interleaved.

use crate::error::{Context, Error, Result};
use fief_testkit::{Family, Topology};
use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So many packets leave back to back for a receiving thread: enough that it takes several of them up in one list.
pub const BURST: usize = 16;
const PAYLOAD: [u8; 100] = [b'x'; 100];

/// Where a sender runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// On the load's CPU.
    Beside,
    /// On the server's CPU, above its receiving thread, which therefore starts after the end of a burst.
    Above,
}

impl From {
    /// Packets that leave back to back. Beside the receiver each is received by itself; a packet that comes 4 us after the
    /// last one finds more in the caches than one that comes 40 us after it, so all come at equal distances.
    fn burst(self) -> usize {
        match self {
            From::Beside => 1,
            From::Above => BURST,
        }
    }
}

/// Above the testbed's receiving threads.
const FIFO: i32 = 60;

/// Connected to both classes' sockets.
pub enum Sender {
    Udp([UdpSocket; 2]),
    Tcp([TcpStream; 2]),
}

impl Sender {
    pub fn connect(topology: &Topology, tcp: bool, ports: [u16; 2]) -> Result<Sender> {
        let to = ports.map(|port| Topology::server_address(Family::V4, port));
        let connect = || -> std::io::Result<Sender> {
            if tcp {
                let stream = |to| {
                    let stream = TcpStream::connect(to)?;
                    // Every write is a packet.
                    stream.set_nodelay(true).map(|()| stream)
                };
                return Ok(Sender::Tcp([stream(to[0])?, stream(to[1])?]));
            }
            let socket = |to| {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect(to).map(|()| socket)
            };
            Ok(Sender::Udp([socket(to[0])?, socket(to[1])?]))
        };
        topology.clients.run(connect)?.context("connect to the receiver")
    }

    fn send(&mut self, class: usize) -> std::io::Result<()> {
        match self {
            Sender::Udp(sockets) => sockets[class].send(&PAYLOAD).map(drop),
            Sender::Tcp(streams) => streams[class].write_all(&PAYLOAD),
        }
    }

    /// Sends to the classes in turn, `per_second` packets in all.
    pub fn stream(&mut self, from: From, classes: &[usize], per_second: f64, seconds: f64) -> Result<()> {
        let result = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                match from {
                    From::Beside => fief_testkit::pin(0, Topology::load_cpu())?,
                    From::Above => {
                        fief_testkit::pin(0, Topology::server_cpu())?;
                        fief_testkit::set_fifo(0, FIFO)?;
                    }
                }
                self.send_bursts(from, classes, per_second, seconds)
            });
            sender.join()
        });
        result.unwrap_or_else(|_| Err(Error::failed("the sender panicked")))
    }

    fn send_bursts(&mut self, from: From, classes: &[usize], per_second: f64, seconds: f64) -> Result<()> {
        let interval = Duration::from_secs_f64(from.burst() as f64 / per_second);
        let begin = Instant::now();
        let mut due = begin;
        let mut bursts = 0;
        while begin.elapsed().as_secs_f64() < seconds {
            for place in 0..from.burst() {
                // Each class is the first of a burst as often, since the first packet pays for the wake-up.
                self.send(classes[(place + bursts) % classes.len()]).context("send a packet")?;
            }
            bursts += 1;
            // What was missed stays missed: to catch up would be another load.
            due = (due + interval).max(Instant::now());
            match from {
                // On a CPU that slept, the first packets would pay for its waking up.
                From::Beside => {
                    while Instant::now() < due {
                        std::hint::spin_loop();
                    }
                }
                From::Above => std::thread::sleep(due.saturating_duration_since(Instant::now())),
            }
        }
        Ok(())
    }
}

/// Keeps a CPU from sleeping while it lasts, in nobody's way.
pub fn awake<T>(cpu: usize, work: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if fief_testkit::pin(0, cpu).and_then(|()| fief_testkit::set_idle(0)).is_ok() {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        });
        let result = work();
        ended.store(true, Ordering::Relaxed);
        result
    })
}
