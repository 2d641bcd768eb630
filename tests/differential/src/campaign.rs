// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sends cases through Fief, asks the open port where Fief may have refused, and judges by the servers' answers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fief_testkit::Dice;

use crate::exchange::{End, Job, Outcome, Shut, Work, perform};
use crate::grow::{Mutation, Recipe};
use crate::hello;
use crate::server::{Kind, MARKER, PLAIN, REFUSED, RESOURCE};
use crate::stage::{Port, Position, Stage};
use crate::valid;
use crate::vector::{Case, Seed};

const OPENING: &str = "GET /plain HTTP/1.1\r\nHost: plain.example\r\n\r\n";
const LAST: &str = "GET /marker HTTP/1.1\r\nHost: plain.example\r\nConnection: close\r\n\r\n";

/// Connections under way.
const AT_ONCE: usize = 400;
const PATIENCE: Duration = Duration::from_secs(6);
/// A wrong refusal must show as often, one after the other; a silent server on a busy machine is none.
const CONFIRMATIONS: u32 = 3;
const RETRIES: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wrong {
    LetRound,
    RefusedWrongly,
}

/// What the cases of a campaign are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// Of HTTP/1.
    Heads,
    /// Of TLS.
    Hellos,
}

impl Speech {
    fn positions(self) -> &'static [Position] {
        if self == Speech::Heads { &Position::ALL } else { &[Position::First] }
    }

    fn ports(self) -> &'static [Port] {
        if self == Speech::Heads { &Port::GUARDED } else { &[Port::Tls] }
    }

    pub fn name(self) -> &'static str {
        if self == Speech::Heads { "heads" } else { "hellos" }
    }
}

/// Where a case comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Seed(String),
    Grown(Recipe),
    /// Made while a failing case was made smaller.
    Shrunk,
}

/// One failure.
#[derive(Clone, Debug)]
pub struct Finding {
    pub wrong: Wrong,
    pub kind: Kind,
    pub port: Port,
    pub position: Position,
    pub origin: Origin,
    pub case: Case,
}

impl Finding {
    pub fn steps(&self) -> usize {
        if let Origin::Grown(recipe) = &self.origin { recipe.steps.len() } else { 0 }
    }

    /// What is told apart: the names of the seed and of what was done to it.
    pub fn names(&self, seeds: &[Seed]) -> Vec<String> {
        match &self.origin {
            Origin::Seed(name) => vec![name.clone()],
            Origin::Grown(recipe) => {
                let mutations = recipe.steps.iter().map(|(mutation, _)| name_of(*mutation));
                std::iter::once(seeds[recipe.seed].name.clone()).chain(mutations).collect()
            }
            Origin::Shrunk => vec![],
        }
    }
}

pub fn name_of(mutation: Mutation) -> String {
    match mutation {
        Mutation::Hello(change) => format!("hello-{change:?}").to_lowercase(),
        head => format!("{head:?}").to_lowercase(),
    }
}

/// What became of one server's cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pairs of a case and this server, each in both positions.
    pub cases: u64,
    /// Exchanges through Fief after which the marker was served.
    pub passed: u64,
    /// Exchanges that Fief ended, of which the server would have served the refused resource.
    pub held: u64,
    /// Exchanges in which the server itself had enough, with and without Fief.
    pub unserved: u64,
    pub let_round: u64,
    pub refused_wrongly: u64,
    /// Refused, and rightly: another server reads the refused resource there, or a request where there is none.
    pub read_otherwise: u64,
    /// Refused once, and served when it was tried again.
    pub unsteady: u64,
    /// The opening request had no answer, however often it was tried.
    pub unopened: u64,
    /// Exchanges through Fief that ended by patience alone.
    pub silent: u64,
}

impl Tally {
    /// Exchanges through Fief that began: each is one of these.
    pub fn exchanges(&self) -> u64 {
        let failures = self.let_round + self.refused_wrongly;
        self.passed + self.held + self.unserved + failures + self.read_otherwise + self.unsteady
    }
}

#[derive(Clone, Debug)]
pub struct Trial {
    kind: Kind,
    port: Port,
    position: Position,
    planned: Arc<(Origin, Case)>,
    /// Which way it goes: through Fief, to the open port, through Fief again, to the other servers.
    leg: Leg,
    retries: u32,
    is_alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leg {
    Through,
    Open,
    Again(u32),
    /// One of [`valid::doubtful`] goes to one of the campaign's servers, which may read the refused resource there. The number
    /// is that of the pair: each server gets the first one, then each the second one.
    Other(usize),
}

/// Where grown cases come from.
struct Growth<'a> {
    seeds: &'a [Seed],
    dice: Dice,
    left: u64,
    turn: usize,
}

pub struct Campaign<'a> {
    pub speech: Speech,
    kinds: Vec<Kind>,
    queue: VecDeque<Trial>,
    /// What failed goes once more when all else is done, one at a time: where a queue lets one request in, a case that the
    /// server waits in takes the time of those behind it, and what is too long to wait is refused.
    alone: VecDeque<Trial>,
    under_way: usize,
    growth: Option<Growth<'a>>,
    /// Not where a queue lets one request in: a slow one takes the time of those behind it.
    may_be_slow: bool,
    pub findings: Vec<Finding>,
    pub tallies: BTreeMap<Kind, Tally>,
}

impl<'a> Campaign<'a> {
    pub fn new(stage: &Stage, speech: Speech) -> Campaign<'a> {
        let mut kinds = stage.kinds.clone();
        kinds.retain(|kind| speech == Speech::Heads || kind.speaks_tls());
        let tallies = kinds.iter().map(|kind| (*kind, Tally::default())).collect();
        Campaign {
            speech,
            kinds,
            queue: VecDeque::new(),
            alone: VecDeque::new(),
            under_way: 0,
            growth: None,
            may_be_slow: !stage.is_queued,
            findings: vec![],
            tallies,
        }
    }

    /// Every seed to every server, in every position, at every guarded port. Later ones also slowly: a server that answers before
    /// it has the whole request may be overtaken by a client that sends the rest at once. A first one comes whole.
    pub fn with_seeds(mut self, seeds: &[Seed]) -> Campaign<'a> {
        let has_slow = self.speech == Speech::Heads && self.may_be_slow;
        for seed in seeds {
            let plan = |slow| Arc::new((Origin::Seed(seed.name.clone()), Case { slow, ..seed.case.clone() }));
            let planned = plan(false);
            let slowly = has_slow.then(|| plan(true));
            for &kind in &self.kinds.clone() {
                for &port in self.speech.ports() {
                    for &position in self.speech.positions() {
                        self.plan(kind, port, position, planned.clone());
                    }
                    if let Some(slowly) = &slowly {
                        self.plan(kind, port, Position::Later, slowly.clone());
                    }
                }
                self.tally(kind).cases += 1;
            }
        }
        self
    }

    /// So many grown cases, the servers in turns, in both positions.
    pub fn with_growth(mut self, seeds: &'a [Seed], dice: Dice, cases: u64) -> Campaign<'a> {
        self.growth = Some(Growth { seeds, dice, left: cases, turn: 0 });
        self
    }

    /// One case as it failed.
    pub fn with_trial(mut self, like: &Finding, case: Case) -> Campaign<'a> {
        self.plan(like.kind, like.port, like.position, Arc::new((Origin::Shrunk, case)));
        self
    }

    fn plan(&mut self, kind: Kind, port: Port, position: Position, planned: Arc<(Origin, Case)>) {
        self.queue.push_back(Trial { kind, port, position, planned, leg: Leg::Through, retries: 0, is_alone: false });
    }

    fn grow(&mut self) -> Option<()> {
        let growth = self.growth.as_mut()?;
        growth.left = growth.left.checked_sub(1)?;
        let recipe = Recipe::throw(self.speech, growth.seeds, &mut growth.dice);
        let case = recipe.make(growth.seeds);
        let kind = self.kinds[growth.turn % self.kinds.len()];
        let ports = self.speech.ports();
        let port = ports[growth.turn / self.kinds.len() % ports.len()];
        growth.turn += 1;
        let planned = Arc::new((Origin::Grown(recipe), case));
        for &position in self.speech.positions() {
            self.plan(kind, port, position, planned.clone());
        }
        self.tally(kind).cases += 1;
        Some(())
    }

    fn tally(&mut self, kind: Kind) -> &mut Tally {
        self.tallies.entry(kind).or_default()
    }

    /// Does all of it.
    pub fn run(mut self, stage: &Stage) -> Campaign<'a> {
        let work = || perform(&mut self, AT_ONCE, PATIENCE);
        let done = stage.topology.clients.run(work).unwrap_or_else(|e| panic!("{e}"));
        done.expect("sockets of a namespace of ours");
        self
    }

    fn find(&mut self, trial: &Trial, wrong: Wrong) {
        let tally = self.tally(trial.kind);
        match wrong {
            Wrong::LetRound => tally.let_round += 1,
            Wrong::RefusedWrongly => tally.refused_wrongly += 1,
        }
        let (origin, case) = (*trial.planned).clone();
        let Trial { kind, port, position, .. } = *trial;
        self.findings.push(Finding { wrong, kind, port, position, origin, case });
    }
}

impl Work for Campaign<'_> {
    type Ticket = Trial;

    fn next(&mut self) -> Option<(Trial, Job)> {
        if self.queue.is_empty() {
            self.grow();
        }
        let trial = match self.queue.pop_front() {
            None if self.under_way == 0 => self.alone.pop_front()?,
            next => next?,
        };
        self.under_way += 1;
        let (kind, port) = match trial.leg {
            Leg::Open => (trial.kind, trial.port.open()),
            Leg::Other(at) => (self.kinds[at % self.kinds.len()], trial.port.open()),
            Leg::Through | Leg::Again(_) => (trial.kind, trial.port),
        };
        let opening = if trial.position == Position::Later { OPENING.into() } else { vec![] };
        // After its certificate a server waits for the client.
        let (behind, until) = if self.speech == Speech::Heads { (LAST, MARKER) } else { ("", RESOURCE) };
        let case = &trial.planned.1;
        let (bytes, pieces) = match trial.leg {
            Leg::Other(at) => valid::doubtful(case)[at / self.kinds.len()].pieces(behind.as_bytes()),
            _ => case.pieces(behind.as_bytes()),
        };
        let slow = case.slow && self.may_be_slow;
        let shut = match trial.leg {
            // Elsewhere the end waits: a slow case's as its marker would, and HAProxy drops requests that come together with it.
            Leg::Through | Leg::Open if case.ends && !slow => Shut::AtOnce,
            Leg::Again(_) if !case.ends => Shut::Never,
            _ => Shut::WhenQuiet,
        };
        let server = Stage::address(kind, port);
        Some((trial, Job { server, opening, opened: PLAIN, bytes, pieces, slow, shut, until }))
    }

    fn done(&mut self, mut trial: Trial, outcome: Outcome) {
        self.under_way -= 1;
        if outcome.end == End::Unopened {
            if trial.retries < RETRIES {
                trial.retries += 1;
                self.queue.push_front(trial);
            } else if !trial.is_alone {
                trial.is_alone = true;
                self.alone.push_back(trial);
            } else {
                self.tally(trial.kind).unopened += 1;
            }
            return;
        }
        match trial.leg {
            Leg::Through => self.went_through(trial, &outcome),
            Leg::Open => self.went_open(trial, &outcome),
            Leg::Again(count) => self.went_again(trial, count, &outcome),
            Leg::Other(at) => self.went_to_other(trial, at, &outcome),
        }
    }
}

impl Campaign<'_> {
    fn went_through(&mut self, mut trial: Trial, outcome: &Outcome) {
        if outcome.has(REFUSED) {
            return self.find(&trial, Wrong::LetRound);
        }
        let is_served = self.is_served(&trial.planned.1, outcome);
        let tally = self.tally(trial.kind);
        tally.silent += u64::from(outcome.end == End::Silent);
        if outcome.end == End::Answered || is_served {
            tally.passed += 1;
        } else {
            trial.leg = Leg::Open;
            self.queue.push_front(trial);
        }
    }

    fn went_open(&mut self, mut trial: Trial, outcome: &Outcome) {
        let case = &trial.planned.1;
        if outcome.has(REFUSED) {
            self.tally(trial.kind).held += 1;
        } else if self.is_served(case, outcome) && self.is_allowed(case) {
            trial.leg = Leg::Again(1);
            self.queue.push_front(trial);
        } else {
            self.tally(trial.kind).unserved += 1;
        }
    }

    fn went_again(&mut self, mut trial: Trial, count: u32, outcome: &Outcome) {
        if self.is_served(&trial.planned.1, outcome) {
            self.tally(trial.kind).unsteady += 1;
        } else if !trial.is_alone {
            trial.is_alone = true;
            self.alone.push_back(trial);
        } else if count < CONFIRMATIONS {
            trial.leg = Leg::Again(count + 1);
            self.queue.push_front(trial);
        } else {
            self.go_to_other(trial, 0);
        }
    }

    /// One policy holds for every server, and Fief does not know which one it stands before: the other ones say whether the
    /// refusal has a reason.
    fn go_to_other(&mut self, mut trial: Trial, at: usize) {
        // None of a hello.
        if at < valid::doubtful(&trial.planned.1).len() * self.kinds.len() {
            trial.leg = Leg::Other(at);
            self.queue.push_front(trial);
        } else {
            self.find(&trial, Wrong::RefusedWrongly);
        }
    }

    fn went_to_other(&mut self, trial: Trial, at: usize, outcome: &Outcome) {
        let answers = outcome.count(PLAIN) + outcome.count(REFUSED);
        // What is read as a request where none is, and is none that everybody reads alike.
        let is_more = answers > 1 && !valid::holds_requests(&trial.planned.1.bytes);
        if outcome.has(REFUSED) || is_more {
            self.tally(trial.kind).read_otherwise += 1;
        } else {
            self.go_to_other(trial, at + 1);
        }
    }

    fn is_allowed(&self, case: &Case) -> bool {
        match self.speech {
            Speech::Heads => valid::is_allowed(&case.bytes),
            Speech::Hellos => hello::is_allowed(&case.bytes),
        }
    }

    /// Whether the server answered all of it, and none of it with an error.
    fn is_served(&self, case: &Case, outcome: &Outcome) -> bool {
        let is_other = outcome.has(PLAIN) && !outcome.has(REFUSED);
        if self.speech == Speech::Hellos {
            return is_other;
        }
        let is_error =
            |line: &[u8]| line.starts_with(b"HTTP/1.") && line.get(8..10).is_some_and(|word| word[1] >= b'4');
        let errors = outcome.received.split(|&byte| byte == b'\n').any(is_error);
        let ended = if case.ends { outcome.end == End::Closed } else { outcome.has(MARKER) };
        is_other && ended && !errors
    }
}
