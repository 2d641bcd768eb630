// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits, the crowds, and what each server is put through. Pure.

use crate::experiments::overload::{Crowd, Limit, Step};
use crate::load::{Arrivals, Volleys};
use fief_testkit::Client;

/// Paying clients: enough that the server's core is never without work.
const PREFERRED: usize = 20;
/// What the crowd asks for, as a part of the server's capacity.
const CROWD: f64 = 0.6;
/// Limit of the URL whose goodput is watched: what the server can do, with some to spare for refusing the rest.
const CAPPED: f64 = 0.75;
/// A waiting crowd's patience; above the worst that a server within its capacity needs.
const PATIENCE_MS: u64 = 700;
/// Of the clients whose server may be overloaded: what comes later is worth nothing to them.
const GOODPUT_PATIENCE_MS: u64 = 150;
/// Clients for each URL, above the number of workers.
const MANY: usize = 60;

/// A token bucket, as nginx and Fief have it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    pub per_second: f64,
    pub burst: u32,
}

impl Bucket {
    /// Whole requests a second: nginx knows no others.
    fn new(per_second: f64, burst: u32) -> Bucket {
        Bucket { per_second: per_second.round().max(1.0), burst }
    }
}

#[derive(Clone, Debug)]
pub struct Setting {
    quick: bool,
    /// Requests a second.
    pub capacity: f64,
    /// Of the crowd, at its SYNs and at its URL.
    pub crowd: Bucket,
    /// Of the URL whose goodput is watched.
    pub capped: Bucket,
    /// Of the high-priority URL, twice (Table 4); the folders are /rated-0/ and /rated-1/.
    pub rated: [Bucket; 2],
}

pub const UNLOADED: &str = "paying clients alone";
pub const UNCONTROLLED: &str = "crowd without a limit";
pub const AT_URL: &str = "crowd limited by its URL";
pub const AT_SYN: &str = "crowd limited at its SYNs";
pub const VOLLEYS: &str = "volleys limited at their SYNs";
pub const RATED: [(&str, &str); 2] =
    [("paying clients' URL at 0.3", "/rated-0/report"), ("paying clients' URL at 0.1", "/rated-1/report")];

/// Places of the crowds in a trial.
pub const FIRST: usize = 0;
pub const SECOND: usize = 1;

/// Requests for the capped URL, as a multiple of its limit.
pub fn goodput(part: f64) -> String {
    format!("capped URL x{part}")
}

pub fn priority(clients: usize) -> String {
    format!("{clients} clients for each URL")
}

impl Setting {
    pub fn of(capacity: f64, quick: bool) -> Setting {
        Setting {
            quick,
            capacity,
            crowd: Bucket::new(capacity * 0.02, 5),
            capped: Bucket::new(capacity * CAPPED, 10),
            rated: [Bucket::new(capacity * 0.3, 10), Bucket::new(capacity * 0.1, 10)],
        }
    }

    /// The same limits kept by nginx.
    pub fn nginx_limits(&self) -> Vec<Limit> {
        [("/limited/", self.crowd), ("/capped/", self.capped)]
            .map(|(folder, Bucket { per_second, burst })| Limit { folder, per_second, burst })
            .to_vec()
    }

    /// Multiples of the capped URL's limit that are asked for.
    pub fn parts(&self) -> &'static [f64] {
        if self.quick { &[1.0, 2.5] } else { &[0.5, 1.0, 1.25, 1.5, 2.0, 2.5] }
    }

    /// Numbers of clients for each of the two URLs.
    pub fn clients(&self) -> &'static [usize] {
        if self.quick { &[MANY] } else { &[5, 10, 20, 30, 40, 50, MANY] }
    }

    /// Without control the last steps leave a queue that nobody waits for any more, so they come last.
    pub fn nginx_steps(&self) -> Vec<Step> {
        let mut steps = vec![
            Step::new(UNLOADED, vec![preferred()]),
            Step::new(UNCONTROLLED, vec![preferred(), self.crowd(Client::Middle, "/cgi-bin/report")]),
            Step::new(AT_URL, vec![preferred(), self.crowd(Client::Middle, "/limited/report")]),
        ];
        steps.extend(self.goodput_steps("/cgi-bin/report"));
        steps
    }

    pub fn fief_steps(&self) -> Vec<Step> {
        let mut steps = vec![
            Step::new(UNLOADED, vec![preferred()]),
            Step::new(AT_URL, vec![preferred(), self.crowd(Client::Middle, "/limited/report")]),
            Step::new(AT_SYN, vec![preferred(), self.crowd(Client::Low, "/shop/report")]),
        ];
        steps.extend(self.goodput_steps("/capped/report"));
        steps
    }

    pub fn priority_steps(&self) -> Vec<Step> {
        let browse = |clients| Crowd::closed(Client::Low, "/browse/item", clients);
        let both = |&clients: &usize| {
            Step::new(priority(clients), vec![Crowd::closed(Client::Middle, "/gold/item", clients), browse(clients)])
        };
        let rated = |(name, path): (&'static str, &'static str)| {
            let high = Crowd::open(Client::Middle, path, Arrivals::evenly(self.capacity), PATIENCE_MS);
            Step::new(name, vec![high, browse(MANY)])
        };
        let most = if self.quick { 1 } else { RATED.len() };
        self.clients().iter().map(both).chain(RATED.into_iter().take(most).map(rated)).collect()
    }

    /// Other rates and bursts of the crowd's limit, in a full run (Figures 5, 6 and 9).
    pub fn sweeps(&self) -> Vec<(String, Setting, Vec<Step>)> {
        if self.quick {
            return Vec::new();
        }
        let with = |crowd| Setting { crowd, ..self.clone() };
        let rates = RATES.map(|part| {
            let swept = with(Bucket::new(self.capacity * part, 5));
            let steps = swept.fief_steps().into_iter().filter(|step| [AT_URL, AT_SYN].contains(&step.name.as_str()));
            (rate_way(part), swept.clone(), steps.collect())
        });
        let bursts = BURSTS.map(|burst| {
            let swept = with(Bucket::new(self.capacity * 0.05, burst));
            (burst_way(burst), swept, vec![Step::new(VOLLEYS, vec![preferred(), self.volleys()])])
        });
        rates.into_iter().chain(bursts).collect()
    }

    fn goodput_steps(&self, path: &'static str) -> Vec<Step> {
        let step = |&part: &f64| {
            let arrivals = Arrivals::evenly(self.capped.per_second * part);
            let crowd = Crowd::open(Client::Middle, path, arrivals, GOODPUT_PATIENCE_MS);
            // Twice the patience until a queue is too long, and the limit leaves the core some idle time.
            Step::new(goodput(part), vec![crowd]).slow(2.0, 1.0).with_idle_time()
        };
        self.parts().iter().map(step).collect()
    }

    fn crowd(&self, class: Client, path: &'static str) -> Crowd {
        Crowd::open(class, path, Arrivals::evenly(self.capacity * CROWD), PATIENCE_MS)
    }

    /// The paper's sclient: 50 to 80 requests back to back twice a second, and some beside them.
    fn volleys(&self) -> Crowd {
        let volleys = Some(Volleys { least: 50, most: 80, per_second: 2.0 });
        Crowd::open(Client::Low, "/shop/report", Arrivals { per_second: 30.0, volleys }, PATIENCE_MS)
    }
}

pub const RATES: [f64; 6] = [0.5, 0.3, 0.2, 0.1, 0.05, 0.025];
pub const BURSTS: [u32; 5] = [5, 10, 20, 35, 50];

pub fn rate_way(part: f64) -> String {
    format!("limit x{part}")
}

pub fn burst_way(burst: u32) -> String {
    format!("burst {burst}")
}

fn preferred() -> Crowd {
    Crowd::closed(Client::High, "/shop/item", PREFERRED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crowd_offers_at_least_half_of_the_capacity() {
        let setting = Setting::of(1000.0, true);
        let offered = |steps: &[Step], name: &str| {
            let step = steps.iter().find(|step| step.name == name).expect("a step");
            step.crowds[SECOND].offered().expect("an open loop")
        };
        for name in [AT_URL, AT_SYN] {
            assert!(offered(&setting.fief_steps(), name) - setting.crowd.per_second >= 500.0, "{name}");
        }
        assert!(offered(&setting.nginx_steps(), UNCONTROLLED) >= 500.0);
    }

    #[test]
    fn the_server_can_do_the_capped_urls_limit_and_not_what_is_asked_for() {
        let setting = Setting::of(1000.0, true);
        assert!(setting.capped.per_second <= 800.0 && setting.capped.per_second * 2.5 >= 1500.0);
    }
}
