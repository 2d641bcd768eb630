// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fief finds out how many requests at once a server is to get, overall and of the classes below one with a latency; and how long
//! one that is not answered counts.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fief_bpf::abi::{self, fief_queue};
use fief_bpf::record::Record;
use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{Client, Ending, Family, ORDINARY_OPTIONS, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{POLICY, Queued, high, lasting, low, status};
use fief_tests_netns::rig::status_of;
use fief_tests_netns::{SOON, connect_from, now_ns, one_installation};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

/// Of one class, each with a request under way all the time.
const CLIENTS: u8 = 24;
/// What a request costs in one way or the other.
const WORK: Duration = Duration::from_millis(2);
/// Trials come after measurements, which last up to a second on a busy machine.
const FOUND: Duration = Duration::from_secs(90);
/// A quiet one makes so many in that time. A machine that stands still takes longer for them, at most so long.
const MEASUREMENTS: u32 = 700;
const MEASURED: Duration = Duration::from_secs(600);

/// How the server works: requests in turn, each of which computes; all at once, each of which waits for somebody else; or
/// all at once, and the more there are the longer each takes.
#[derive(Default)]
struct Ways {
    waits: AtomicBool,
    shares: AtomicBool,
    at_once: AtomicU32,
    computing: Mutex<()>,
    over: AtomicBool,
}

fn work(ways: &Ways) {
    if ways.shares.load(Relaxed) {
        let at_once = ways.at_once.fetch_add(1, Relaxed) + 1;
        std::thread::sleep(WORK * at_once);
        ways.at_once.fetch_sub(1, Relaxed);
        return;
    }
    if ways.waits.load(Relaxed) {
        return std::thread::sleep(5 * WORK);
    }
    let _turn = ways.computing.lock().unwrap();
    let began = Instant::now();
    while began.elapsed() < WORK {
        std::hint::spin_loop();
    }
}

fn serve(mut stream: TcpStream, ways: &Ways) {
    let mut head = [0; 1024];
    if stream.read(&mut head).is_ok_and(|length| length > 0) {
        work(ways);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
}

fn serving(front: &Front, ways: &Arc<Ways>) {
    let listener = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
    let own = Arc::clone(ways);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let own = Arc::clone(&own);
            std::thread::spawn(move || serve(stream, &own));
        }
    });
}

fn ask(front: &Front, client: Client, n: u8) -> Option<u16> {
    let from = (client.address(Family::V4, n), 0).into();
    let mut stream = connect_from(&front.topology.clients, from, plain(Family::V4)).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n").ok()?;
    stream.set_read_timeout(Some(SOON)).ok()?;
    status_of(stream).ok()
}

/// Whether such a number of places is settled before so many measurements have ended. (Of those between two readings one is counted.)
fn settles(front: &Front, is_wanted: impl Fn(u32) -> bool) -> bool {
    let (mut from_ns, mut ended, mut settled) = (0, 0, false);
    let _ = wait_until(MEASURED, || {
        let measured = front.queue().measured;
        ended += u32::from(measured.from_ns != from_ns);
        from_ns = measured.from_ns;
        settled = is_wanted(measured.settled);
        settled || ended > MEASUREMENTS
    });
    settled
}

#[test]
fn places_are_as_many_as_the_server_does_more_with() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, &POLICY.replace("in-service = 1", "in-service = \"auto\""));
        let ways = Arc::new(Ways::default());
        serving(&front, &ways);
        std::thread::scope(|scope| {
            for n in 1..=CLIENTS {
                let (front, ways) = (&front, &ways);
                scope.spawn(move || {
                    while !ways.over.load(Relaxed) {
                        assert_eq!(ask(front, Client::Low, n), Some(200));
                    }
                });
            }
            let few = settles(&front, |places| places <= 3);
            ways.waits.store(true, Relaxed);
            let more = settles(&front, |places| places >= 12);
            ways.over.store(true, Relaxed);
            let measured = front.queue().measured;
            assert!(few, "{door:?}, one at a time: {measured:?}");
            assert!(more, "{door:?}, all at once: {measured:?}");
        });
    }
}

/// A burst of requests that cost nothing says little of what the server does with the others.
#[test]
fn one_measurement_raises_the_best_rate_by_an_eighth_at_most() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &POLICY.replace("in-service = 1", "in-service = \"auto\""));
        rig.let_go(1);
        let pins = rig.front.installation().fief().pins();
        let (number, mut queue) = fief_bpf::queue::all(pins).unwrap().pop().expect("a queue");
        // the next answer ends it
        queue.measured.from_ns = now_ns() - 100_000_000;
        (queue.measured.answered, queue.measured.drain, queue.measured.best) = (1_000_000, 0, 800);
        let queues = MapHandle::from_pinned_path(pins.map("queues")).unwrap();
        queues.update(&number.to_ne_bytes(), queue.bytes(), MapFlags::EXIST).unwrap();
        assert_eq!(status(rig.ask(low(1), "/cheap")), 200, "{door:?}");
        assert_eq!(rig.queue().measured.best, 900, "{door:?}: {:?}", rig.queue().measured);
    }
}

/// Requests slow each other down, and those of the lower class are held back until the higher one is answered in time.
#[test]
fn the_classes_below_get_fewer_places_until_a_latency_holds() {
    if !ready() {
        return;
    }
    let promised = format!("cpu.priority = 200\nlatency = \"90% in {}ms\"", 8 * WORK.as_millis());
    let policy = POLICY.replace("in-service = 1", "in-service = 64").replace("cpu.priority = 200", &promised);
    let _one = one_installation();
    for door in Door::GUARDS {
        let front = Front::new(door, &policy);
        let ways = Arc::new(Ways { shares: true.into(), ..Ways::default() });
        serving(&front, &ways);
        let [high, low] = [0, 1].map(|class| move |front: &Front| front.queue().class[class]);
        std::thread::scope(|scope| {
            for n in 1..=CLIENTS {
                let (front, ways) = (&front, &ways);
                let client = if n == 1 { Client::High } else { Client::Low };
                scope.spawn(move || {
                    while !ways.over.load(Relaxed) {
                        assert_eq!(ask(front, client, n), Some(200));
                    }
                });
            }
            let fewer = wait_until(FOUND, || front.queue().below <= 6);
            let held = high(&front).eighths_held;
            let holds = wait_until(FOUND, || high(&front).eighths_held > held + 4);
            let served = low(&front).released;
            let goes_on = wait_until(SOON, || low(&front).released > served);
            ways.over.store(true, Relaxed);
            let queue = front.queue();
            assert!(fewer.is_ok(), "{door:?}: {} places below", queue.below);
            assert!(holds.is_ok(), "{door:?}: {} places below, {:?}", queue.below, queue.class[0]);
            assert!(goes_on.is_ok(), "{door:?}: the class below is not served");
        });
    }
}

#[test]
fn a_place_is_held_as_long_as_the_policy_says() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let queued = Queued::new(door, &POLICY.replace("in-service = 1", "in-service = 1, stale = \"20s\""));
        let [first, second] = ["/first", "/second"].map(|path| queued.ask(Client::Low.address(Family::V4, 1), path));
        queued.wait_for(1);
        // no server's answer moves it on: the time does, which passes while the queue looks at it
        let begun = queued.queue();
        let known = |queue: fief_queue| Duration::from_nanos((queue.tick - begun.tick) << queue.tick_shift);
        wait_until(SOON, || queued.got().len() > 1 || known(queued.queue()) >= Duration::from_secs(4)).unwrap();
        assert_eq!(queued.got(), ["/first"], "{door:?}");
        queued.let_go(2);
        assert_eq!([first, second].map(status), [200, 200], "{door:?}");

        drop(queued);
        let queued = Queued::new(door, &POLICY.replace("in-service = 1", "in-service = 1, stale = \"100ms\""));
        let [first, second] = ["/first", "/second"].map(|path| queued.ask(Client::Low.address(Family::V4, 1), path));
        assert_eq!(queued.got_all(2).len(), 2, "{door:?}");
        queued.let_go(2);
        assert_eq!([first, second].map(status), [200, 200], "{door:?}");
    }
}

/// A server of four places, of which the promise to the high class leaves the others one, and for good.
fn one_place_below(new: impl FnOnce(&str) -> Queued) -> Queued {
    let promised = "cpu.priority = 200\nlatency = \"90% in 50s\"";
    let policy = lasting().replace("cpu.priority = 200", promised).replace("in-service = 1", "in-service = 4");
    let rig = new(&policy);
    // with a first answer the number is found out anew
    rig.let_go(1);
    assert_eq!(status(rig.ask(high(1), "/before")), 200);
    rig.wait_for_peace();
    let pins = rig.front.installation().fief().pins();
    let (number, mut queue) = fief_bpf::queue::all(pins).unwrap().pop().expect("a queue");
    (queue.below, queue.below_rests) = (1, u32::MAX);
    let queues = MapHandle::from_pinned_path(pins.map("queues")).unwrap();
    queues.update(&number.to_ne_bytes(), queue.bytes(), MapFlags::EXIST).unwrap();
    rig
}

#[test]
fn a_class_that_has_all_places_which_a_latency_leaves_it_waits() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = one_place_below(|policy| Queued::new(door, policy));
        let first = rig.ask(low(1), "/first");
        rig.got_all(2);
        let second = rig.ask(low(2), "/second");
        rig.wait_for(1);
        let better = rig.ask(high(2), "/better");
        assert_eq!(rig.got_all(3), ["/before", "/first", "/better"], "{door:?}");
        assert_eq!(rig.queue().waiting, 1, "{door:?}");
        rig.let_go(3);
        rig.got_all(4);
        assert_eq!([first, second, better].map(status), [200; 3], "{door:?}");
        rig.wait_for_peace();
    }
}

/// Bytes that are kept of a request at most (FIEF_QUEUE_MOST).
const KEPT: usize = 15 * 1024;

/// Of several requests in the first packet of a connection not only a part can wait: other bytes could come in the place of the rest.
#[test]
fn more_than_can_be_kept_of_a_first_packet_is_refused_where_its_class_has_all_places() {
    if !ready() {
        return;
    }
    const REFUSES: &str = "[[listener.plain.request]]\npath = \"/secret\"\nrefuse = \"503\"\n";
    let _one = one_installation();
    let one = format!("GET /many HTTP/1.1\r\nHost: server\r\nX: {}\r\n\r\n", "x".repeat(350));
    // the last one's header begins before, and ends behind
    let many = one.repeat(1 + KEPT / one.len());
    for door in Door::GUARDS {
        let rig = one_place_below(|policy| Queued::new(door, &format!("{policy}{REFUSES}")));
        rig.front.topology.set_mtu(20_000).unwrap();
        let clients = RawClients::new(&rig.front.topology).unwrap();
        let first = rig.ask(low(1), "/first");
        rig.got_all(2);
        let ends = [(RawClients::address(Family::V4, 5), 3000).into(), plain(Family::V4)];
        let open = RawConnection::open(&clients, ends, 77, &ORDINARY_OPTIONS, SOON).unwrap();
        let mut connection = open.expect("a SYN-ACK");
        clients.send(&connection.segment(PSH | ACK, 0, many.as_bytes())).unwrap();
        let refused = || rig.front.verdicts().count(abi::FIEF_REFUSED_QUEUE_FULL);
        wait_until(SOON, || rig.queue().waiting == 1 || refused() > 0).unwrap_or_else(|_| panic!("{:?}", rig.queue()));
        rig.let_go(1000);
        let other = b"\r\n\r\nGET /secret HTTP/1.1\r\nHost: server\r\n\r\n";
        let other = connection.segment(PSH | ACK, KEPT as u32, other);
        let mut ending = None;
        for _ in 0..20 {
            clients.send(&other).unwrap();
            ending = ending.or(connection.hear(Duration::from_millis(20)).unwrap());
        }
        // the CPU that receives for the clients may stand still for longer
        let _ = wait_until(SOON, || {
            ending = ending.or(connection.hear(Duration::from_millis(20)).unwrap());
            ending.is_some()
        });
        assert_eq!(rig.got(), ["/before", "/first"], "{door:?}: {:?}", rig.front.verdicts());
        let words = String::from_utf8_lossy(connection.received()).into_owned();
        assert!(words.starts_with("HTTP/1.1 503") && ending == Some(Ending::Closed), "{door:?}: {ending:?}, {words}");
        assert_eq!((status(first), refused(), rig.queue().too_long), (200, 1, 0), "{door:?}");
    }
}

/// An option of multipath TCP (RFC 8684 3.1: MP_CAPABLE, version 1, SHA-256).
const MULTIPATH: [u8; 4] = [30, 4, 0x01, 0x01];

/// Only its own packet can make such a connection, so that it comes again until a place is free for it.
#[test]
fn a_request_that_cannot_wait_takes_no_place_of_a_class_that_has_all() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    let rig = one_place_below(|policy| Queued::multipath(Door::Kernel, policy));
    let clients = RawClients::new(&rig.front.topology).unwrap();
    let ends = [(RawClients::address(Family::V4, 5), 3000).into(), plain(Family::V4)];
    let connection = RawConnection::open(&clients, ends, 77, &ORDINARY_OPTIONS, SOON).unwrap().expect("a SYN-ACK");
    let mut request = connection.segment(PSH | ACK, 0, b"GET /again HTTP/1.1\r\nHost: server\r\n\r\n");
    request.options.extend(MULTIPATH);
    let first = rig.ask(low(1), "/first");
    rig.got_all(2);
    (0..3).for_each(|_| clients.send(&request).unwrap());
    // what comes behind it
    let better = rig.ask(high(2), "/better");
    assert_eq!(rig.got_all(3), ["/before", "/first", "/better"]);
    rig.let_go(3);
    wait_until(SOON, || {
        clients.send(&request).unwrap();
        rig.got().len() > 3
    })
    .unwrap_or_else(|_| panic!("{:?}", rig.queue()));
    assert_eq!(rig.got()[3..], ["/again"]);
    assert_eq!([first, better].map(status), [200; 2]);
}
