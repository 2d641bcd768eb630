// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients without timestamps, whose cookies are short enough to be guessed: how many guesses are looked at is bounded, and
//! whoever guesses keeps nobody out.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use fief_bpf::abi;
use fief_testkit::segment::{ACK, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, RawConnection, wait_until};
use fief_tests_netns::front::{Door, plain, ready};
use fief_tests_netns::refusing;
use fief_tests_netns::rig::{Rig, whole};
use fief_tests_netns::{SOON, one_installation};

const POLICY: &str = refusing!("/secret/*", "drop");

const REQUEST: &[u8] = b"GET /10 HTTP/1.1\r\nConnection: close\r\n\r\n";

/// A segment size and nothing else.
const SIZE: [u8; 4] = [2, 4, 5, 0xb4];

/// More guesses of one prefix than are looked at within a second.
const MANY: u32 = 40;

/// How many networks guess.
const NETWORKS: u32 = 40;

/// Sends guesses, and knows how many.
struct Forger<'a> {
    rig: &'a Rig,
    sent: Cell<u32>,
}

impl Forger<'_> {
    fn guess(&self, from: Ipv4Addr) {
        let n = self.sent.replace(self.sent.get() + 1);
        let mut forged = Segment::new((from, 3000).into(), plain(Family::V4), ACK);
        (forged.sequence, forged.acknowledgment, forged.payload) = (n, n.wrapping_mul(0x9e37_79b9), REQUEST.to_vec());
        self.rig.clients.send(&forged).unwrap();
    }

    /// Segments that were taken for guesses: all that were looked at, and all that were not.
    fn counted(&self) -> (u64, u64) {
        let all = self.rig.verdicts();
        (all.count(abi::FIEF_ACK_BAD), all.count(abi::FIEF_ACK_LIMIT))
    }

    fn all_counted(&self) {
        let sent = u64::from(self.sent.get());
        wait_until(SOON, || self.counted().0 + self.counted().1 >= sent)
            .unwrap_or_else(|_| panic!("{sent} guesses, {:?}", self.rig.verdicts()));
    }
}

fn address(network: u8, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 89, network, n)
}

fn open(rig: &Rig, from: Ipv4Addr) -> RawConnection<'_> {
    open_at(rig, from, 2000)
}

fn open_at(rig: &Rig, from: Ipv4Addr, port: u16) -> RawConnection<'_> {
    rig.open_with(SocketAddr::new(from.into(), port), 4711, &SIZE)
}

fn is_served(connection: &mut RawConnection<'_>) -> bool {
    connection.converse(REQUEST, &whole(REQUEST), SOON).unwrap().0.starts_with(b"HTTP/1.1 200")
}

#[test]
fn guesses_from_many_networks_keep_out_no_newcomer_of_another() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let forger = Forger { rig: &rig, sent: 0.into() };
        let begin = Instant::now();
        let mut late = 0;
        for n in 0..8 {
            let mut newcomer = open(&rig, address(200 + n, 1));
            for guess in 0..NETWORKS * MANY {
                forger.guess(address((guess % NETWORKS) as u8, n));
            }
            forger.all_counted();
            assert!(is_served(&mut newcomer), "{door:?}");
            // Its first segment was no guess, unless its network shares a budget by chance.
            late += u32::from(forger.counted().0 + forger.counted().1 > forger.sent.get().into());
            forger.sent.set((forger.counted().0 + forger.counted().1) as u32);
        }
        assert!(late <= 1, "{door:?}: {late} of 8 were not looked at");
        // of each network one second's worth, and what time has brought since
        let most = u64::from(NETWORKS) * 17 * (begin.elapsed().as_secs() + 2);
        assert!(forger.counted().0 <= most, "{door:?}: {:?}", rig.verdicts());
    }
}

#[test]
fn a_proven_source_may_guess_no_more_often_than_a_network() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        assert!(is_served(&mut open(&rig, address(1, 1))), "{door:?}");
        assert_eq!(rig.front.proven_sources(), 1, "{door:?}");
        let forger = Forger { rig: &rig, sent: 0.into() };
        (0..10 * MANY).for_each(|_| forger.guess(address(1, 1)));
        forger.all_counted();
        // One second's worth, and what time has brought since.
        assert!(forger.counted().1 > 5 * u64::from(MANY), "{door:?}: {:?}", rig.verdicts());
        // Nobody else is kept out, in the same network too.
        let mut newcomer = open(&rig, address(1, 2));
        (0..MANY).for_each(|_| forger.guess(address(1, 1)));
        forger.all_counted();
        let before = rig.verdicts();
        assert!(is_served(&mut newcomer), "{door:?}");
        assert_eq!(rig.verdicts().since(&before).count(abi::FIEF_ACK_LIMIT), 0, "{door:?}");
    }
}

/// Guesses in the name of a client, or of its whole network, go on while it connects.
#[test]
fn a_client_whose_name_a_guesser_bears_is_served_once_it_sends_again() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for proven in [false, true] {
            let rig = Rig::new(door, POLICY);
            let client = address(1, 1);
            if proven {
                assert!(is_served(&mut open(&rig, client)), "{door:?}");
            }
            let forger = Forger { rig: &rig, sent: 0.into() };
            let before = rig.server.accepted();
            let connection = open_at(&rig, client, 2001);
            let first = connection.segment(ACK, 0, REQUEST);
            wait_until(SOON, || {
                (0..MANY).for_each(|_| forger.guess(client));
                rig.clients.send(&first).unwrap();
                rig.server.accepted() > before
            })
            .unwrap_or_else(|_| panic!("{door:?}, proven: {proven}: {:?}", rig.verdicts()));
        }
    }
}

/// The shortest time after which a client sends again (TCP_RTO_MIN).
const AGAIN: Duration = Duration::from_millis(200);

/// What comes behind a part of a head that is kept is no guess.
#[test]
fn a_head_in_pieces_has_to_be_sent_again_once_at_most() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, POLICY);
        let forger = Forger { rig: &rig, sent: 0.into() };
        let all = || {
            let (looked_at, not_looked_at) = forger.counted();
            looked_at + not_looked_at
        };
        for port in 2001..2006 {
            let client = address(1, 1);
            let before = rig.server.accepted();
            let connection = open_at(&rig, client, port);
            let flood = || (0..MANY).for_each(|_| forger.guess(client));
            let first = connection.segment(ACK, 0, &REQUEST[..20]);
            let quiet = all();
            flood();
            rig.clients.send(&first).unwrap();
            // the time counts from when the first copy came to the door, and the next guess comes behind it
            forger.guess(client);
            wait_until(SOON, || all() > quiet + u64::from(MANY))
                .unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.verdicts()));
            std::thread::sleep(AGAIN);
            flood();
            rig.clients.send(&first).unwrap();
            let kept = || {
                let answer = rig.clients.receive(connection.client, SOON);
                answer.is_some_and(|answer| answer.acknowledgment == first.sequence.wrapping_add(20))
            };
            assert!(kept(), "{door:?}: {:?}", rig.verdicts());
            for at in 20..24 {
                flood();
                rig.clients.send(&connection.segment(ACK, at, &REQUEST[at as usize..][..1])).unwrap();
            }
            flood();
            rig.clients.send(&connection.segment(ACK, 24, &REQUEST[24..])).unwrap();
            wait_until(SOON, || rig.server.accepted() > before)
                .unwrap_or_else(|_| panic!("{door:?}: {:?}", rig.verdicts()));
        }
    }
}

/// Else a guesser would send its first guess twice, and the others unbounded.
#[test]
fn a_guess_with_another_number_was_not_sent_again() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    let forger = Forger { rig: &rig, sent: 0.into() };
    let guess = |acknowledgment: u32| {
        let mut forged = Segment::new((address(1, 1), 3000).into(), plain(Family::V4), ACK);
        (forged.sequence, forged.acknowledgment, forged.payload) = (7, acknowledgment, REQUEST.to_vec());
        forger.sent.set(forger.sent.get() + 1);
        rig.clients.send(&forged).unwrap();
    };
    let begin = Instant::now();
    let mut n = 0;
    while begin.elapsed() < Duration::from_secs(1) {
        (0..MANY).for_each(|_| {
            guess(n);
            n += 1;
        });
        forger.all_counted();
    }
    let looked_at = forger.counted().0;
    assert!(looked_at <= 17 * (begin.elapsed().as_secs() + 2), "{looked_at} of {n}");
}

/// What is looked at of segments that come again is bounded too, however often each comes.
#[test]
fn guesses_that_are_sent_again_and_again_are_bounded() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    let forger = Forger { rig: &rig, sent: 0.into() };
    let begin = Instant::now();
    for _ in 0..8 {
        let sent = forger.sent.get();
        for n in 0..10 * MANY {
            let mut forged = Segment::new((address(1, 1), 3000).into(), plain(Family::V4), ACK);
            (forged.sequence, forged.acknowledgment, forged.payload) = (n, n, REQUEST.to_vec());
            rig.clients.send(&forged).unwrap();
        }
        forger.sent.set(sent + 10 * MANY);
        forger.all_counted();
        // For the shortest time after which it counts as sent again.
        std::thread::sleep(AGAIN);
    }
    // The first of each, and those that came once, twice, and more often.
    let most = 4 * 17 * (begin.elapsed().as_secs() + 2);
    assert!(forger.counted().0 <= most, "{:?}", rig.verdicts());
}

/// A proven source's name, with which somebody else asks for connections: who sees no answer has to guess it.
#[test]
fn who_forges_a_connection_request_may_guess_at_its_answer_once() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    let client = address(1, 1);
    assert!(is_served(&mut open(&rig, client)));
    let served = rig.server.accepted();
    let bad = rig.verdicts().count(abi::FIEF_ACK_BAD);
    let forged = rig.open_with(SocketAddr::new(client.into(), 2001), 4711, &ORDINARY_OPTIONS);
    // The second guess would be right; but who sees no answer cannot echo its timestamp either.
    for wrong in [1 << 20, 0] {
        let mut guess = forged.segment(ACK, 0, REQUEST);
        guess.acknowledgment ^= wrong;
        guess.options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1];
        rig.clients.send(&guess).unwrap();
    }
    wait_until(SOON, || rig.verdicts().count(abi::FIEF_ACK_BAD) == bad + 2)
        .unwrap_or_else(|_| panic!("{:?}", rig.verdicts()));
    assert_eq!(rig.server.accepted(), served);
}

#[test]
fn guesses_at_the_answers_to_forged_connection_requests_have_a_budget() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = Rig::new(Door::Own, POLICY);
    let client = address(1, 1);
    assert!(is_served(&mut open(&rig, client)));
    let outcome = || (rig.server.accepted(), rig.verdicts().count(abi::FIEF_ACK_LIMIT));
    let mut port = 2000;
    let mut forge = |wrong| {
        port += 1;
        let forged = open_at(&rig, client, port);
        let mut guess = forged.segment(ACK, 0, REQUEST);
        guess.acknowledgment ^= wrong;
        rig.clients.send(&guess).unwrap();
    };
    // Time brings new guesses: one that is right may come by then.
    wait_until(SOON, || {
        (0..MANY / 2).for_each(|_| forge(1 << 20));
        let before = outcome();
        forge(0);
        wait_until(SOON, || outcome() != before).unwrap();
        rig.server.accepted() == before.0
    })
    .unwrap_or_else(|_| panic!("{:?}", rig.verdicts()));
}
