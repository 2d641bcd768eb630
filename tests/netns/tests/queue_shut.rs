// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client that tries a shut window with a byte, as BSD, macOS and Windows do: TCP does not take it, so it is no turn.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::time::Duration;

use fief_testkit::segment::{ACK, PSH};
use fief_testkit::{Family, RawClients, RawConnection, wait_until};
use fief_tests_netns::front::{Door, Front, plain, ready};
use fief_tests_netns::queued::{lasting, low, status};
use fief_tests_netns::{SOON, one_installation};

/// The largest segment, and timestamps: without a scale a window is what it says.
const UNSCALED: [u8; 16] = [2, 4, 5, 0xb4, 8, 10, 0, 0, 0x10, 0, 0, 0, 0, 0, 1, 1];
const TURN: &[u8] = b"\x01 /one \r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const PAUSE: Duration = Duration::from_millis(50);

/// How many bytes the server has taken, as far as it has said.
fn taken(one: &RawConnection) -> u32 {
    one.acknowledged.wrapping_sub(one.first).wrapping_sub(1)
}

fn room(one: &RawConnection) -> usize {
    one.edge.wrapping_sub(one.acknowledged) as usize
}

#[test]
fn a_byte_at_a_shut_window_is_no_turn() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for (port, door) in (3000..).zip(Door::GUARDS) {
        let front = Front::new(door, &lasting().replace("[::]:80", "0.0.0.0:80"));
        let listener = front.topology.server.run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
        let small: libc::c_int = 4096;
        // SAFETY: `small` lives longer than the call, which reads as many bytes as it is told to.
        let set = unsafe {
            let at = (&raw const small).cast();
            libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, at, size_of_val(&small) as u32)
        };
        assert_eq!(set, 0);
        let (let_it, go) = channel::<()>();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; TURN.len()]).unwrap();
            stream.write_all(ANSWER).unwrap();
            go.recv().unwrap();
            // it answers what it has not read
            stream.write_all(ANSWER).unwrap();
            go.recv().unwrap();
            let (mut other, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let mut bytes = [0; 4096];
            while !all.ends_with(b"!") {
                let read = stream.read(&mut bytes).unwrap();
                assert_ne!(read, 0);
                all.extend_from_slice(&bytes[..read]);
                // the other one is answered once the window is open again
                if all.len() == read {
                    other.write_all(ANSWER).unwrap();
                    other.shutdown(std::net::Shutdown::Write).unwrap();
                }
            }
            all.len()
        });
        let clients = RawClients::new(&front.topology).unwrap();
        let ends = [(RawClients::address(Family::V4, 5), port).into(), plain(Family::V4)];
        let mut one = RawConnection::open(&clients, ends, 77, &UNSCALED, SOON).unwrap().expect("a SYN-ACK");
        one.acknowledge().unwrap();
        clients.send(&one.segment(PSH | ACK, 0, TURN)).unwrap();
        let answered = |one: &mut RawConnection, bytes: usize| {
            wait_until(SOON, || {
                one.hear(PAUSE).unwrap();
                one.received().len() == bytes
            })
            .unwrap();
        };
        answered(&mut one, ANSWER.len());
        one.acknowledge().unwrap();
        wait_until(SOON, || {
            let piece = vec![b'.'; room(&one).min(1000)];
            if !piece.is_empty() {
                clients.send(&one.segment(PSH | ACK, taken(&one), &piece)).unwrap();
            }
            one.hear(PAUSE).unwrap();
            room(&one) == 0
        })
        .unwrap_or_else(|_| panic!("{door:?}: {one:?}"));
        let_it.send(()).unwrap();
        answered(&mut one, 2 * ANSWER.len());
        one.acknowledge().unwrap();
        let other = front.ask_from(low(9), plain(Family::V4), "/other").unwrap();
        wait_until(SOON, || front.queue().busy == 1).unwrap();
        // it is answered, and not taken, neither by the queue
        let (full, before) = (taken(&one), front.queue());
        clients.send(&one.segment(PSH | ACK, full, b"!")).unwrap();
        let answer = clients.receive(one.client, SOON).unwrap_or_else(|| panic!("{door:?}: an answer"));
        assert_eq!((answer.acknowledgment, answer.window), (one.acknowledged, 0), "{door:?}");
        assert_eq!((front.queue().waiting, front.queue().busy), (before.waiting, before.busy), "{door:?}");
        let_it.send(()).unwrap();
        wait_until(SOON, || {
            one.hear(PAUSE).unwrap();
            room(&one) > 0
        })
        .unwrap();
        clients.send(&one.segment(PSH | ACK, full, b"!")).unwrap();
        assert_eq!(server.join().unwrap(), full as usize - TURN.len() + 1, "{door:?}");
        assert_eq!(status(other), 200, "{door:?}");
    }
}
