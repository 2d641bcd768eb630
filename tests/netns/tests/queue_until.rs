// SPDX-License-Identifier: Apache-2.0 OR MIT
//! With `until = "response"` a place is for the whole answer, with `until = "close"` for the connection.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fief_bpf::abi;
use fief_testkit::{Family, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{POLICY, Queued, answer_on, ask_on, lasting, low, read_head, status};
use fief_tests_netns::{SOON, connect_from, one_installation};
use nix::sys::socket::{setsockopt, sockopt};

/// More than the buffers of two sockets take where one does not read.
const BIG: usize = 16_000_000;
/// Longer than a place is kept whose server writes nothing more: two ticks of 134 ms.
const PAUSE: Duration = Duration::from_secs(1);

const TRIES: usize = 5;
const HOUR: Duration = Duration::from_secs(3600);

const RESPONSE: &str = "until = \"response\", stale = \"30s\"";
const CLOSE: &str = "until = \"close\", stale = \"100ms\"";

/// What the server has got, and whether it goes on with an answer that it has begun.
#[derive(Default)]
struct Told {
    got: Mutex<Vec<String>>,
    goes_on: AtomicBool,
}

/// Answers /big at once, of /slow the head and, once it is told, byte after byte; all else without a body. Ends with /end.
fn serve(mut stream: TcpStream, told: &Told) {
    while let Some(head) = read_head(&mut stream) {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        told.got.lock().unwrap().push(path.clone());
        let body = if path == "/big" { vec![b'x'; BIG] } else { Vec::new() };
        let length = if path == "/slow" { BIG } else { body.len() };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let mut goes_on = stream.write_all(&[head.as_bytes(), &body].concat()).is_ok();
        while goes_on && path == "/slow" {
            std::thread::sleep(Duration::from_millis(1));
            goes_on = !told.goes_on.load(Relaxed) || stream.write_all(b"x").is_ok();
        }
        if !goes_on || path == "/end" {
            return;
        }
    }
}

fn front(door: Door, how: &str, told: &Arc<Told>) -> Front {
    let front = Front::new(door, &POLICY.replace("in-service = 1", &format!("in-service = 1, {how}")));
    let listener = front.topology.server.run(|| TcpListener::bind("[::]:80").unwrap()).unwrap();
    let own = Arc::clone(told);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let own = Arc::clone(&own);
            std::thread::spawn(move || serve(stream, &own));
        }
    });
    front
}

fn ask(front: &Front, n: u8, path: &str) -> TcpStream {
    let from = (IpAddr::from([10, 77, 2, n]), 0).into();
    let mut stream = connect_from(&front.topology.clients, from, plain(Family::V4)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    ask_on(&mut stream, path);
    stream
}

/// Waits until the server has got so many.
fn got(told: &Told, requests: usize) -> Vec<String> {
    let all = || told.got.lock().unwrap().clone();
    wait_until(SOON, || all().len() >= requests).unwrap_or_else(|_| panic!("{:?}", all()));
    all()
}

fn wait_for_places(front: &Front, busy: u32) {
    wait_until(SOON, || front.queue().busy == busy).unwrap_or_else(|_| panic!("{} are taken", front.queue().busy));
}

/// A client to whom an answer leaves that it does not read, and one that waits for the place. `None`: the server stood still before the
/// buffers were full, as if it wrote nothing more.
fn one_waits(front: &Front, told: &Told) -> Option<[TcpStream; 2]> {
    told.got.lock().unwrap().clear();
    let mut big = ask(front, 1, "/big");
    assert!(read_head(&mut big).is_some());
    let mut next = ask(front, 2, "/next");
    let requests = || told.got.lock().unwrap().len();
    wait_until(SOON, || front.queue().waiting == 1 || requests() > 1)
        .unwrap_or_else(|_| panic!("{:?}: {:?}", front.door, front.queue()));
    std::thread::sleep(PAUSE);
    if requests() > 1 {
        drop(big);
        assert!(read_head(&mut next).is_some(), "{:?}", front.door);
        drop(next);
        wait_for_places(front, 0);
        return None;
    }
    Some([big, next])
}

#[test]
fn nobody_goes_to_the_server_while_an_answer_leaves() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let told = Arc::default();
        let front = front(door, RESPONSE, &told);
        for reads in [true, false] {
            let waits = (0..TRIES).find_map(|_| one_waits(&front, &told));
            let [mut big, mut next] = waits.unwrap_or_else(|| panic!("{door:?}: {:?}", told.got));
            assert_eq!(got(&told, 1), ["/big"], "{door:?}");
            assert_eq!((front.queue().busy, front.queue().waiting), (1, 1), "{door:?}");
            // the end of the answer, on a connection that stays open; or its client goes
            let kept = reads.then(|| {
                big.read_exact(&mut vec![0; BIG]).unwrap();
                big.try_clone().unwrap()
            });
            drop(big);
            assert_eq!(got(&told, 2), ["/big", "/next"], "{door:?}, {reads}");
            assert!(read_head(&mut next).is_some(), "{door:?}, {reads}");
            drop((kept, next));
            wait_for_places(&front, 0);
        }
    }
}

#[test]
fn an_answer_that_goes_on_takes_its_place_again() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let told = Arc::default();
        let front = front(door, RESPONSE, &told);
        let mut slow = ask(&front, 1, "/slow");
        assert!(read_head(&mut slow).is_some());
        let mut next = ask(&front, 2, "/next");
        assert_eq!(got(&told, 2), ["/slow", "/next"], "{door:?}: nothing leaves");
        assert!(read_head(&mut next).is_some(), "{door:?}");
        drop(next);
        wait_for_places(&front, 0);
        told.goes_on.store(true, Relaxed);
        wait_for_places(&front, 1);
        drop(slow);
        wait_for_places(&front, 0);
    }
}

#[test]
fn the_next_request_of_a_connection_ends_the_one_before() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let told = Arc::default();
        let front = front(door, RESPONSE, &told);
        let mut one = ask(&front, 1, "/1");
        for n in 2..20 {
            assert!(read_head(&mut one).is_some(), "{door:?}");
            ask_on(&mut one, &format!("/{n}"));
        }
        assert_eq!(got(&told, 19).len(), 19, "{door:?}");
        assert_eq!(front.queue().class[1].held, 0, "{door:?}: none had to wait for the one before");
        drop(one);
        wait_for_places(&front, 0);
    }
}

/// One client has been answered and keeps the only place, and another one waits for it.
fn kept_and_waits(front: &Front, told: &Told, n: u8) -> [TcpStream; 2] {
    told.got.lock().unwrap().clear();
    let mut one = ask(front, n, "/one");
    assert!(read_head(&mut one).is_some());
    let next = ask(front, 2, "/next");
    let waits = wait_until(SOON, || front.queue().waiting == 1);
    assert!(waits.is_ok(), "{:?}: {:?}", front.door, told.got);
    [one, next]
}

/// Its client goes: by a reset, or as usual.
fn leave(stream: TcpStream, end: End) {
    if matches!(end, End::Reset) {
        setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    }
    drop(stream);
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Client,
    Reset,
    Server,
}

#[test]
fn a_connection_keeps_its_place_until_it_ends() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let told = Arc::default();
        let front = front(door, CLOSE, &told);
        for end in [End::Client, End::Reset, End::Server] {
            let [mut one, mut next] = kept_and_waits(&front, &told, 1);
            std::thread::sleep(PAUSE);
            ask_on(&mut one, if matches!(end, End::Server) { "/end" } else { "/again" });
            assert!(read_head(&mut one).is_some(), "{door:?}, {end:?}: it has its place");
            match end {
                End::Server => {}
                _ => {
                    assert_eq!(got(&told, 2), ["/one", "/again"], "{door:?}, {end:?}");
                    assert_eq!((front.queue().busy, front.queue().lasting), (1, 1), "{door:?}, {end:?}");
                    leave(one, end);
                }
            }
            assert_eq!(got(&told, 3)[2], "/next", "{door:?}, {end:?}");
            assert!(read_head(&mut next).is_some(), "{door:?}, {end:?}");
            drop(next);
            wait_for_places(&front, 0);
            assert_eq!(front.queue().lasting, 0, "{door:?}, {end:?}");
        }
    }
}

/// A ban drops all that its client says, also that it leaves. The server does not hear of that, and the place would not come back.
#[test]
fn a_banned_client_that_leaves_gives_its_place_back() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let told = Arc::default();
        let front = front(door, CLOSE, &told);
        for (n, end) in [(10, End::Client), (11, End::Reset)] {
            let [mut one, mut next] = kept_and_waits(&front, &told, n);
            let prefix = fief_policy::parse_prefix(&format!("10.77.2.{n}")).unwrap();
            front.topology.server.run(|| front.installation().fief().ban(prefix, HOUR).unwrap()).unwrap();
            // bytes before its end, which TCP never gets
            let banned = || front.verdicts().count(abi::FIEF_BANNED);
            let before = banned();
            ask_on(&mut one, "/bye");
            wait_until(SOON, || banned() > before).unwrap();
            assert_eq!((front.queue().busy, front.queue().lasting), (1, 1), "{door:?}, {end:?}: it is still there");
            leave(one, end);
            assert_eq!(got(&told, 2), ["/one", "/next"], "{door:?}, {end:?}");
            assert!(read_head(&mut next).is_some(), "{door:?}, {end:?}");
            drop(next);
            wait_for_places(&front, 0);
            assert_eq!(front.queue().lasting, 0, "{door:?}, {end:?}");
        }
    }
}

#[test]
fn an_interim_answer_ends_no_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let mut first = rig.connect(low(1));
        first.write_all(b"GET /first HTTP/1.1\r\nHost: server\r\nExpect: 100-continue\r\n\r\n").unwrap();
        assert!(answer_on(&mut first).starts_with("HTTP/1.1 100 "));
        let other = rig.ask(low(2), "/other");
        rig.wait_for(1);
        assert_eq!(rig.got(), ["/first"]);
        rig.let_go(2);
        assert!(answer_on(&mut first).starts_with("HTTP/1.1 200 "));
        assert_eq!(status(other), 200);
        rig.wait_for_peace();
    }
}

/// A request that comes before the first answer goes with the place of its connection, which has that until its end.
#[test]
fn a_request_before_the_first_answer_leaves_its_connection_the_place() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting().replace("in-service = 1", "in-service = 1, until = \"close\""));
        let mut one = rig.connect(low(1));
        one.set_nodelay(true).unwrap();
        ask_on(&mut one, "/one");
        rig.got_all(1);
        let other = rig.ask(low(2), "/other");
        rig.wait_for(1);
        ask_on(&mut one, "/again");
        rig.let_go(2);
        for _ in 0..2 {
            assert!(answer_on(&mut one).starts_with("HTTP/1.1 200 "), "{door:?}");
        }
        assert_eq!(rig.got(), ["/one", "/again"], "{door:?}");
        let queue = rig.queue();
        assert_eq!((queue.busy, queue.lasting, queue.waiting), (1, 1, 1), "{door:?}");
        drop(one);
        rig.let_go(1);
        assert_eq!(status(other), 200, "{door:?}");
        rig.wait_for_peace();
    }
}
