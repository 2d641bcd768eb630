// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that leave at any step of a request, in any way, leave nothing in the queue: nobody waits, no place is taken, no bytes are
//! kept, and the next request is served at once.
//!
//! Who leaves when and how is thrown by dice. `FIEF_TEST_SEED=7` throws them anew.

use std::time::{Duration, Instant};

use fief_testkit::segment::{ACK, FIN, PSH, RST};
use fief_testkit::{Dice, Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::SOON;
use fief_tests_netns::front::{self, Door, plain};
use fief_tests_netns::queued::{OF_WAITING, Queued, entries, high, lasting, low, status};
use libbpf_rs::{MapCore, MapHandle};

const CLIENTS: usize = 45;
const FIRST_PORT: usize = 2000;
/// Added to the number of a phase: then its clients have ports that no phase has.
const AGAIN: usize = 10;
/// Until the last of them is given up.
const LASTED: Duration = Duration::from_secs(20);
const HEARD: Duration = Duration::from_millis(2);

/// When a client leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Its SYN was answered.
    Greeted,
    /// Its connection is made.
    Connected,
    /// It has sent half a head.
    HalfHead,
    /// Its request waits.
    Held,
    /// The same, and only half of its body has been sent.
    HeldBody,
    /// Its second request waits.
    LaterHeld,
    /// The server has its request.
    Served,
    /// The same, and only half of its body has been sent.
    ServedBody,
    /// The server has begun to answer.
    Answered,
}

const STEPS: [Step; 9] = [
    Step::Greeted,
    Step::Connected,
    Step::HalfHead,
    Step::Held,
    Step::HeldBody,
    Step::Served,
    Step::ServedBody,
    Step::Answered,
    Step::LaterHeld,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Resets,
    /// It ends its side and reads on.
    HalfCloses,
    /// It ends its side and is gone.
    Closes,
    Vanishes,
}

const WAYS: [Way; 4] = [Way::Resets, Way::HalfCloses, Way::Closes, Way::Vanishes];

struct Leaver<'a> {
    step: Step,
    way: Way,
    family: Family,
    number: usize,
    /// Bytes that it has sent.
    sent: u32,
    /// `None`: it has not come yet, or has left.
    connection: Option<RawConnection<'a>>,
}

impl<'a> Leaver<'a> {
    fn new(number: usize, steps: &[Step], dice: &mut Dice) -> Self {
        let family = [Family::V4, Family::V6][dice.roll(2)];
        let [step, way] = [dice.roll(steps.len()), dice.roll(WAYS.len())];
        Self { step: steps[step], way: WAYS[way], family, number, sent: 0, connection: None }
    }

    fn come(&mut self, clients: &'a RawClients) {
        let client = (RawClients::address(self.family, 5), (FIRST_PORT + self.number) as u16).into();
        let first = u32::MAX - 100 * self.number as u32;
        let open = RawConnection::open(clients, [client, plain(self.family)], first, &ORDINARY_OPTIONS, SOON).unwrap();
        self.connection = Some(open.expect("a SYN-ACK"));
    }

    fn send(&mut self, clients: &RawClients, text: &[u8]) {
        let connection = self.connection.as_ref().expect("it is there");
        clients.send(&connection.segment(PSH | ACK, self.sent, text)).unwrap();
        self.sent += text.len() as u32;
    }

    /// What its last request is, and how much of it is sent.
    fn request(&self, number: usize) -> Vec<u8> {
        match self.step {
            Step::HeldBody | Step::ServedBody => {
                let head = format!("POST /n{number} HTTP/1.1\r\nHost: server\r\nContent-Length: 2000\r\n\r\n");
                [head.as_bytes(), &[b'b'; 1000]].concat()
            }
            Step::Answered => {
                format!("GET /n{number}/60000 HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").into_bytes()
            }
            Step::HalfHead => format!("GET /n{number} HTTP/1.1\r\nHost: ser").into_bytes(),
            Step::LaterHeld => format!("GET /n{number} HTTP/1.1\r\nHost: server\r\n\r\n").into_bytes(),
            _ => format!("GET /n{number} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n").into_bytes(),
        }
    }

    fn leave(&mut self, clients: &RawClients) {
        let Some(connection) = self.connection.take() else { return };
        let end = |flags| clients.send(&connection.segment(flags, self.sent, &[])).unwrap();
        match self.way {
            Way::Resets => end(RST | ACK),
            Way::HalfCloses | Way::Closes => end(FIN | ACK),
            Way::Vanishes => {}
        }
        if self.way == Way::HalfCloses {
            self.sent += 1;
            self.connection = Some(connection);
        } else {
            connection.vanish();
        }
    }
}

/// Takes all places of the server, lets everybody come as far as they do, and then the server answer one after the other.
fn come_and_leave(rig: &Queued, clients: &RawClients, steps: &[Step], seed: u64, at: usize) {
    let mut dice = Dice::new(seed);
    rig.let_go_what_is_read();
    let begun = rig.got().len();
    let mut leavers: Vec<_> = (0..CLIENTS).map(|n| Leaver::new(at * CLIENTS + n, steps, &mut dice)).collect();
    for leaver in leavers.iter_mut().filter(|leaver| leaver.step == Step::LaterHeld) {
        let done = rig.got().len();
        leaver.come(clients);
        leaver.send(clients, b"GET /before HTTP/1.1\r\nHost: server\r\n\r\n");
        rig.got_all(done + 1);
        rig.let_go(1);
        let connection = leaver.connection.as_mut().unwrap();
        wait_until(SOON, || connection.hear(HEARD).is_ok() && connection.received().ends_with(b"\r\n\r\n")).unwrap();
    }
    let mut done = rig.got().len();
    let taker = rig.ask(low(1), "/taker");
    rig.got_all(done + 1);
    done += 1;
    for (n, leaver) in leavers.iter_mut().enumerate() {
        if leaver.step != Step::LaterHeld {
            leaver.come(clients);
        }
        match leaver.step {
            Step::Greeted => {}
            Step::Connected => leaver.connection.as_ref().unwrap().acknowledge().unwrap(),
            _ => leaver.send(clients, &leaver.request(n)),
        }
        if !matches!(leaver.step, Step::Served | Step::ServedBody | Step::Answered) {
            leaver.leave(clients);
        }
    }
    // the link keeps the order: what the last of them has sent has come, too
    drop(rig.connect(low(2)));
    rig.let_go(1);
    assert_eq!(status(taker), 200);
    let end = Instant::now() + SOON;
    loop {
        let got = rig.got();
        for path in &got[done..] {
            let number: Option<usize> =
                path.trim_start_matches("/n").split('/').next().and_then(|word| word.parse().ok());
            let leaver = &mut leavers[number.unwrap_or(usize::MAX)];
            if leaver.step == Step::Answered {
                rig.let_go(1);
                let client = leaver.connection.as_ref().expect("it has not left").client;
                while clients.receive(client, SOON).expect("an answer").payload.is_empty() {}
                leaver.leave(clients);
            } else {
                leaver.leave(clients);
                rig.let_go(1);
            }
        }
        done = got.len();
        let left = left(rig);
        if left == (0, 0, 0) && rig.got().len() == done {
            break;
        }
        for connection in leavers.iter_mut().filter_map(|leaver| leaver.connection.as_mut()) {
            let _ = connection.hear(HEARD).unwrap();
        }
        assert!(Instant::now() < end, "seed {seed}: waiting, busy, kept: {left:?}, {:?}", &got[begun..]);
    }
    // who has ended its side only has its answer
    for (n, leaver) in leavers.iter_mut().enumerate() {
        let answered = matches!(leaver.step, Step::Held | Step::LaterHeld | Step::Served);
        if let (true, Some(connection)) = (answered, leaver.connection.as_mut()) {
            let answers = 1 + usize::from(leaver.step == Step::LaterHeld);
            let words = |connection: &RawConnection| String::from_utf8_lossy(connection.received()).into_owned();
            wait_until(SOON, || {
                connection.hear(HEARD).unwrap();
                words(connection).matches("HTTP/1.1 200").count() == answers
            })
            .unwrap_or_else(|_| panic!("seed {seed}, {n}, {:?}: {}", leaver.step, words(connection)));
        }
    }
}

/// Requests that wait, those that the server has, and bytes that are kept, as `fief show` tells them.
fn left(rig: &Queued) -> (u32, u32, u64) {
    let view = rig.front.topology.server.run(|| rig.front.installation().fief().front().unwrap()).unwrap();
    let queue = view.queues.first().expect("a queue");
    (queue.waiting, queue.in_service, queue.memory)
}

/// Nothing is known any more but requests that the server has: whose, of the clients of the last of these rounds.
fn remain(rig: &Queued, rounds: &[usize]) -> Vec<usize> {
    let but_served = || known(rig).into_iter().filter(|(table, count)| *table != "queue_serves" && *count > 0);
    let is_empty = || {
        // of those that vanished the server does not know; it may read their requests after their places have run out
        rig.hang_up();
        known(rig).iter().all(|(_, count)| *count == 0)
    };
    if wait_until(LASTED, is_empty).is_ok() {
        return Vec::new();
    }
    wait_until(SOON, || but_served().next().is_none()).unwrap_or_else(|_| panic!("{:?}", known(rig)));
    let serves = MapHandle::from_pinned_path(rig.front.installation().fief().pins().map("queue_serves")).unwrap();
    let ports: Vec<_> = serves.keys().map(|key| u16::from_ne_bytes([key[32], key[33]]) as usize).collect();
    let of =
        |round: &usize, port: usize| port.checked_sub(FIRST_PORT + round * CLIENTS).filter(|number| *number < CLIENTS);
    let strange = ports.iter().find(|port| rounds.iter().all(|round| of(round, **port).is_none()));
    assert_eq!(strange, None, "nobody of these has the port");
    let last = rounds.last().expect("a round");
    let remain: Vec<_> = ports.into_iter().filter_map(|port| of(last, port)).collect();
    eprintln!("{remain:?} remain with the server");
    remain
}

/// Entries of the tables in which the queue knows requests, connections and their bytes.
fn known(rig: &Queued) -> Vec<(&'static str, usize)> {
    entries(&rig.front, &[&OF_WAITING[..], &["queue_serves", "queue_lasts"]].concat())
}

fn clients_that_leave_at_any_step_leave_nothing_behind(door: Door) {
    if !front::ready() {
        return;
    }
    let seed = std::env::var("FIEF_TEST_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let rig = Queued::new(door, &lasting());
    // the kernel gives those that vanished up after seconds, and not after a quarter of an hour
    for name in ["tcp_orphan_retries", "tcp_retries2"] {
        rig.front.topology.server.sysctl(&format!("net.ipv4.{name}"), "1").unwrap();
    }
    let clients = RawClients::new(&rig.front.topology).unwrap();
    for (at, until) in ["until = \"first-byte\"", "until = \"response\"", "until = \"close\""].iter().enumerate() {
        let stale = if at == 0 { "30s" } else { "300ms" };
        let policy = lasting().replace("stale = \"30s\"", &format!("stale = \"{stale}\", {until}"));
        assert_ne!(policy, lasting());
        rig.front.apply(&policy).unwrap();
        // a connection that has its place does not wait
        let steps = &STEPS[..STEPS.len() - usize::from(until.contains("close"))];
        come_and_leave(&rig, &clients, steps, seed + at as u64, at);
        let before = remain(&rig, &[at]);
        if !before.is_empty() {
            // this machine may not be told of a socket's end (docs/kernel-facts.md), and then of another one's each time
            come_and_leave(&rig, &clients, steps, seed + at as u64, at + AGAIN);
            let again = remain(&rig, &[at, at + AGAIN]);
            let both: Vec<_> = before.iter().filter(|leaver| again.contains(leaver)).collect();
            assert!(both.is_empty(), "{door:?}, {until}: {both:?} remain with the server");
        }
        let entered = |rig: &Queued| rig.queue().class.iter().map(|class| class.entered).sum::<u64>();
        let (before, seen) = (entered(&rig), rig.got().len());
        let fresh = rig.ask(high(1), "/fresh");
        // the request of one that has vanished may be read late, before it
        let is_read = wait_until(SOON, || rig.got()[seen..].iter().any(|path| path == "/fresh"));
        assert!(is_read.is_ok(), "{door:?}, {until}: {:?}", rig.queue());
        rig.let_go_what_is_read();
        assert_eq!(status(fresh), 200, "{door:?}, {until}");
        assert_eq!(entered(&rig), before + 1, "{door:?}, {until}: it waited");
        rig.wait_for_peace();
    }
}

#[test]
fn clients_that_leave_at_any_step_leave_nothing_behind_where_fief_answers() {
    clients_that_leave_at_any_step_leave_nothing_behind(Door::Own);
}

#[test]
fn clients_that_leave_at_any_step_leave_nothing_behind_where_the_kernel_answers() {
    clients_that_leave_at_any_step_leave_nothing_behind(Door::Kernel);
}
