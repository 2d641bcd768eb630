// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queues end while requests wait in them that their servers do not take: those are refused, whatever the number of queues, and who ended the
//! queues hears how many there were. That is `fief apply`, also one that fails then, and `fief down`.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use fief_bpf::abi;
use fief_bpf::queue::{self, EMPTIES_WITHIN};
use fief_testkit::{Family, Topology, wait_until};
use fief_tests_netns::front::{Door, Front, ready};
use fief_tests_netns::queued::{OF_WAITING, Queued, entries, lasting, low, read_head, status};
use fief_tests_netns::{Away, SOON, one_installation};
use nix::sys::socket::{Backlog, listen};

const PORTS: [u16; 4] = [80, 81, 82, 83];
/// So many connections the kernel keeps for a server that accepts none, with a backlog of one less; as many places.
const KEPT: u8 = 7;
/// So many wait at each port.
const WAIT: u8 = 5;

/// A listener with a queue at each of the ports.
fn policy(ports: &[u16], length: u32) -> String {
    let mut text = "\n[container.web]\n[container.low]\n".to_owned();
    for port in ports {
        text.push_str(&format!(
            "[listener.at{port}]\naddress = \"0.0.0.0:{port}\"\n\
             queue = {{ in-service = {KEPT}, length = {length}, wait = \"1m\", stale = \"30s\" }}\n\
             [[listener.at{port}.client]]\nfrom = [\"any\"]\ncontainer = \"low\"\n"
        ));
    }
    text
}

/// Servers that accept nothing, before which requests wait.
struct Hung {
    front: Front,
    listeners: Vec<TcpListener>,
    /// Those that the servers have, as far as their kernel goes.
    kept: Vec<TcpStream>,
    asked: Vec<TcpStream>,
}

impl Hung {
    fn at(ports: &[u16]) -> Self {
        let front = Front::new(Door::Own, &policy(ports, 200));
        let open = |port: &u16| {
            let listener = TcpListener::bind(("0.0.0.0", *port)).unwrap();
            // a second one only changes the length of the queue
            listen(&listener, Backlog::new(i32::from(KEPT) - 1).unwrap()).unwrap();
            listener
        };
        let listeners: Vec<_> = front.topology.server.run(|| ports.iter().map(open).collect()).unwrap();
        let (mut kept, mut asked) = (Vec::new(), Vec::new());
        for port in ports {
            kept.extend((1..=KEPT).map(|n| ask(&front, n, *port)));
            asked.extend((1..=WAIT).map(|n| ask(&front, KEPT + n, *port)));
        }
        let hung = Self { front, listeners, kept, asked };
        hung.wait_for(WAIT.into());
        assert_eq!(hung.queues().len(), ports.len());
        hung
    }

    fn queues(&self) -> Vec<abi::fief_queue> {
        let all = queue::all(self.front.installation().fief().pins()).unwrap();
        all.into_iter().map(|(_, queue)| queue).collect()
    }

    /// Waits until so many wait at each port.
    fn wait_for(&self, waiting: u32) {
        let all = || self.queues().iter().map(|queue| queue.waiting).collect::<Vec<_>>();
        wait_until(SOON, || all().iter().all(|at| *at == waiting)).unwrap_or_else(|_| panic!("{:?}", all()));
    }

    /// The servers work again: all that they have are served.
    fn go_on(&mut self) {
        for listener in self.listeners.drain(..) {
            std::thread::spawn(move || accept_all(&listener));
        }
        assert!(self.kept.drain(..).all(|stream| status(stream) == 200));
    }
}

fn accept_all(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            read_head(&mut stream)?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok()
        });
    }
}

fn ask(front: &Front, n: u8, port: u16) -> TcpStream {
    front.ask_from(low(n), Topology::server_address(Family::V4, port), "/low").unwrap()
}

/// Whether a sentence tells that of so many, but for one of each queue, which a carrier may have in hand as they are counted.
fn tells(text: &str, requests: usize, queues: usize, what: &str) -> bool {
    (requests - queues..=requests).any(|told| text.contains(&format!("{told} requests that waited {what}")))
}

const REFUSED: &str = "were refused";

#[track_caller]
fn are_refused(asked: Vec<TcpStream>) {
    let told: Vec<_> = asked.into_iter().map(status).collect();
    assert!(told.iter().all(|status| *status == 503), "{told:?}");
}

#[test]
fn those_who_wait_in_several_queues_are_waited_for_together() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let mut hung = Hung::at(&PORTS);
    let begin = Instant::now();
    let notes = hung.front.apply(&policy(&PORTS, 201)).unwrap().notes;
    let took = begin.elapsed();
    assert!(took < PORTS.len() as u32 * EMPTIES_WITHIN, "{took:?}: one queue after the other");
    let asked = std::mem::take(&mut hung.asked);
    assert!(notes.iter().any(|note| tells(note, asked.len(), PORTS.len(), REFUSED)), "{notes:?}");
    are_refused(asked);
    let left = entries(&hung.front, &OF_WAITING);
    assert!(left.iter().all(|(_, count)| *count == 0), "{left:?}");
    hung.go_on();
}

/// The former policy goes on, and what was refused for the new one stays refused.
#[test]
fn an_apply_that_fails_says_whom_it_has_refused() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let mut hung = Hung::at(&PORTS[..2]);
    let away = Away::flip(hung.front.installation().fief());
    let error = hung.front.apply(&policy(&PORTS[..2], 201)).unwrap_err().to_string();
    drop(away);
    let asked = std::mem::take(&mut hung.asked);
    assert!(tells(&error, asked.len(), 2, REFUSED), "{error}");
    are_refused(asked);
    // both hold requests again
    let later: Vec<_> = PORTS[..2].iter().map(|port| ask(&hung.front, 100, *port)).collect();
    hung.wait_for(1);
    assert!(hung.queues().iter().all(|queue| queue.open == 0));
    hung.go_on();
    assert!(later.into_iter().all(|stream| status(stream) == 200));
}

/// The program that tells them goes while they are told. What waits is not lost by that: the next policy has it refused.
#[test]
fn an_apply_that_cannot_tell_all_queues_says_how_many_wait_there() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let ports = &PORTS[..2];
    let mut hung = Hung::at(ports);
    let all = hung.asked.len();
    let failed = std::thread::scope(|scope| {
        let apply = scope.spawn(|| hung.front.apply(&policy(ports, 201)));
        // each was told once; the first one is told again for as long as it is waited for, and then the next one
        let told = || hung.queues().iter().filter(|queue| queue.open != 0).count() == ports.len();
        let told = wait_until(SOON, told);
        let away = Away::new(hung.front.installation().fief().pins().program("queue_opens"));
        let failed = apply.join().unwrap();
        drop(away);
        told.expect("they are opened");
        failed
    });
    let error = failed.unwrap_err().to_string();
    assert!(tells(&error, all, 2, "may still be there"), "{error}");
    hung.wait_for(WAIT.into());
    let notes = hung.front.apply(&policy(ports, 202)).unwrap().notes;
    assert!(notes.iter().any(|note| tells(note, all, 2, REFUSED)), "{notes:?}");
    are_refused(std::mem::take(&mut hung.asked));
    hung.go_on();
}

#[test]
fn down_refuses_who_waits_at_servers_that_hang_and_says_how_many() {
    if !ready() {
        return;
    }
    let mut hung = Hung::at(&PORTS[..2]);
    let front = &hung.front;
    let down = front.topology.server.run(|| front.installation().fief().down().unwrap()).unwrap();
    let asked = std::mem::take(&mut hung.asked);
    assert!(down.notes.len() == 1 && tells(&down.notes[0], asked.len(), 2, REFUSED), "{:?}", down.notes);
    are_refused(asked);
    hung.go_on();
}

/// Nothing can be told them.
#[test]
fn down_says_how_many_are_lost_whose_link_is_down() {
    if !ready() {
        return;
    }
    let policy = format!("interfaces = [\"{}\"]\n{}", Topology::SERVER, lasting());
    let rig = Queued::new(Door::Own, &policy);
    let _first = rig.ask(low(1), "/first");
    rig.got_all(1);
    let _lost: Vec<_> = (0..WAIT).map(|n| rig.ask(low(10 + n), "/lost")).collect();
    rig.wait_for(WAIT.into());
    let (front, server) = (&rig.front, &rig.front.topology.server);
    server.ip(&format!("link set {} down", Topology::SERVER)).unwrap();
    let down = server.run(|| front.installation().fief().down().unwrap()).unwrap();
    let told = format!("{WAIT} requests that waited are lost");
    assert!(down.notes.len() == 1 && down.notes[0].starts_with(&told), "{:?}", down.notes);
}
