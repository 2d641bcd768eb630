// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page that costs nginx a set time of CPU: text that it compresses for every request anew.
//!
//! It is real work of a real server, in one piece, as a small script's would be. How long a text costs 1 ms differs from
//! machine to machine, so the length is measured: first a guess, then what the guess should have been.

use super::crowd::{Crowd, trial};
use super::site::{Program, Site};
use crate::error::{Error, Result};
use crate::load::Seen;
use fief_testkit::{Client, Topology};

/// About 1 ms where this was written; the level is nginx's own default.
const GUESS: usize = 40_000;
/// Enough that the core is never without work.
const CLIENTS: usize = 20;
const WORDS: [&str; 16] = [
    "a", "server", "of", "many", "clients", "keeps", "those", "whom", "it", "is", "meant", "to", "serve", "before",
    "others", "queue",
];

/// The text, and how many requests for it a second the server's core can do.
#[derive(Clone, Debug)]
pub struct Page {
    pub text: String,
    pub capacity: f64,
}

impl Page {
    /// Measures how long the text must be for a request to cost so much, by the CPU time of nginx and its receive work, which a busy machine does not change much.
    pub fn measure(topology: &Topology, cost_us: u64) -> Result<Page> {
        let guess = Tried::of(topology, &text(GUESS))?;
        let length = GUESS as f64 * cost_us as f64 / guess.cost_us;
        let text = text((length as usize).clamp(1000, 4_000_000));
        let tries = [Tried::of(topology, &text)?, Tried::of(topology, &text)?];
        let capacity = tries.iter().map(|tried| tried.per_second).fold(0.0, f64::max);
        Ok(Page { text, capacity })
    }
}

/// Words in an order that repeats nowhere near, so that compressing finds short matches only, as in prose.
pub fn text(length: usize) -> String {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut text = String::with_capacity(length + 16);
    while text.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(state >> 60) as usize]);
        text.push(if (state >> 33).is_multiple_of(11) { '\n' } else { ' ' });
    }
    text.truncate(length);
    text
}

/// nginx when its core does nothing else.
struct Tried {
    /// Requests a second, with receive work and all.
    per_second: f64,
    /// Of one request, receive work included.
    cost_us: f64,
}

impl Tried {
    fn of(topology: &Topology, text: &str) -> Result<Tried> {
        let site = Site { program: Program::Nginx { text: text.to_owned(), limits: Vec::new() }, policy: None };
        let running = site.start(topology)?;
        let crowd = Crowd::closed(Client::High, "/shop/item", CLIENTS);
        let trial = trial(topology, &running.processes(topology)?, &[crowd], 0.5, 0.1)?;
        running.stop()?;
        let per_second = trial.seen.first().map_or(0.0, Seen::per_second);
        if per_second <= 0.0 {
            return Err(Error::failed(
                "nginx answered none of the requests for the page that its cost is measured with",
            ));
        }
        Ok(Tried { per_second, cost_us: trial.server_cpu * 1e6 / per_second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_does_not_repeat_itself() {
        let text = text(100_000);
        assert!(!text[50_000..].contains(&text[..200]));
    }
}
