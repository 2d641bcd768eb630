// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a TCP client may do with its stream, it may do through admission too: slow, half closed, long, many at a time.
//!
//! Each test does the same without a guard, with our own handshake and with the kernel's; outcomes must be equal.

#[path = "transparency/stream.rs"]
mod stream;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use fief_testkit::{Family, PlainServer, digest, pattern, wait_until};
use fief_tests_netns::front::{GUARDED, anywhere, plain, ready, through_every_door};
use fief_tests_netns::{SOON, connect_from, one_installation};
use nix::errno::Errno;
use stream::{FAMILIES, both_ways, connect, response, server};

#[test]
fn a_request_byte_by_byte_is_served() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
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
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
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
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
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
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
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
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
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
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
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

#[test]
fn megabytes_go_both_ways_unchanged() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        for family in FAMILIES {
            assert!(both_ways(front, family, 8 << 20));
        }
        front.assert_ruled(2);
    });
}

#[test]
fn headers_of_64_kb_arrive_whole() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
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
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
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
    let _one = one_installation();
    let usual = ["tcp_timestamps 1", "tcp_sack 1", "tcp_window_scaling 1", "tcp_ecn 2"];
    let settings = ["tcp_timestamps 0", "tcp_sack 0", "tcp_window_scaling 0", "tcp_ecn 1"];
    through_every_door(GUARDED, |front| {
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
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        FAMILIES.map(|family| {
            let connect = || connect_from(&front.topology.clients, anywhere(family), plain(family)).map(drop);
            // a child that another test starts holds the listener, this one's and that before, from its fork to its exec
            let is_refused = || wait_until(SOON, || connect() == Err(Errno::ECONNREFUSED)).is_ok();
            assert!(is_refused());
            let server = server(front, family);
            let between = connect();
            drop(server);
            assert_eq!(between, Ok(()));
            assert!(is_refused());
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
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
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

#[test]
fn clients_at_the_same_time_are_all_served() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    through_every_door(GUARDED, |front| {
        let _server = server(front, Family::V4);
        let mut streams: Vec<_> = (0..300).map(|_| connect(front, Family::V4)).collect();
        for stream in &mut streams {
            stream.write_all(b"GET /3000 HTTP/1.1\r\n\r\n").unwrap();
        }
        assert!(streams.iter_mut().all(|stream| response(stream).unwrap() == pattern(3000)));
        front.assert_ruled(300);
    });
}
