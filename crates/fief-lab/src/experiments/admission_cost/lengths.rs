// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paper's Table 5: what matching a request costs by the length of its URL, 11, 80 and 160 characters.

use super::programs::{Matched, matched_ns};
use super::{PORT, Plan};
use crate::error::Result;
use crate::experiments::Outcome;
use crate::progress::Progress;
use crate::statistics::{Spread, median};
use crate::table::{Table, number};
use fief_testkit::Topology;
use serde_json::json;

/// Characters of the URLs.
pub const LENGTHS: [usize; 3] = [11, 80, 160];

pub fn run(plan: &Plan, topology: &Topology, progress: &mut Progress, outcome: &mut Outcome) -> Result<()> {
    let mut ns: [Vec<f64>; LENGTHS.len()] = Default::default();
    for round in 0..plan.length_rounds {
        progress.step("a request by the length of its URL")?;
        let urls: Vec<Vec<u8>> = LENGTHS.iter().map(|&length| request(&url(length))).collect();
        let requests: Vec<&[u8]> = urls.iter().map(Vec::as_slice).collect();
        let took = matched_ns(topology, &Matched { policy: policy(), requests, container: "web/url" }, plan.frames)?;
        for ((length, took), ns) in LENGTHS.iter().zip(took).zip(&mut ns) {
            outcome.measurements.push(json!({
                "experiment": "admission-cost", "part": "url-length", "characters": length, "round": round,
                "request_matched_ns": took,
            }));
            ns.push(took);
        }
    }
    let mut table = Table::new(
        "The program at the interface upon a request, by the length of its URL, ns: median (quartiles of the rounds)",
        &["characters", "ns"],
    );
    for (length, ns) in LENGTHS.iter().zip(&ns) {
        let spread = Spread::of(ns);
        let cell = format!("{} ({} - {})", number(spread.median), number(spread.low), number(spread.high));
        table.row([length.to_string(), cell]);
        let figure = outcome.figures.add(format!("request_matched_{length}_characters_ns"), median(ns));
        let load = "one exact rule for each of three URLs; a request in one segment upon a held-back handshake";
        figure.of("run time of the program at the interface a request", "ns", load);
    }
    table.note(
        "Each of the three URLs has an exact rule of its own; what a run costs upon a foreign frame is subtracted.",
    );
    outcome.tables.push(table);
    Ok(())
}

/// A path of so many characters.
fn url(length: usize) -> String {
    let mut url = "/page".to_owned();
    while url.len() < length {
        url.push(if url.len().is_multiple_of(16) { '/' } else { 'a' });
    }
    url
}

fn request(url: &str) -> Vec<u8> {
    format!("GET {url} HTTP/1.1\r\nHost: server\r\nAccept: */*\r\n\r\n").into_bytes()
}

fn policy() -> String {
    let urls: Vec<String> = LENGTHS.iter().map(|&length| format!("\"{}\"", url(length))).collect();
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.web]\n\n[container.\"web/browse\"]\n\n[container.\"web/url\"]\n\n\
         [front]\ninterfaces = [\"{}\"]\n\n[listener.web]\naddress = \"0.0.0.0:{PORT}\"\nadmit = true\nqueue = false\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n\n\
         [[listener.web.request]]\npath = [{}]\ncontainer = \"web/url\"\n",
        Topology::SERVER,
        urls.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_the_papers_lengths() {
        assert_eq!(LENGTHS.map(|length| url(length).len()), LENGTHS);
    }
}
