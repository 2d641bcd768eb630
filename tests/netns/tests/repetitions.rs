// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who honestly repeats what was lost of a later request is served, and counted once, however it is cut; and so is who repeats a first one
//! that found no room.

#[path = "later/client.rs"]
mod client;

use client::{Client, FIRST, Flaw, POLICY, PUBLIC, SECRET};
use std::io::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::{Ending, Family, digest, wait_until};
use fief_tests_netns::front::{Door, Front, Verdicts, anywhere, plain, ready};
use fief_tests_netns::rig::{Rig, status_of};
use fief_tests_netns::{SOON, connect_from, one_installation};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn a_rate_is_charged_once_for_a_request_that_comes_again() {
    if !ready() {
        return;
    }
    let request = b"GET /limited/10 HTTP/1.1\r\nHost: server\r\n\r\n";
    let size = request.len();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let client = Client::open(&rig, Family::V4);
        for n in 0..3 {
            for piece in [0..size, 0..5, 5..size, 0..size] {
                client.send_in_vain(Flaw::Checksum, n * size + piece.start, &request[piece]);
            }
            client.send(n * size, request);
            client.send(n * size, request);
            client.wait_for(&[FIRST; 1].into_iter().chain(vec![&request[..]; n + 1]).collect::<Vec<_>>());
        }
        let all = rig.verdicts();
        assert_eq!((all.count(abi::FIEF_REQUEST_RULE), all.count(abi::FIEF_REQUEST_RATE)), (3, 0), "{door:?}: {all:?}");
    }
}

/// The server accepts nobody for a while. Its client has got nothing for what the rate was charged.
#[test]
fn a_rate_is_charged_once_for_a_first_request_that_finds_no_room() {
    if !ready() {
        return;
    }
    let policy = "[container.web]\n[listener.plain]\naddress = \"0.0.0.0:80\"\nqueue = false\n\
                  [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
                  [[listener.plain.request]]\npath = \"/limited\"\nrate = { per-second = 1, burst = 1 }\n";
    for door in Door::GUARDS {
        let front = Front::new(door, policy);
        let let_it = front.server_with_queue(1);
        // the kernel answers nobody once its queue is full
        let mut late = connect_from(&front.topology.clients, anywhere(Family::V4), plain(Family::V4)).unwrap();
        let _others = [(); 2].map(|()| front.ask("/other"));
        front.assert_ruled(2);
        late.write_all(b"GET /limited HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").unwrap();
        let count = |reason| front.verdicts().count(reason);
        wait_until(SOON, || count(abi::FIEF_SYN_QUEUE) >= 2 || count(abi::FIEF_REQUEST_RATE) > 0)
            .unwrap_or_else(|_| panic!("{door:?}: {:?}", front.verdicts()));
        let_it.send(()).unwrap();
        assert_eq!(status_of(late), Ok(200), "{door:?}: {:?}", front.verdicts());
        assert_eq!(count(abi::FIEF_REQUEST_RATE), 0, "{door:?}: {:?}", front.verdicts());
    }
}

/// The same of one before another of a worse class, which both are of from then on.
#[test]
fn a_rate_is_charged_once_for_a_first_request_before_one_of_a_worse_class() {
    if !ready() {
        return;
    }
    let policy = "[container.high]\ncpu.priority = 200\n[container.web]\n[listener.plain]\naddress = \"0.0.0.0:80\"\n\
                  queue = { in-service = 100, stale = \"30s\" }\n\
                  [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
                  [[listener.plain.request]]\npath = \"/limited\"\ncontainer = \"high\"\n\
                  rate = { per-second = 1, burst = 1 }\n";
    for door in Door::GUARDS {
        let front = Front::new(door, policy);
        let let_it = front.server_with_queue(1);
        // the kernel answers nobody once its queue is full
        let mut late = connect_from(&front.topology.clients, anywhere(Family::V4), plain(Family::V4)).unwrap();
        let _others = [(); 2].map(|()| front.ask("/other"));
        front.assert_ruled(2);
        let both = ["/limited", "/other"].map(|path| format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n"));
        late.write_all(both.concat().as_bytes()).unwrap();
        let count = |reason| front.verdicts().count(reason);
        wait_until(SOON, || count(abi::FIEF_SYN_QUEUE) >= 2 || count(abi::FIEF_REQUEST_RATE) > 0)
            .unwrap_or_else(|_| panic!("{door:?}: {:?}", front.verdicts()));
        let_it.send(()).unwrap();
        assert_eq!(status_of(late), Ok(200), "{door:?}: {:?}", front.verdicts());
        assert_eq!(count(abi::FIEF_REQUEST_RATE), 0, "{door:?}: {:?}", front.verdicts());
    }
}

/// More pieces of a head than the door remembers, none of which TCP took.
#[test]
fn a_head_that_was_cut_finely_may_come_again_in_one() {
    if !ready() {
        return;
    }
    let filler = "x".repeat(900);
    let request = format!("GET /10 HTTP/1.1\r\nCookie: {filler}\r\n\r\n");
    let request = request.as_bytes();
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        for family in [Family::V4, Family::V6] {
            let mut client = Client::open(&rig, family);
            for (n, piece) in request.chunks(12).enumerate() {
                client.send_in_vain(Flaw::Checksum, 12 * n, piece);
            }
            let deadline = Instant::now() + SOON;
            while client.acknowledged() < request.len() {
                assert!(Instant::now() < deadline, "{door:?}, {family:?}: {} of it", client.acknowledged());
                let at = client.acknowledged();
                client.send(at, &request[at..]);
                client.connection.hear(Duration::from_millis(5)).unwrap();
            }
            client.wait_for(&[FIRST, request]);
        }
    }
}

/// A head that TCP dropped, as it was sent from a large buffer at once, comes again in segments.
#[test]
fn a_sender_may_cut_a_long_head_otherwise_when_it_repeats() {
    if !ready() {
        return;
    }
    let filler: String = (0..7000).map(|n| char::from(b'a' + (n * 7 % 26) as u8)).collect();
    let head = format!("POST /10 HTTP/1.1\r\nCookie: {filler}\r\nContent-Length: 600\r\n\r\n");
    let request = [head.as_bytes(), &filler.as_bytes()[..600], PUBLIC].concat();
    let post = request.len() - PUBLIC.len();
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        rig.front.topology.set_mtu(9000).unwrap();
        for family in [Family::V4, Family::V6] {
            for size in [536, 1220, 1448, 4000] {
                let before = rig.verdicts();
                let mut client = Client::open(&rig, family);
                client.send_in_vain(Flaw::Checksum, 0, &request);
                let deadline = Instant::now() + SOON;
                while client.acknowledged() < request.len() {
                    assert!(Instant::now() < deadline, "{door:?}, {size}: {} of it", client.acknowledged());
                    let at = client.acknowledged();
                    client.send(at, &request[at..request.len().min(at + size)]);
                    client.connection.hear(Duration::from_millis(5)).unwrap();
                }
                client.wait_for(&[FIRST, &request[..post], PUBLIC]);
                let new = rig.verdicts().since(&before);
                assert_eq!((new.requests(), new.count(abi::FIEF_REQUEST_CLIENT)), (3, 3), "{door:?}, {size}: {new:?}");
            }
        }
    }
}

/// What becomes of a segment on its way.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Doubled,
    /// Before the door.
    Lost,
    /// Behind it.
    Dropped(Flaw),
}

/// What a client sends, and how the first attempts go.
#[derive(Clone, Debug)]
struct Case {
    requests: Vec<Vec<u8>>,
    family: Family,
    attempts: Vec<Attempt>,
}

#[derive(Clone, Debug)]
struct Attempt {
    /// Sizes of the segments, over and over.
    sizes: Vec<usize>,
    fates: Vec<Fate>,
    shuffled: bool,
    seed: u64,
}

impl Attempt {
    /// A sender's last resort.
    fn plain() -> Self {
        Self { sizes: vec![536], fates: vec![Fate::Arrives], shuffled: false, seed: 0 }
    }

    /// Segments from `at` on, in the order in which they are sent.
    fn pieces(&self, at: usize, end: usize) -> Vec<(Range<usize>, Fate)> {
        let mut from = at;
        let mut pieces = Vec::new();
        for (size, fate) in self.sizes.iter().cycle().zip(self.fates.iter().cycle()) {
            if from == end {
                break;
            }
            pieces.push((from..end.min(from + size), *fate));
            from = end.min(from + size);
        }
        if self.shuffled {
            pieces.sort_by_key(|(piece, _)| {
                digest(&[self.seed.to_ne_bytes(), (piece.start as u64).to_ne_bytes()].concat())
            });
        }
        pieces
    }
}

fn requests() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let path = prop_oneof![Just("/10"), Just("/10.png"), Just("/a/10")];
    let one = (path, 0..1500usize, prop_oneof![Just(0usize), 1..4000usize]).prop_map(|(path, filler, body)| {
        let filler: String = (0..filler).map(|n| char::from(b'a' + (n * 7 % 26) as u8)).collect();
        let head = if body > 0 {
            format!("POST {path} HTTP/1.1\r\nCookie: {filler}\r\nContent-Length: {body}\r\n\r\n")
        } else {
            format!("GET {path} HTTP/1.1\r\nCookie: {filler}\r\n\r\n")
        };
        // A body that looks like requests, if it were taken for them.
        head.bytes().chain(SECRET.iter().copied().cycle().take(body)).collect()
    });
    prop::collection::vec(one, 1..6)
}

fn attempt(smallest: usize) -> impl Strategy<Value = Attempt> {
    let fate = prop_oneof![
        3 => Just(Fate::Arrives),
        1 => Just(Fate::Doubled),
        1 => Just(Fate::Lost),
        2 => Just(Fate::Dropped(Flaw::Checksum)),
        2 => Just(Fate::Dropped(Flaw::Timestamp)),
    ];
    let sizes = prop::collection::vec(smallest..=1400, 1..12);
    (sizes, prop::collection::vec(fate, 1..12), any::<bool>(), any::<u64>())
        .prop_map(|(sizes, fates, shuffled, seed)| Attempt { sizes, fates, shuffled, seed })
}

fn cases() -> impl Strategy<Value = Case> {
    let family = prop_oneof![Just(Family::V4), Just(Family::V6)];
    let again = prop::collection::vec(attempt(536), 0..3);
    (requests(), family, attempt(1), again).prop_map(|(requests, family, first, again)| {
        let attempts = [first].into_iter().chain(again).collect();
        Case { requests, family, attempts }
    })
}

/// Container, rule and reason of each verdict that fell, with how often.
fn told(verdicts: &Verdicts) -> Vec<(String, Option<u32>, abi::fief_reason, u64)> {
    let ruled = verdicts.all().iter().filter(|verdict| verdict.reason >= abi::FIEF_REQUEST_RULE);
    let mut told: Vec<_> =
        ruled.map(|verdict| (verdict.container.clone(), verdict.rule, verdict.reason, verdict.count)).collect();
    told.sort();
    told
}

fn honest_repetitions_are_served_and_counted_once_however_they_are_cut(door: Door) {
    if !ready() {
        return;
    }
    // With GRO the door sees long segments, and some of them out of order; without, what was sent.
    let rigs: [fn(Door, &str) -> Rig; 2] = [Rig::new, Rig::in_order];
    let _one = one_installation();
    for make in rigs {
        let rig = make(door, POLICY);
        let play = |case: &Case, attempts: &[Attempt]| -> Result<_, TestCaseError> {
            let before = rig.verdicts();
            let mut client = Client::open(&rig, case.family);
            let stream = case.requests.concat();
            let last = Attempt::plain();
            let mut attempts = attempts.iter();
            let deadline = Instant::now() + SOON;
            while client.acknowledged() < stream.len() {
                prop_assert!(Instant::now() < deadline, "{} of {}", client.acknowledged(), stream.len());
                let pieces = attempts.next().unwrap_or(&last).pieces(client.acknowledged(), stream.len());
                for (piece, fate) in pieces {
                    let bytes = &stream[piece.clone()];
                    match fate {
                        Fate::Lost => {}
                        Fate::Dropped(flaw) => client.send_in_vain(flaw, piece.start, bytes),
                        Fate::Arrives => client.send(piece.start, bytes),
                        Fate::Doubled => {
                            client.send(piece.start, bytes);
                            client.send(piece.start, bytes);
                        }
                    }
                }
                let ending = client.connection.hear(Duration::from_millis(4)).unwrap();
                prop_assert!(!matches!(ending, Some(Ending::Reset)), "a reset");
            }
            wait_until(SOON, || client.served().len() > case.requests.len()).unwrap();
            Ok((client.served(), told(&rig.verdicts().since(&before))))
        };
        let config = Config { cases: 40, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
        let result = TestRunner::new(config).run(&cases(), |case| {
            let expected = play(&case, &[])?;
            let found = play(&case, &case.attempts)?;
            prop_assert_eq!(found, expected);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{door:?}: {error}");
        }
    }
}

#[test]
fn honest_repetitions_are_served_and_counted_once_however_they_are_cut_where_fief_answers() {
    honest_repetitions_are_served_and_counted_once_however_they_are_cut(Door::Own);
}

#[test]
fn honest_repetitions_are_served_and_counted_once_however_they_are_cut_where_the_kernel_answers() {
    honest_repetitions_are_served_and_counted_once_however_they_are_cut(Door::Kernel);
}
