// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a TCP client may do with its stream, it may do through admission too: slow, half closed, long, many, again.
//!
//! Each test does the same without a guard, with our own handshake and with the kernel's; outcomes must be equal.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use fief_testkit::{Client, Family, Impairment, NetNs, PlainServer, Topology, digest, pattern, wait_until};
use fief_tests_netns::front::{Front, GUARDED, anywhere, at_every_gate, plain, ready, through_every_gate};
use fief_tests_netns::{SOON, connect_from};
use nix::errno::Errno;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn server(front: &Front, family: Family) -> PlainServer {
    PlainServer::start(&front.topology.server, plain(family)).unwrap()
}

fn connect(front: &Front, family: Family) -> TcpStream {
    connect_from(&front.topology.clients, anywhere(family), plain(family)).unwrap()
}

/// The body of one response of known length, as the stream stands.
fn response(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body)?;
    Ok(body)
}

#[test]
fn a_request_byte_by_byte_is_served() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        for family in FAMILIES {
            let server = server(front, family);
            let mut stream = connect(front, family);
            stream.set_nodelay(true).unwrap();
            for byte in b"GET /1000 HTTP/1.1\r\nHost: server\r\n\r\n" {
                stream.write_all(&[*byte]).unwrap();
            }
            assert_eq!(response(&mut stream).unwrap(), pattern(1000));
            assert_eq!(server.seen()[0].line, "GET /1000 HTTP/1.1");
        }
        front.assert_ruled(2);
    });
}

#[test]
fn a_client_that_thinks_before_it_speaks_is_served() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        let _server = server(front, Family::V4);
        let mut early = connect(front, Family::V4);
        // Others come and go meanwhile.
        for _ in 0..200 {
            let mut stream = connect(front, Family::V4);
            stream.write_all(b"GET /close/10 HTTP/1.1\r\n\r\n").unwrap();
            assert_eq!(response(&mut stream).unwrap(), pattern(10));
        }
        early.write_all(b"GET /10 HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(response(&mut early).unwrap(), pattern(10));
        front.assert_ruled(201);
    });
}

#[test]
fn a_client_that_closes_its_half_gets_the_whole_answer() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        for family in FAMILIES {
            let _server = server(front, family);
            let mut stream = connect(front, family);
            // The FIN may travel with the request.
            stream.write_all(b"GET /300000 HTTP/1.1\r\n\r\n").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(response(&mut stream).unwrap() == pattern(300_000));
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
        front.assert_ruled(2);
    });
}

#[test]
fn a_client_that_closes_without_a_word_disturbs_nobody() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        let _server = server(front, Family::V4);
        for _ in 0..20 {
            drop(connect(front, Family::V4));
        }
        let mut stream = connect(front, Family::V4);
        stream.write_all(b"GET /10 HTTP/1.1\r\n\r\n").unwrap();
        response(&mut stream).unwrap()
    });
}

#[test]
fn requests_in_one_write_are_all_answered_in_order() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        let server = server(front, Family::V4);
        let mut stream = connect(front, Family::V4);
        let requests: String = (1..=50).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: server\r\n\r\n")).collect();
        stream.write_all(requests.as_bytes()).unwrap();
        for n in 1..=50 {
            assert_eq!(response(&mut stream).unwrap(), pattern(n));
        }
        assert_eq!(server.accepted(), 1);
    });
}

#[test]
fn a_connection_serves_many_requests_one_after_the_other() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        for family in FAMILIES {
            let server = server(front, family);
            let mut stream = connect(front, family);
            for n in 1..=300 {
                let body = pattern(n * 7);
                let head = format!("POST /{n} HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
                assert_eq!(response(&mut stream).unwrap(), pattern(n));
            }
            assert_eq!(server.accepted(), 1);
        }
        front.assert_ruled(600);
    });
}

/// Uploads and downloads `length` bytes; whether they came as they were.
fn both_ways(front: &Front, family: Family, length: usize) -> bool {
    let server = server(front, family);
    let mut stream = connect(front, family);
    let body = pattern(length);
    let head = format!("POST /{length} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut writing = stream.try_clone().unwrap();
    let sent = body.clone();
    let writer = std::thread::spawn(move || writing.write_all(&sent).unwrap());
    let back = response(&mut stream).unwrap();
    writer.join().unwrap();
    let seen = &server.seen()[0];
    back == body && seen.body == length && seen.digest == digest(&[head.as_bytes(), &body].concat())
}

#[test]
fn megabytes_go_both_ways_unchanged() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        for family in FAMILIES {
            assert!(both_ways(front, family, 8 << 20));
        }
        front.assert_ruled(2);
    });
}

#[test]
fn every_size_of_packet_will_do() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        for mtu in [9000, 1500, 1280] {
            front.topology.set_mtu(mtu).unwrap();
            for family in FAMILIES {
                assert!(both_ways(front, family, 200_000), "{family:?} with {mtu}");
            }
        }
        front.topology.set_mtu(576).unwrap();
        assert!(both_ways(front, Family::V4, 200_000));
        front.assert_ruled(7);
    });
}

#[test]
fn a_server_with_another_mtu_than_its_client_is_reached() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        for (server, clients) in [(1500, 9000), (9000, 1500)] {
            front.topology.set_mtu(9000).unwrap();
            // The links stay wide; the routes say what each may send.
            for (namespace, mtu) in [(&front.topology.server, server), (&front.topology.clients, clients)] {
                let device = if mtu == server { "sv" } else { "cv" };
                namespace.ip(&format!("route replace 10.77.0.0/16 dev {device} mtu {mtu}")).unwrap();
            }
            assert!(both_ways(front, Family::V4, 200_000), "{server} and {clients}");
        }
    });
}

#[test]
fn headers_of_64_kb_arrive_whole() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        for family in FAMILIES {
            let server = server(front, family);
            for length in [1000, 5000, 16_000, 16_384, 17_000, 65_536] {
                let mut header = b"GET /10 HTTP/1.1\r\nCookie: ".to_vec();
                header.resize(length - 4, b'c');
                header.extend(b"\r\n\r\n");
                let mut stream = connect(front, family);
                stream.write_all(&header).unwrap();
                assert_eq!(response(&mut stream).unwrap(), pattern(10), "{length}");
                let seen = server.seen().pop().unwrap();
                assert_eq!((seen.header, seen.digest), (length, digest(&header)));
            }
        }
        front.assert_ruled(12);
    });
}

#[test]
fn a_client_that_reads_slowly_gets_everything() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        let _server = server(front, Family::V4);
        let mut stream = connect(front, Family::V4);
        nix::sys::socket::setsockopt(&stream, nix::sys::socket::sockopt::RcvBuf, &4096).unwrap();
        stream.write_all(b"GET /400000 HTTP/1.1\r\n\r\n").unwrap();
        // Its window closes before it reads the first byte.
        wait_until(SOON, || unread(&stream) >= 2000).unwrap();
        assert!(response(&mut stream).unwrap() == pattern(400_000));
    });
}

fn unread(stream: &TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let length = stream.peek(&mut [0; 4096]).unwrap_or(0);
    stream.set_nonblocking(false).unwrap();
    length
}

#[test]
fn clients_without_the_usual_options_are_served() {
    if !ready() {
        return;
    }
    let usual = ["tcp_timestamps 1", "tcp_sack 1", "tcp_window_scaling 1", "tcp_ecn 2"];
    let settings = ["tcp_timestamps 0", "tcp_sack 0", "tcp_window_scaling 0", "tcp_ecn 1"];
    through_every_gate(GUARDED, |front| {
        let set = |setting: &str| {
            let (name, value) = setting.split_once(' ').unwrap();
            front.topology.clients.sysctl(&format!("net.ipv4.{name}"), value).unwrap();
        };
        usual.into_iter().for_each(set);
        for setting in settings {
            set(setting);
            // All that came before stays switched: the last client has nothing left.
            for family in FAMILIES {
                assert!(both_ways(front, family, 300_000), "{family:?} after {setting}");
            }
        }
        front.assert_ruled(8);
    });
}

#[test]
fn a_refused_connection_is_refused_as_ever() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        FAMILIES.map(|family| {
            let connect = || connect_from(&front.topology.clients, anywhere(family), plain(family)).map(drop);
            let before = connect();
            let server = server(front, family);
            let between = connect();
            drop(server);
            let after = connect();
            assert_eq!((before, between, after), (Err(Errno::ECONNREFUSED), Ok(()), Err(Errno::ECONNREFUSED)));
            let _server = PlainServer::start(&front.topology.server, plain(family)).unwrap();
            let mut stream = self::connect(front, family);
            stream.write_all(b"GET /10 HTTP/1.1\r\n\r\n").unwrap();
            response(&mut stream).unwrap()
        })
    });
}

#[test]
fn a_server_that_stops_between_handshake_and_request_breaks_the_connection_off() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        let server = server(front, Family::V4);
        let mut stream = connect(front, Family::V4);
        drop(server);
        // Stock: the connection was established and is reset when its server goes. It may be told at once or later.
        let said = stream.write_all(b"GET /10 HTTP/1.1\r\n\r\n").and_then(|()| response(&mut stream));
        let kind = said.unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof),
            "{kind}"
        );
    });
}

/// One request on a connection of its own that the server closes; from a chosen port.
fn fetch(clients: &NetNs, from: SocketAddr, server: SocketAddr) -> io::Result<usize> {
    let mut made = Err(Errno::EADDRNOTAVAIL);
    // Its own end of the last connection may still wait for the last ACK.
    wait_until(SOON, || {
        made = connect_from(clients, from, server);
        !matches!(made, Err(Errno::EADDRNOTAVAIL))
    })
    .map_err(io::Error::other)?;
    let mut stream = made?;
    stream.write_all(b"GET /close/100 HTTP/1.1\r\n\r\n")?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)
}

#[test]
fn a_port_is_used_again_while_its_last_connection_is_remembered() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        for family in FAMILIES {
            let server = server(front, family);
            let from = (Client::High.address(family, 1), 5555).into();
            // The server closes first, so it is the one that stays in TIME_WAIT.
            for n in 0..30 {
                let length = fetch(&front.topology.clients, from, plain(family));
                assert!(length.as_ref().is_ok_and(|length| *length > 100), "{n}: {length:?}");
            }
            assert_eq!(server.accepted(), 30);
        }
        front.assert_ruled(60);
    });
}

#[test]
fn a_port_is_used_again_without_timestamps_too() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        front.topology.clients.sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
        let server = server(front, Family::V4);
        let from = (Client::High.address(Family::V4, 1), 5555).into();
        for n in 0..30 {
            let length = fetch(&front.topology.clients, from, plain(Family::V4));
            assert!(length.as_ref().is_ok_and(|length| *length > 100), "{n}: {length:?}");
        }
        assert_eq!(server.accepted(), 30);
    });
}

/// `count` connections one after the other; how many were answered in full.
fn in_sequence(front: &Front, count: u64) -> u64 {
    let _server = server(front, Family::V4);
    let fetch = || {
        let mut stream = TcpStream::connect(plain(Family::V4))?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(b"GET /close/100 HTTP/1.1\r\n\r\n")?;
        let mut all = Vec::new();
        stream.read_to_end(&mut all)
    };
    let answered = |_: &u64| fetch().is_ok_and(|length: usize| length > 100);
    front.topology.clients.run(|| (0..count).filter(answered).count() as u64).unwrap()
}

#[test]
fn thousands_of_connections_one_after_the_other_are_all_served() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        let answered = in_sequence(front, 3000);
        front.assert_ruled(3000);
        answered
    });
}

#[test]
#[ignore = "a minute or two"]
fn a_hundred_thousand_connections_one_after_the_other_are_all_served() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        let answered = in_sequence(front, 100_000);
        assert_eq!(answered, 100_000);
        front.assert_ruled(100_000);
    });
}

#[test]
fn clients_at_the_same_time_are_all_served() {
    if !ready() {
        return;
    }
    through_every_gate(GUARDED, |front| {
        let _server = server(front, Family::V4);
        let mut streams: Vec<_> = (0..300).map(|_| connect(front, Family::V4)).collect();
        for stream in &mut streams {
            stream.write_all(b"GET /3000 HTTP/1.1\r\n\r\n").unwrap();
        }
        assert!(streams.iter_mut().all(|stream| response(stream).unwrap() == pattern(3000)));
        front.assert_ruled(300);
    });
}

#[test]
fn a_link_that_loses_doubles_and_reorders_packets_changes_nothing_but_the_time() {
    if !ready() {
        return;
    }
    let impairment = Impairment { seed: 11, lost: 15, doubled: 30, reordered: 60 };
    at_every_gate(GUARDED, Topology::impaired(impairment).unwrap(), |front| {
        for family in FAMILIES {
            assert!(both_ways(front, family, 400_000), "{family:?}");
        }
        // Many handshakes and first segments, some of which are lost, doubled or overtaken.
        let answered = in_sequence(front, 150);
        let done = front.topology.impairer.as_ref().unwrap().so_far();
        assert!(done.lost > 5 && done.doubled > 5 && done.reordered > 5, "{done:?}");
        answered
    });
}

#[test]
fn a_long_header_survives_a_bad_link() {
    if !ready() {
        return;
    }
    let impairment = Impairment { seed: 12, lost: 50, doubled: 50, reordered: 150 };
    at_every_gate(GUARDED, Topology::impaired(impairment).unwrap(), |front| {
        let server = server(front, Family::V4);
        for n in 0..10 {
            let mut header = b"GET /10 HTTP/1.1\r\nCookie: ".to_vec();
            header.extend(pattern(12_000 + n).iter().map(|byte| b'a' + byte % 26));
            header.extend(b"\r\n\r\n");
            let mut stream = connect(front, Family::V4);
            stream.write_all(&header).unwrap();
            assert_eq!(response(&mut stream).unwrap(), pattern(10));
            assert_eq!(server.seen().pop().unwrap().digest, digest(&header));
        }
    });
}
