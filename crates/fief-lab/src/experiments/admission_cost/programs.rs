// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one frame costs the installed program, by the kernel's own clock around each run.

use super::PORT;
use super::frames::first_bytes;
use super::rules::{MATCHED, Rules};
use crate::command::{PolicyFile, scope};
use crate::error::{Context, Error, Result};
use crate::flood::frame::Syn;
use crate::installation::Installation;
use crate::statistics::median;
use fief_bpf::pin::Pins;
use fief_bpf::trial::{Trial, Tried};
use fief_testkit::{Dice, Mac, Topology};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddrV4};

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), PORT);
/// Room for every frame and answer.
const ROOM: usize = 2048;
/// Verdicts of `linux/pkt_cls.h`.
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

/// Medians in ns.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub rules: usize,
    pub syn_answered: f64,
    pub syn_policed: f64,
    pub request_matched: f64,
    /// Frames whose verdict was not the expected one; they do not count.
    pub strange: usize,
}

impl Costs {
    pub fn to_json(self, round: usize) -> Value {
        json!({
            "experiment": "admission-cost", "rules": self.rules, "round": round,
            "syn_answered_ns": self.syn_answered, "syn_policed_ns": self.syn_policed,
            "request_matched_ns": self.request_matched, "strange": self.strange,
        })
    }
}

pub fn measure(topology: &Topology, count: usize, frames: usize) -> Result<Costs> {
    let rules = Rules::new(count);
    let policy = PolicyFile::new(&rules.policy(Topology::SERVER, PORT))?;
    let installation = Installation::apply_in(&policy, &topology.server)?;
    let costs = topology.server.run(|| -> Result<Costs> {
        let mut bench = Bench::open(topology, &rules, frames)?;
        let clock = bench.clock()?;
        let syn_answered = bench.syns(false, REDIRECT)? - clock;
        // The first SYNs use up the bursts of the limiting rules.
        bench.syns(true, DROP)?;
        bench.strange = 0;
        let syn_policed = bench.syns(true, DROP)? - clock;
        let request_matched = bench.requests()? - clock;
        Ok(Costs { rules: count, syn_answered, syn_policed, request_matched, strange: bench.strange })
    })??;
    let matched = installation.verdicts("request-rule", MATCHED)?;
    if matched < frames as u64 / 2 {
        return Err(Error::failed(format!("of {frames} requests under {count} rules only {matched} were matched")));
    }
    installation.down()?;
    Ok(costs)
}

/// Requests to time, and the container that a rule of the policy puts all of them into.
#[derive(Debug)]
pub struct Matched<'a> {
    pub policy: String,
    pub requests: Vec<&'a [u8]>,
    pub container: &'a str,
}

/// ns of each request, from many sources in turn: medians.
pub fn matched_ns(topology: &Topology, what: &Matched<'_>, frames: usize) -> Result<Vec<f64>> {
    let policy = PolicyFile::new(&what.policy)?;
    let installation = Installation::apply_in(&policy, &topology.server)?;
    // sources of the longest prefixes, which no rule here names
    let rules = Rules::new(1000);
    let ns = topology.server.run(|| -> Result<Vec<f64>> {
        let mut bench = Bench::open(topology, &rules, frames)?;
        let clock = bench.clock()?;
        let each =
            |bench: &mut Bench<'_>, request: &[u8]| bench.requests_of(|_, _| request.to_vec()).map(|took| took - clock);
        what.requests.iter().map(|request| each(&mut bench, request)).collect()
    })??;
    let matched = installation.verdicts("request-rule", what.container)?;
    let expected = (frames * what.requests.len()) as u64;
    if matched < expected / 2 {
        return Err(Error::failed(format!("of {expected} requests only {matched} were matched")));
    }
    installation.down()?;
    Ok(ns)
}

struct Bench<'a> {
    trial: Trial,
    rules: &'a Rules,
    mac: Mac,
    frames: usize,
    /// Every run throws the same numbers.
    dice: Dice,
    strange: usize,
    /// The last verdict that was not the expected one.
    stranger: i32,
}

impl<'a> Bench<'a> {
    /// In the server's network namespace, on its core.
    fn open(topology: &Topology, rules: &'a Rules, frames: usize) -> Result<Bench<'a>> {
        fief_testkit::pin(0, Topology::server_cpu())?;
        // Sources are from everywhere, and an answer goes where a route leads. None of these frames is ever sent.
        topology.server.ip(&format!("route replace default via 10.77.0.2 dev {}", Topology::SERVER))?;
        let interface = nix::net::if_::if_nametoindex(Topology::SERVER).context("find the server's interface")?;
        let trial = Trial::open(&Pins::new(&scope()), interface).context("try the installed program")?;
        let mac = topology.link.near_mac;
        Ok(Bench { trial, rules, mac, frames, dice: Dice::new(0), strange: 0, stranger: 0 })
    }

    /// What a run takes of which the program does next to nothing: the frame's protocol is not its own.
    fn clock(&mut self) -> Result<f64> {
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        let took: Result<Vec<f64>> = (0..self.frames).map(|_| Ok(ns(self.run(&frame, &mut [0; ROOM])?))).collect();
        Ok(median(&took?))
    }

    fn syns(&mut self, limited: bool, verdict: i32) -> Result<f64> {
        let mut syn = Syn::new(self.mac.octets(), SERVER);
        let mut took = Vec::new();
        for _ in 0..self.frames {
            let random = self.dice.number();
            syn.set(self.rules.source(random, limited), 1024 + (random >> 50) as u16, (random >> 7) as u32);
            let tried = self.run(syn.as_ref(), &mut [0; ROOM])?;
            self.note(tried, verdict, &mut took);
        }
        self.middle(&took, "SYNs")
    }

    /// Each upon a handshake of its own. Outside of receive the kernel refuses to take the connection over, which is the
    /// last step; the program then drops the frame.
    fn requests(&mut self) -> Result<f64> {
        self.requests_of(|rules, random| rules.request(random).into_bytes())
    }

    fn requests_of(&mut self, request: impl Fn(&Rules, u64) -> Vec<u8>) -> Result<f64> {
        let mut syn = Syn::new(self.mac.octets(), SERVER);
        let mut took = Vec::new();
        for _ in 0..self.frames {
            let random = self.dice.number();
            syn.set(self.rules.source(random, false), 1024 + (random >> 50) as u16, (random >> 7) as u32);
            let mut answer = [0; ROOM];
            let tried = self.run(syn.as_ref(), &mut answer)?;
            let request = request(self.rules, self.dice.number());
            let Some(frame) = first_bytes(&answer[..tried.length.min(ROOM)], &request) else {
                self.strange += 1;
                continue;
            };
            let tried = self.run(&frame, &mut answer)?;
            self.note(tried, DROP, &mut took);
        }
        self.middle(&took, "requests")
    }

    fn note(&mut self, tried: Tried, verdict: i32, took: &mut Vec<f64>) {
        if tried.verdict == verdict {
            took.push(ns(tried));
        } else {
            self.strange += 1;
            self.stranger = tried.verdict;
        }
    }

    /// An error if most frames were not treated as they should have been: their time would mean something else.
    fn middle(&self, took: &[f64], what: &str) -> Result<f64> {
        if took.len() * 2 < self.frames {
            return Err(Error::failed(format!(
                "of {} {what} under {} rules only {} met the expected verdict; others {}",
                self.frames,
                self.rules.len(),
                took.len(),
                self.stranger
            )));
        }
        Ok(median(took))
    }

    fn run(&self, frame: &[u8], left: &mut [u8]) -> Result<Tried> {
        self.trial.run(frame, left).context("try a frame")
    }
}

fn ns(tried: Tried) -> f64 {
    tried.took.as_nanos() as f64
}
