// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was acknowledged while it waited is lost by nothing between the door and the server, reaches that once, and holds up nothing that
//! comes behind it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{Family, NetNs, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{
    OF_WAITING, POLICY, Queued, answer_on, ask_on, entries, lasting, length_of, low, read_head, status,
};
use fief_tests_netns::{SOON, connect_from, one_installation};
use nix::sys::socket::{setsockopt, sockopt};

const HEARD: Duration = Duration::from_millis(50);

/// A firewall behind the door, which drops requests and nothing else: what the queue brings bears PSH.
struct Firewall<'a>(&'a NetNs);

impl<'a> Firewall<'a> {
    fn new(namespace: &'a NetNs) -> Self {
        nft(namespace, "add table inet lossy");
        nft(namespace, "add chain inet lossy in { type filter hook input priority 0 ; }");
        nft(namespace, "add rule inet lossy in tcp dport 80 tcp flags psh drop");
        Self(namespace)
    }
}

impl Drop for Firewall<'_> {
    fn drop(&mut self) {
        nft(self.0, "delete table inet lossy");
    }
}

fn nft(namespace: &NetNs, words: &str) {
    let done = namespace.command("nft").args(words.split(' ')).status().unwrap();
    assert!(done.success(), "nft {words}");
}

/// A request of this client waits behind another one's, which the server has read: the first of its connection, or not. The other one's
/// connection, and how many requests the server has read.
fn one_waits(rig: &Queued, client: &mut TcpStream, is_first: bool) -> (TcpStream, usize) {
    if !is_first {
        rig.let_go(1);
        ask_on(client, "/before");
        assert!(answer_on(client).starts_with("HTTP/1.1 200 "));
    }
    let read = rig.got().len() + 1;
    let first = rig.ask(low(1), "/first");
    rig.got_all(read);
    ask_on(client, "/held");
    rig.wait_for(1);
    (first, read)
}

/// Nothing is left of what waited, nor a note that its server has it.
fn is_empty(rig: &Queued) -> bool {
    let tables = [&OF_WAITING[..], &["queue_serves"]].concat();
    entries(&rig.front, &tables).iter().all(|(_, count)| *count == 0)
}

#[test]
fn a_request_that_a_firewall_drops_is_carried_again_until_it_lets_it_pass() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (door, is_first) in Door::GUARDS.into_iter().flat_map(|door| [(door, true), (door, false)]) {
        let at = format!("{door:?}, first {is_first}");
        let rig = Queued::new(door, &lasting());
        let mut client = rig.connect(low(2));
        let (first, read) = one_waits(&rig, &mut client, is_first);
        let again = rig.front.sent_again();
        let firewall = Firewall::new(&rig.front.topology.server);
        rig.let_go(3);
        assert_eq!(status(first), 200, "{at}");
        // that is dropped too
        wait_until(SOON, || rig.queue().carried_again > 0).unwrap_or_else(|_| panic!("{at}: {:?}", rig.queue()));
        assert_eq!(rig.got().len(), read, "{at}");
        assert_eq!(rig.queue().waiting, 0, "{at}");
        drop(firewall);
        assert!(answer_on(&mut client).starts_with("HTTP/1.1 200 "), "{at}");
        // its stream has no gap
        ask_on(&mut client, "/next");
        assert!(answer_on(&mut client).starts_with("HTTP/1.1 200 "), "{at}");
        assert_eq!(rig.got()[read..], ["/held", "/next"], "{at}");
        assert_eq!(rig.front.sent_again(), again, "{at}: its client did it");
        rig.wait_for_peace();
        wait_until(SOON, || is_empty(&rig)).unwrap_or_else(|_| panic!("{at}: {:?}", rig.queue()));
    }
}

/// Its place would last for 30 s, by `lasting()`.
const REFUSED: Duration = Duration::from_secs(25);

#[test]
fn who_asks_what_a_firewall_never_lets_pass_is_told_so() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (door, is_first) in Door::GUARDS.into_iter().flat_map(|door| [(door, true), (door, false)]) {
        let at = format!("{door:?}, first {is_first}");
        let rig = Queued::new(door, &lasting());
        let mut client = rig.connect(low(2));
        let (first, read) = one_waits(&rig, &mut client, is_first);
        let firewall = Firewall::new(&rig.front.topology.server);
        let begin = Instant::now();
        rig.let_go(3);
        assert_eq!(status(first), 200, "{at}");
        client.set_read_timeout(Some(SOON)).unwrap();
        let mut answer = [0; 13];
        match client.read_exact(&mut answer) {
            Ok(()) => assert_eq!(&answer, b"HTTP/1.1 503 ", "{at}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{at}"),
        }
        let port = client.local_addr().unwrap().port();
        drop(client);
        rig.wait_for_peace();
        wait_until(SOON, || is_empty(&rig)).unwrap_or_else(|_| panic!("{at}: {:?}", rig.queue()));
        assert!(begin.elapsed() < REFUSED, "{at}: {:?}", begin.elapsed());
        wait_until(SOON, || rig.front.sockets(port).is_empty()).unwrap_or_else(|_| panic!("{at}: it keeps a socket"));
        wait_until(SOON, || rig.queue().tick_ns == 0).unwrap_or_else(|_| panic!("{at}: the clock goes on"));
        drop(firewall);
        assert_eq!(status(rig.ask(low(3), "/next")), 200, "{at}");
        assert_eq!(rig.got()[read..], ["/next"], "{at}");
    }
}

/// What a client has in its request, and must not get from the server.
const REFUSED_ONE: &str = "GET /refused HTTP/1.1\r\nHost: server\r\n\r\n";

/// Its first request is lost behind the door, and it sends another one with the same numbers, which ends where a refused one begins within
/// the lost one. What comes out of the queue is ruled no more, and TCP takes what it lacks of it.
#[test]
fn what_a_client_sends_in_a_lost_requests_place_is_not_followed_by_the_rest_of_that() {
    if !ready() {
        return;
    }
    let policy = lasting() + "[[listener.plain.request]]\npath = \"/refused\"\nrefuse = \"503\"\n";
    let _one = one_installation();
    // a machine that stands still lets the lost one come first, once nothing is lost any more
    let is_shown = (0..5).any(|_| takes_the_place(&policy));
    assert!(is_shown, "the lost one came first each time");
}

/// False: the lost one came first.
fn takes_the_place(policy: &str) -> bool {
    let rig = Queued::new(Door::Own, policy);
    let clients = RawClients::new(&rig.front.topology).unwrap();
    let ends = [(RawClients::address(Family::V4, 5), 50_001).into(), plain(Family::V4)];
    let mut client = RawConnection::open(&clients, ends, 7, &ORDINARY_OPTIONS, SOON).unwrap().expect("it is answered");
    let head = |first: &str, field: String| format!("{first} HTTP/1.1\r\nHost: server\r\n{field}\r\n\r\n");
    let lost = head("POST /lost", format!("Content-Length: {}", REFUSED_ONE.len())) + REFUSED_ONE;
    let bare = head("GET /instead", "X: ".to_owned()).len();
    let instead = head("GET /instead", format!("X: {}", "x".repeat(lost.len() - REFUSED_ONE.len() - bare)));
    assert_eq!(instead.len() + REFUSED_ONE.len(), lost.len());
    let first = rig.ask(low(1), "/first");
    rig.got_all(1);
    clients.send(&client.segment(PSH | ACK, 0, lost.as_bytes())).unwrap();
    rig.wait_for(1);
    let firewall = Firewall::new(&rig.front.topology.server);
    rig.let_go(3);
    assert_eq!(status(first), 200);
    // the next time is 0.6 s later, and the claim of its first bytes is over 0.15 s after each
    wait_until(SOON, || rig.queue().carried_again >= 3).unwrap_or_else(|_| panic!("{:?}", rig.queue()));
    drop(firewall);
    wait_until(SOON, || {
        clients.send(&client.segment(PSH | ACK, 0, instead.as_bytes())).unwrap();
        client.hear(HEARD).unwrap();
        rig.got().len() > 1
    })
    .unwrap_or_else(|_| panic!("{:?}", rig.queue()));
    if rig.got()[1] == "/lost" {
        return false;
    }
    wait_until(SOON, || rig.queue().carried.linked == 0).unwrap_or_else(|_| panic!("{:?}", rig.queue()));
    client.hear(HEARD).unwrap();
    assert_eq!(rig.got(), ["/first", "/instead"]);
    true
}

/// So long a server reads nothing: what is lost for as long is refused.
const READS_NOTHING: Duration = Duration::from_secs(7);

fn answer_all(mut stream: TcpStream) {
    while let Some(head) = read_head(&mut stream) {
        if stream.read_exact(&mut vec![0; length_of(&head)]).is_err() {
            return;
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

/// Bytes of the client's that it was told have come.
fn acknowledged(client: &RawConnection) -> usize {
    client.acknowledged.wrapping_sub(client.first) as usize - 1
}

/// Its first request fills the buffer while the next one waits, which the window had room for.
#[test]
fn a_request_that_finds_no_room_in_the_servers_buffer_goes_once_there_is_some() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let policy = POLICY.replace("wait = \"1m\"", "wait = \"1m\", stale = \"3s\"");
    assert_ne!(policy, POLICY);
    let front = Front::new(Door::Own, &policy);
    let listener = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
    let clients = RawClients::new(&front.topology).unwrap();
    let ends = [(RawClients::address(Family::V4, 5), 50_000).into(), plain(Family::V4)];
    let open = RawConnection::open(&clients, ends, 7, &ORDINARY_OPTIONS, SOON).unwrap();
    let mut client = open.expect("it is answered");
    let requests = [
        format!("POST /long HTTP/1.1\r\nHost: server\r\nContent-Length: 8000\r\n\r\n{}", "x".repeat(8000)),
        "GET /held HTTP/1.1\r\nHost: server\r\n\r\n".to_owned(),
    ];
    let stream = requests.concat().into_bytes();
    let (long, all) = (requests[0].len(), stream.len());
    let mut ends: Vec<_> = (1400..long).step_by(1400).collect();
    ends.extend([long, all]);
    let mut at = 0;
    for end in ends {
        let mut segment = client.segment(PSH | ACK, at as u32, &stream[at..end]);
        // another window than before: TCP looks at nothing else where all is as it was (header prediction)
        segment.window -= u16::from(end == all);
        clients.send(&segment).unwrap();
        wait_until(SOON, || {
            client.hear(HEARD).unwrap();
            acknowledged(&client) >= end
        })
        .unwrap_or_else(|_| panic!("{} of {end}: {:?}", acknowledged(&client), front.queue()));
        at = end;
    }
    // it reads nothing, and has room for what it was sent, and for no more: the least there is
    let (stream, _) = listener.accept().unwrap();
    setsockopt(&stream, sockopt::RcvBuf, &1).unwrap();
    let released = || front.queue().class.iter().map(|class| class.released).sum::<u64>();
    assert_eq!(released(), 0, "{:?}", front.queue());
    // the place of the first one runs out
    wait_until(SOON, || released() == 1).unwrap_or_else(|_| panic!("{:?}", front.queue()));
    std::thread::sleep(READS_NOTHING);
    assert!(client.received().is_empty());
    assert_eq!(front.queue().carried.linked, 1, "{:?}", front.queue());
    std::thread::spawn(move || answer_all(stream));
    let answers = |client: &RawConnection| String::from_utf8_lossy(client.received()).matches("HTTP/1.1 200 ").count();
    wait_until(SOON, || {
        client.hear(HEARD).unwrap();
        client.acknowledge().unwrap();
        answers(&client) == 2
    })
    .unwrap_or_else(|_| panic!("{:?}, {:?}", String::from_utf8_lossy(client.received()), front.queue()));
    wait_until(SOON, || front.queue().kept == 0).unwrap_or_else(|_| panic!("{:?}", front.queue()));
}

/// How a server ends a connection behind a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    /// It answers and closes.
    Closes,
    /// It answers and closes, and nothing is left of the socket at once.
    Resets,
    /// The same without an answer.
    SaysNothing,
}

type Times = Arc<Mutex<BTreeMap<String, usize>>>;

/// Reads the request of a connection, and ends that at once.
fn serve_one(mut stream: TcpStream, ends: Ends, times: &Mutex<BTreeMap<String, usize>>) {
    let Some(head) = read_head(&mut stream) else { return };
    if stream.read_exact(&mut vec![0; length_of(&head)]).is_err() {
        return;
    }
    *times.lock().unwrap().entry(head.split(' ').nth(1).unwrap_or_default().to_owned()).or_default() += 1;
    if ends != Ends::SaysNothing {
        // who is reset may be told nothing
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    if ends != Ends::Closes {
        setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    }
}

/// How often it got each path.
fn serve_and_end(front: &Front, ends: Ends) -> Times {
    let listener = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
    let times = Times::default();
    let own = Arc::clone(&times);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let own = Arc::clone(&own);
            std::thread::spawn(move || serve_one(stream, ends, &own));
        }
    });
    times
}

const CLIENTS: u8 = 8;
const POSTS: usize = 60;
/// Each connection has another port: whose ports another one had a moment ago may be reset (docs/limits.md).
const PORTS: u16 = 20_000;

/// The socket is there for microseconds, and whoever looks for it later finds none.
#[test]
fn no_post_is_done_twice_whose_server_ends_its_connection_at_once() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (door, ends) in Door::GUARDS
        .into_iter()
        .flat_map(|door| [Ends::Closes, Ends::Resets, Ends::SaysNothing].map(|ends| (door, ends)))
    {
        let at = format!("{door:?}, {ends:?}");
        let front = Front::new(door, &lasting());
        let times = serve_and_end(&front, ends);
        let post = |client: u8, n: usize| {
            let from = (low(client), PORTS + n as u16).into();
            let mut stream = connect_from(&front.topology.clients, from, plain(Family::V4)).unwrap();
            let head = format!("POST /{client}/{n} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n");
            write!(stream, "{head}Content-Length: 5\r\n\r\nhello").unwrap();
            let mut answer = Vec::new();
            // a reset may take it away
            let end = stream.read_to_end(&mut answer);
            assert!(ends != Ends::Closes || (end.is_ok() && answer.starts_with(b"HTTP/1.1 200 ")), "{at}: {end:?}");
        };
        std::thread::scope(|scope| {
            let post = &post;
            (1..=CLIENTS).for_each(|client| drop(scope.spawn(move || (0..POSTS).for_each(|n| post(client, n)))));
        });
        // nothing is carried any more
        let left = || (front.queue().waiting, front.queue().busy, front.queue().kept);
        wait_until(SOON, || left() == (0, 0, 0)).unwrap_or_else(|_| panic!("{at}: {:?}", left()));
        let waited = front.queue().class[1].released;
        assert!(waited > u64::from(CLIENTS), "{at}: {waited} waited");
        let mut times = times.lock().unwrap().clone();
        assert_eq!(times.len(), usize::from(CLIENTS) * POSTS, "{at}");
        times.retain(|_, times| *times != 1);
        assert!(times.is_empty(), "{at}: {times:?}");
    }
}

const QUICK: u8 = 4;
const ASKED: usize = 300;

/// Each asks again as soon as it is answered, which is sooner than anybody looks at what it asked before.
#[test]
fn who_asks_again_at_once_is_held_up_by_nothing() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let all = usize::from(QUICK) * ASKED;
        rig.let_go(all);
        let mut streams: Vec<_> = (1..=QUICK).map(|n| rig.connect(low(n))).collect();
        let again = rig.front.sent_again();
        std::thread::scope(|scope| {
            for stream in &mut streams {
                stream.set_nodelay(true).unwrap();
                scope.spawn(move || {
                    for _ in 0..ASKED {
                        ask_on(stream, "/again");
                        assert!(answer_on(stream).starts_with("HTTP/1.1 200 "));
                    }
                });
            }
        });
        let queue = rig.queue();
        assert!(queue.class[1].released > all as u64 / 20, "{door:?}: few waited: {:?}", queue.class[1]);
        // each would be, if what was asked before kept it back; one that nobody runs for may be, on a busy machine
        let again = rig.front.sent_again() - again;
        assert!(again <= all as u64 / 10, "{door:?}: {again} were sent again");
        assert!(queue.carried_again <= all as u64 / 10, "{door:?}: {} were carried again", queue.carried_again);
        assert_eq!(rig.got().len(), all, "{door:?}");
        rig.wait_for_peace();
        wait_until(SOON, || rig.queue().carried.linked == 0).unwrap();
    }
}
