// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue in front of a server: who goes next, and that nobody is lost.

use std::io::Write;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;

use fief_testkit::{Family, wait_until};
use fief_tests_netns::front::{self, Door};
use fief_tests_netns::queued::{POLICY, Queued, answer_on, ask_on, defer, high, lasting, low, robot, status};
use fief_tests_netns::{SOON, one_installation};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, socket};

/// The same over IPv6.
fn high_v6(n: u16) -> IpAddr {
    IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 1, n])
}

/// One request is with the server, and these wait behind it, in this order of arrival.
fn line(rig: &Queued, of: &[(IpAddr, &str)]) -> Vec<TcpStream> {
    let mut asked = vec![rig.ask(low(1), "/first")];
    rig.got_all(1);
    for (waiting, (from, path)) in (1..).zip(of) {
        asked.push(rig.ask(*from, path));
        rig.wait_for(waiting);
    }
    asked
}

#[test]
fn a_better_class_goes_before_those_that_came_first() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let came = [(robot(1), "/r1"), (low(2), "/l1"), (high_v6(1), "/h1"), (low(3), "/l2"), (high(2), "/h2")];
        let asked = line(&rig, &came);
        assert_eq!(rig.got(), ["/first"], "{door:?}");
        rig.let_go(6);
        assert_eq!(rig.got_all(6), ["/first", "/h1", "/h2", "/l1", "/l2", "/r1"], "{door:?}");
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}

#[test]
fn later_requests_of_a_connection_wait_as_well() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let (mut one, mut other) = (rig.connect(low(1)), rig.connect(high(1)));
        for stream in [&mut one, &mut other] {
            rig.let_go(1);
            ask_on(stream, "/before");
            answer_on(stream);
        }
        let first = rig.ask(low(9), "/first");
        rig.got_all(3);
        ask_on(&mut one, "/low");
        rig.wait_for(1);
        ask_on(&mut other, "/high");
        rig.wait_for(2);
        rig.let_go(3);
        assert_eq!(rig.got_all(5)[2..], ["/first", "/high", "/low"], "{door:?}");
        assert!(answer_on(&mut one).starts_with("HTTP/1.1 200") && answer_on(&mut other).starts_with("HTTP/1.1 200"));
        assert_eq!(status(first), 200);
        rig.wait_for_peace();
    }
}

#[test]
fn no_class_starves_but_that_of_priority_0() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    let rig = Queued::new(Door::Own, &lasting());
    let mut came = vec![(robot(1), "/robot"), (low(2), "/low")];
    came.extend((0..40).map(|n| (high(n + 1), "/high")));
    let asked = line(&rig, &came);
    rig.let_go(43);
    let got = rig.got_all(43);
    let place = |path: &str| got.iter().position(|other| other == path).unwrap();
    // behind the 31 that it let pass
    assert_eq!(place("/low"), 32, "{got:?}");
    assert_eq!(place("/robot"), 42, "{got:?}");
    assert!(asked.into_iter().all(|stream| status(stream) == 200));
    rig.wait_for_peace();
}

/// Nobody asks for too much where the line of all is full.
#[test]
fn a_line_that_one_class_fills_is_full_and_no_more() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    let rig = Queued::new(Door::Own, &lasting().replace("length = 200", "length = 1"));
    let asked = line(&rig, &[(low(2), "/waits")]);
    assert_eq!(status(rig.ask(low(3), "/full")), 503);
    rig.let_go(2);
    assert!(asked.into_iter().all(|stream| status(stream) == 200));
}

#[test]
fn where_the_line_is_full_the_newest_of_the_lowest_class_gives_way() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let policy = lasting().replace("length = 200", "length = 2");
        let rig = Queued::new(door, &policy);
        let mut asked = line(&rig, &[(low(2), "/l1"), (robot(1), "/r1")]);
        let worse = rig.ask(robot(2), "/r2");
        assert_eq!(status(worse), 503, "{door:?}: nobody worse waits");
        let better = rig.ask(high(1), "/h1");
        assert_eq!(status(asked.pop().unwrap()), 503, "{door:?}: it gave way");
        rig.wait_for(2);
        rig.let_go(3);
        assert_eq!(rig.got_all(3), ["/first", "/h1", "/l1"], "{door:?}");
        assert!(asked.into_iter().chain([better]).all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}

/// Status of a refusal, and the seconds after which its client may ask again.
fn refusal(stream: &mut TcpStream) -> (u16, Option<u32>) {
    let head = answer_on(stream).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
    (status, head.lines().find_map(|line| line.strip_prefix("retry-after:")?.trim().parse().ok()))
}

/// At once or after it has waited, on a connection of its own or a later one of its connection, for its class's sake or all others'.
#[test]
fn who_is_refused_is_told_when_to_ask_again() {
    if !front::ready() {
        return;
    }
    let (whole, own) = (lasting().replace("length = 200", "length = 2"), "container = \"low\"\n");
    let policy = whole.replace(own, &format!("{own}queue = {{ length = 1 }}\n"));
    assert!(whole != lasting() && policy != whole);
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &policy);
        let mut later = rig.connect(robot(1));
        rig.let_go(1);
        ask_on(&mut later, "/before");
        answer_on(&mut later);
        let first = rig.ask(low(1), "/first");
        rig.got_all(2);
        let waits = rig.ask(low(2), "/l1");
        rig.wait_for(1);
        assert_eq!(refusal(&mut rig.ask(low(3), "/l2")), (429, Some(1)), "{door:?}: its class has its length");
        ask_on(&mut later, "/r1");
        rig.wait_for(2);
        assert_eq!(refusal(&mut rig.ask(robot(2), "/r2")), (503, Some(1)), "{door:?}: nobody worse waits");
        let better = rig.ask(high(1), "/h1");
        assert_eq!(refusal(&mut later), (503, Some(1)), "{door:?}: it gave way");
        rig.wait_for(2);
        let mut later = rig.connect(robot(3));
        rig.let_go(3);
        assert_eq!(rig.got_all(4)[1..], ["/first", "/h1", "/l1"], "{door:?}");
        assert!([first, better, waits].into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.let_go(1);
        ask_on(&mut later, "/before");
        answer_on(&mut later);
        // the line is full again
        let mut asked = vec![rig.ask(low(1), "/first")];
        rig.got_all(6);
        for (waiting, (from, path)) in (1..).zip([(low(2), "/l1"), (high(1), "/h1")]) {
            asked.push(rig.ask(from, path));
            rig.wait_for(waiting);
        }
        ask_on(&mut later, "/r1");
        assert_eq!(refusal(&mut later), (503, Some(1)), "{door:?}: a later request, at once");
        rig.let_go(3);
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}

#[test]
fn who_waits_too_long_is_told_at_the_next_arrival() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let policy = lasting().replace("wait = \"1m\"", "wait = \"1ms\"");
        let rig = Queued::new(door, &policy);
        // its client sends its last byte again, which moves the queue on
        let asked = line(&rig, &[]);
        assert_eq!(refusal(&mut rig.ask(low(2), "/late")), (503, Some(1)), "{door:?}");
        rig.let_go(1);
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
        assert_eq!(rig.got(), ["/first"], "{door:?}");
    }
}

#[test]
fn what_waits_goes_on_when_the_policy_goes() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let came: Vec<_> = (0..100).map(|n| (low(n + 1), "/waits")).collect();
        let asked = line(&rig, &came);
        rig.front.apply("[container.web]\n").unwrap();
        rig.let_go(101);
        assert!(asked.into_iter().all(|stream| status(stream) == 200), "{door:?}");
        assert_eq!(rig.got().len(), 101, "{door:?}");
    }
}

#[test]
fn nobody_keeps_a_place_for_nothing() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, POLICY);
        let mut half = rig.connect(low(1));
        half.write_all(b"POST /half HTTP/1.1\r\nHost: server\r\nContent-Length: 100\r\n\r\n").unwrap();
        rig.got_all(1);
        // a client that owes its body, and then one whose answer does not come
        let next = rig.ask(low(2), "/next");
        rig.got_all(2);
        let last = rig.ask(low(3), "/last");
        rig.got_all(3);
        rig.let_go(3);
        assert_eq!((status(next), status(last)), (200, 200), "{door:?}");
        drop(half);
        rig.wait_for_peace();
    }
}

#[test]
fn who_makes_a_connection_with_its_request_waits_too() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        // on a busy machine a client may send again for reasons of its own
        let nobody_asks_twice = (0..3).any(|_| waits_with_its_connection(door) == 0);
        assert!(nobody_asks_twice, "{door:?}");
    }
}

/// How many segments the clients sent again.
fn waits_with_its_connection(door: Door) -> u64 {
    let rig = Queued::multipath(door, &lasting());
    let first = rig.ask(low(1), "/first");
    rig.got_all(1);
    let early: Vec<_> = (2..5).map(|n| ask_at_once(&rig, low(n), "/early")).collect();
    rig.wait_for(3);
    let better = rig.ask(high(1), "/high");
    rig.wait_for(4);
    assert_eq!(rig.got(), ["/first"], "{door:?}");
    rig.let_go(5);
    assert_eq!(rig.got_all(5)[..2], ["/first", "/high"], "{door:?}");
    assert!(early.into_iter().chain([first, better]).all(|stream| status(stream) == 200), "{door:?}");
    rig.wait_for_peace();
    rig.front.sent_again()
}

/// By a client that keeps its part of the handshake until it has bytes for it.
fn ask_at_once(rig: &Queued, from: IpAddr, path: &str) -> TcpStream {
    let server = front::plain(Family::V4);
    let connect = || {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        defer(&fd);
        bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::from((from, 0)))).unwrap();
        nix::sys::socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(server)).unwrap();
        TcpStream::from(fd)
    };
    let mut stream = rig.front.topology.clients.run(connect).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

#[test]
fn a_request_that_is_too_long_to_be_kept_waits_with_its_first_bytes() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let mut upload = rig.connect(low(2));
        let long = |path: &str| {
            let head = format!("POST {path} HTTP/1.1\r\nHost: server\r\nContent-Length: 40000\r\n\r\n");
            [head.as_bytes(), &[b'x'; 40_000]].concat()
        };
        // after this one the client may send more at once
        upload.write_all(&long("/before")).unwrap();
        rig.let_go(1);
        answer_on(&mut upload);
        let first = rig.ask(low(1), "/first");
        rig.got_all(2);
        upload.write_all(&long("/long")).unwrap();
        rig.wait_for(1);
        wait_until(SOON, || rig.queue().too_long == 1).unwrap_or_else(|_| panic!("{door:?}"));
        let better = rig.ask(high(1), "/high");
        rig.wait_for(2);
        rig.let_go(3);
        assert_eq!(rig.got_all(4), ["/before", "/first", "/high", "/long"], "{door:?}");
        assert!(answer_on(&mut upload).starts_with("HTTP/1.1 200"), "{door:?}");
        assert!([first, better].into_iter().all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}

#[test]
fn who_resets_or_ends_while_waiting_leaves_nothing_behind() {
    if !front::ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &lasting());
        let mut asked = line(&rig, &[(low(2), "/resets"), (low(3), "/ends"), (high(1), "/stays")]);
        let (ends, resets) = (asked.remove(2), asked.remove(1));
        let now = libc::linger { l_onoff: 1, l_linger: 0 };
        let size = size_of_val(&now) as u32;
        // SAFETY: the option is of this type, and lives for the call.
        let set = unsafe {
            libc::setsockopt(resets.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const now).cast(), size)
        };
        assert_eq!(set, 0);
        drop(resets);
        rig.wait_for(2);
        ends.shutdown(Shutdown::Write).unwrap();
        rig.let_go(3);
        assert_eq!(rig.got_all(3), ["/first", "/stays", "/ends"], "{door:?}");
        assert!(asked.into_iter().chain([ends]).all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}

#[test]
fn a_rule_lets_requests_pass_without_a_place() {
    if !front::ready() {
        return;
    }
    let rule = "[[listener.plain.request]]\npath = \"/poll\"\nqueue = false\n";
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Queued::new(door, &format!("{}{rule}", lasting()));
        let polls: Vec<_> = (1..4).map(|n| rig.ask(low(n), "/poll")).collect();
        rig.got_all(3);
        let asked = rig.ask(low(9), "/asks");
        assert_eq!(rig.got_all(4)[3], "/asks", "{door:?}");
        assert_eq!(rig.queue().class[1].entered, 1, "{door:?}");
        rig.let_go(4);
        assert!(polls.into_iter().chain([asked]).all(|stream| status(stream) == 200), "{door:?}");
        rig.wait_for_peace();
    }
}

#[test]
fn a_frame_of_the_network_is_no_carrier() {
    if !front::ready() {
        return;
    }
    let rig = Queued::new(Door::Own, &lasting());
    let mark = MapHandle::from_pinned_path(rig.front.installation().fief().pins().map("queue_marks"))
        .unwrap()
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .unwrap()
        .unwrap();
    assert_ne!(mark, [0; 4]);
    let asked = line(&rig, &[(low(2), "/waits")]);
    let kicked = || (rig.queue().kicks, rig.queue().idle_kicks);
    // the carrier that has set the clock going has found no place
    let has_come = || {
        let queue = rig.queue();
        queue.kicks == queue.idle_kicks && (queue.kicks > 0 || queue.clock == 0)
    };
    wait_until(SOON, has_come).unwrap_or_else(|_| panic!("{:?}", kicked()));
    let before = kicked();
    rig.front.topology.clients.run(|| send_marked(&mark)).unwrap();
    assert_eq!(kicked(), before);
    // from within it is a kick and nothing more
    rig.front.topology.server.run(|| send_marked(&mark)).unwrap();
    assert_eq!(rig.got(), ["/first"]);
    rig.let_go(2);
    assert!(asked.into_iter().all(|stream| status(stream) == 200));
    rig.wait_for_peace();
}

/// Sends a packet with a mark, which its own network namespace alone can see, to the server and to the clients.
fn send_marked(mark: &[u8]) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: the option is of this size, and lives for the call.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MARK, mark.as_ptr().cast(), mark.len() as u32)
    };
    assert_eq!(set, 0);
    for to in [front::plain(Family::V4), SocketAddr::new(low(1), 9)] {
        socket.send_to(b"a packet that says nothing", to).unwrap();
    }
}
