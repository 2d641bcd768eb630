// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams of small packets at a known rate, from the clients' namespace: one class alone, or both interleaved.

use crate::error::{Context, Error, Result};
use fief_testkit::{Family, Topology};
use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    /// On the server's CPU, while a softirq on the load's CPU works on one long packet; it finds a whole burst behind it.
    Behind,
}

impl From {
    /// Packets that leave back to back. Beside the receiver each is received by itself; a packet that comes 4 us after the
    /// last one finds more in the caches than one that comes 40 us after it, so all come at equal distances.
    fn burst(self) -> usize {
        match self {
            From::Beside => 1,
            From::Above | From::Behind => BURST,
        }
    }
}

/// Above the testbed's receiving threads.
const FIFO: i32 = 60;
/// From the begin of a long packet's call until the softirq works on it, with a margin.
const UNDER_WAY: Duration = Duration::from_micros(40);

/// Connected to both classes' sockets, and to that of long packets.
pub struct Sender {
    classes: Classes,
    long: UdpSocket,
}

enum Classes {
    Udp([UdpSocket; 2]),
    Tcp([TcpStream; 2]),
}

impl Sender {
    /// The ports are those of both classes and of long packets.
    pub fn connect(topology: &Topology, tcp: bool, ports: [u16; 3]) -> Result<Sender> {
        let to = ports.map(|port| Topology::server_address(Family::V4, port));
        let connect = || -> std::io::Result<Sender> {
            let socket = |to| {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect(to).map(|()| socket)
            };
            let stream = |to| {
                let stream = TcpStream::connect(to)?;
                // Every write is a packet.
                stream.set_nodelay(true).map(|()| stream)
            };
            let classes = match tcp {
                true => Classes::Tcp([stream(to[0])?, stream(to[1])?]),
                false => Classes::Udp([socket(to[0])?, socket(to[1])?]),
            };
            Ok(Sender { classes, long: socket(to[2])? })
        };
        topology.clients.run(connect)?.context("connect to the receiver")
    }

    fn send(&mut self, class: usize) -> std::io::Result<()> {
        match &mut self.classes {
            Classes::Udp(sockets) => sockets[class].send(&PAYLOAD).map(drop),
            Classes::Tcp(streams) => streams[class].write_all(&PAYLOAD),
        }
    }

    /// Sends to the classes in turn, `per_second` packets in all.
    pub fn stream(&mut self, from: From, classes: &[usize], per_second: f64, seconds: f64) -> Result<()> {
        // a thread that is pinned knows of no other CPU
        let (server, load) = (Topology::server_cpu(), Topology::load_cpu());
        let result = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                match from {
                    From::Beside => fief_testkit::pin(0, load)?,
                    From::Above => {
                        fief_testkit::pin(0, server)?;
                        fief_testkit::set_fifo(0, FIFO)?;
                    }
                    From::Behind => {
                        fief_testkit::pin(0, server)?;
                        return self.send_behind(load, classes, per_second, seconds);
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
            self.send_burst(from, classes, bursts)?;
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
                From::Above | From::Behind => std::thread::sleep(due.saturating_duration_since(Instant::now())),
            }
        }
        Ok(())
    }

    fn send_burst(&mut self, from: From, classes: &[usize], turn: usize) -> Result<()> {
        for place in 0..from.burst() {
            // Each class is the first of a burst as often, since the first packet pays for the wake-up.
            self.send(classes[(place + turn) % classes.len()]).context("send a packet")?;
        }
        Ok(())
    }

    /// The long packet's call returns after its softirq, so another thread makes it, on this CPU.
    fn send_behind(&mut self, cpu: usize, classes: &[usize], per_second: f64, seconds: f64) -> Result<()> {
        let interval = Duration::from_secs_f64(From::Behind.burst() as f64 / per_second);
        let long = self.long.try_clone().context("share a socket")?;
        let (begun, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let plug = scope.spawn(|| -> Result<()> {
                fief_testkit::pin(0, cpu)?;
                let begin = Instant::now();
                while begin.elapsed().as_secs_f64() < seconds && !ended.load(Ordering::Relaxed) {
                    let due = Instant::now() + interval;
                    begun.fetch_add(1, Ordering::Release);
                    long.send(&PAYLOAD).context("send a long packet")?;
                    while Instant::now() < due {
                        std::hint::spin_loop();
                    }
                }
                Ok(())
            });
            let mut bursts = 0;
            let mut result = Ok(());
            while result.is_ok() && !plug.is_finished() {
                if begun.load(Ordering::Acquire) == bursts {
                    std::hint::spin_loop();
                    continue;
                }
                let now = Instant::now();
                while now.elapsed() < UNDER_WAY {
                    std::hint::spin_loop();
                }
                result = self.send_burst(From::Behind, classes, bursts);
                bursts += 1;
            }
            ended.store(true, Ordering::Relaxed);
            let plug = plug.join().unwrap_or_else(|_| Err(Error::failed("the sender of long packets panicked")));
            result.and(plug)
        })
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
