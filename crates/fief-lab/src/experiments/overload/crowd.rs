// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks for what, and one trial: several crowds against a running server at once.

use super::PORT;
use crate::cpu_time::cpu_seconds;
use crate::error::Result;
use crate::load::{Arrivals, Close, Load, Protocol, Seen};
use crate::noise::{Noise, Snapshot};
use fief_testkit::{Client, Family, Topology};
use std::time::{Duration, Instant};

/// More connections under way than this are not offered to any server; far below the descriptors of a process.
const MOST_UNDER_WAY: usize = 12_000;

/// Clients of one class with one URL.
#[derive(Clone, Debug)]
pub struct Crowd {
    pub class: Client,
    pub path: &'static str,
    clients: usize,
    arrivals: Option<Arrivals>,
    patience_ms: u64,
}

impl Crowd {
    /// So many clients, each of which asks again as soon as it was answered.
    pub fn closed(class: Client, path: &'static str, clients: usize) -> Crowd {
        Crowd { class, path, clients, arrivals: None, patience_ms: 0 }
    }

    /// Requests that come whatever the server does, and are given up after the patience.
    pub fn open(class: Client, path: &'static str, arrivals: Arrivals, patience_ms: u64) -> Crowd {
        let volley = arrivals.volleys.map_or(0.0, |volleys| f64::from(volleys.most) * (volleys.per_second * 2.0 + 1.0));
        let under_way = (arrivals.per_second + volley) * patience_ms as f64 / 1000.0;
        let clients = ((under_way * 1.5) as usize + 50).min(MOST_UNDER_WAY);
        Crowd { class, path, clients, arrivals: Some(arrivals), patience_ms }
    }

    /// The same with clients that give up; whoever does asks again.
    pub fn impatient(mut self, patience_ms: u64) -> Crowd {
        self.patience_ms = patience_ms;
        self
    }

    pub fn offered(&self) -> Option<f64> {
        self.arrivals.map(|arrivals| arrivals.per_second)
    }

    fn load(&self, seconds: f64, warm_up: f64) -> Load {
        Load {
            server: Topology::server_address(Family::V4, PORT),
            protocol: Protocol::Http,
            path: self.path.to_owned(),
            seconds,
            warm_up,
            first: self.class.address(Family::V4, 1),
            addresses: 40,
            clients: self.clients,
            think_us: 0,
            arrivals: self.arrivals,
            patience_ms: self.patience_ms,
            // A client that gives up closes as a browser does. The server must find that out for itself.
            close: if self.patience_ms > 0 { Close::Fin } else { Close::Rst },
            settle_ms: 0,
            cpu: Topology::load_cpu(),
            // Those whose service is judged must not wait for the others on their own side.
            fifo: if self.class == Client::High { 40 } else { 0 },
            live_ms: 0,
        }
    }
}

/// What each crowd saw, in their order.
#[derive(Clone, Debug)]
pub struct Trial {
    pub seen: Vec<Seen>,
    pub noise: Noise,
    /// CPU time that the server and its receive thread used, a second. Others on the machine change it little.
    pub server_cpu: f64,
}

/// Lets all crowds come at once. `server`: the processes and threads whose CPU time is told.
pub fn trial(topology: &Topology, server: &[u32], crowds: &[Crowd], seconds: f64, warm_up: f64) -> Result<Trial> {
    let loads: Vec<_> =
        crowds.iter().map(|crowd| crowd.load(seconds, warm_up).start(&topology.clients)).collect::<Result<_>>()?;
    // Of most of the measured time, so that the loads' idle end does not count.
    std::thread::sleep(Duration::from_secs_f64(warm_up));
    let (before, begin, used) = (Snapshot::take(), Instant::now(), cpu_seconds(server));
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.9));
    let server_cpu = (cpu_seconds(server) - used) / begin.elapsed().as_secs_f64();
    let noise = before.until_now();
    let seen = loads.into_iter().map(|load| load.finish()).collect::<Result<_>>()?;
    Ok(Trial { seen, noise, server_cpu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_crowd_has_room_for_all_that_wait() {
        let crowd = Crowd::open(Client::Low, "/", Arrivals::evenly(4000.0), 500);
        assert!((2000..=MOST_UNDER_WAY).contains(&crowd.clients), "{}", crowd.clients);
        let flood = Crowd::open(Client::Low, "/", Arrivals::evenly(1e6), 500);
        assert_eq!(flood.clients, MOST_UNDER_WAY);
    }
}
