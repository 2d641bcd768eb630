// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection whose socket has no memory left for what the door notes there: its requests find no room, and the policy says what becomes
//! of them. Here the bound is low. A client can come to it where a server sends without a copy (MSG_ZEROCOPY), by acknowledging nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use fief_bpf::abi;
use fief_testkit::{Family, NetNs, wait_until};
use fief_tests_netns::front::{Door, anywhere, plain, ready};
use fief_tests_netns::queued::{answer_on, ask_on, length_of};
use fief_tests_netns::rig::Rig;
use fief_tests_netns::{NEVER_OVERLOADED, SOON, connect_from, one_installation, unacknowledged};

/// One rule refuses a path; `keys` are of the listener.
fn policy(keys: &str) -> String {
    format!(
        "{NEVER_OVERLOADED}[container.web]\n[listener.plain]\naddress = \"[::]:80\"\n{keys}\n\
         [[listener.plain.client]]\nfrom = [\"any\"]\ncontainer = \"web\"\n\
         [[listener.plain.request]]\npath = \"/secret/*\"\nrefuse = \"503\"\n"
    )
}

/// The kernel makes the connections.
const BELOW: &str = "admit-from = \"overloaded\"\n";

/// What there is no memory for when the request comes.
#[derive(Clone, Copy, Debug)]
enum Missing {
    /// The label of a connection that was made for its first request.
    Label,
    /// The label of one that has said nothing yet.
    First,
    /// Its label has room, and what is noted of its heads has not.
    Heads,
}

impl Missing {
    const ALL: [Missing; 3] = [Missing::Label, Missing::First, Missing::Heads];

    /// Keys of the listener beside `keys`.
    fn keys(self, keys: &str) -> String {
        if let Missing::First = self { format!("{BELOW}{keys}") } else { keys.to_owned() }
    }

    /// A connection that has not got it yet.
    fn connect(self, rig: &Rig) -> TcpStream {
        let mut stream = connect(rig);
        match self {
            Missing::First => wait_until(SOON, || rig.server.accepted() == 1).unwrap(),
            Missing::Label | Missing::Heads => {
                ask_on(&mut stream, "/10");
                is_served(&mut stream);
            }
        }
        stream
    }

    /// From now on it gets none.
    fn take_memory(self, rig: &Rig) -> Memory<'_> {
        Memory::of(&rig.front.topology.server, if let Missing::Heads = self { LESS_THAN_HEADS } else { "0" })
    }
}

const BOUND: &str = "net.core.optmem_max";
const USUAL: &str = "131072";
/// Bytes; a label takes less than half of it.
const LESS_THAN_HEADS: &str = "1024";

/// How much each socket of the server's namespace has for what programs note there.
struct Memory<'a>(&'a NetNs);

impl<'a> Memory<'a> {
    fn of(server: &'a NetNs, bytes: &str) -> Self {
        server.sysctl(BOUND, bytes).unwrap();
        Self(server)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // it is written where it was
        let _ = self.0.sysctl(BOUND, USUAL);
    }
}

fn connect(rig: &Rig) -> TcpStream {
    let stream = connect_from(&rig.front.topology.clients, anywhere(Family::V4), plain(Family::V4)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn is_served(stream: &mut TcpStream) {
    let head = answer_on(stream);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    stream.read_exact(&mut vec![0; length_of(&head)]).unwrap();
}

/// The request that a rule refuses: its connection is reset, and the server does not see it.
fn is_reset(rig: &Rig, stream: &mut TcpStream, what: &str) {
    let before = rig.verdicts();
    ask_on(stream, "/secret/10");
    stream.set_read_timeout(Some(SOON)).unwrap();
    let heard = stream.read(&mut [0; 100]).map_err(|error| error.kind());
    let new = rig.verdicts().since(&before);
    assert_eq!(heard, Err(ErrorKind::ConnectionReset), "{what}: {new:?}");
    assert!(rig.is_counted(new.count(abi::FIEF_REFUSED_NO_ROOM), 1), "{what}: {new:?}");
    let seen = rig.server.seen();
    assert!(!seen.iter().any(|seen| seen.line.contains("/secret")), "{what}: {seen:?}");
}

#[test]
fn a_request_that_there_is_no_memory_for_is_refused_where_the_policy_refuses_what_has_no_room() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for missing in Missing::ALL {
            let rig = Rig::new(door, &policy(&missing.keys("")));
            let mut stream = missing.connect(&rig);
            let _memory = missing.take_memory(&rig);
            is_reset(&rig, &mut stream, &format!("{door:?}, {missing:?}"));
        }
    }
}

#[test]
fn it_passes_and_is_counted_where_the_policy_lets_that_pass() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        for missing in Missing::ALL {
            let rig = Rig::new(door, &policy(&missing.keys("unread = { no-room = \"pass\", other = \"pass\" }")));
            let mut stream = missing.connect(&rig);
            let before = rig.verdicts();
            let memory = missing.take_memory(&rig);
            ask_on(&mut stream, "/secret/10");
            is_served(&mut stream);
            let new = rig.verdicts().since(&before);
            assert!(new.count(abi::FIEF_PASSED_NO_ROOM) > 0, "{door:?}, {missing:?}: {new:?}");
            drop(memory);
            // what has passed unread is not held against what comes once there is memory
            ask_on(&mut stream, "/10");
            is_served(&mut stream);
        }
    }
}

/// It breaks no connection.
#[test]
fn a_guard_on_trial_counts_that_it_would_refuse_it() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for memory in ["0", LESS_THAN_HEADS] {
        let rig = Rig::new(Door::Own, &policy("mode = \"monitor\""));
        let mut stream = Missing::First.connect(&rig);
        let before = rig.verdicts();
        let _memory = Memory::of(&rig.front.topology.server, memory);
        ask_on(&mut stream, "/secret/10");
        is_served(&mut stream);
        let new = rig.verdicts().since(&before);
        assert!(new.monitored(abi::FIEF_REFUSED_NO_ROOM) > 0, "{memory} bytes: {new:?}");
        assert_eq!(new.unread(), new.monitored(abi::FIEF_REFUSED_NO_ROOM), "{memory} bytes: {new:?}");
    }
}

/// Where it ends the verdict on its head says; the request behind it is one more.
#[test]
fn the_rest_of_a_body_passes_without_memory() {
    if !ready() {
        return;
    }
    let _one = one_installation();
    for door in Door::GUARDS {
        let rig = Rig::new(door, &policy(""));
        let before = rig.verdicts();
        let mut stream = connect(&rig);
        stream.write_all(b"POST /10 HTTP/1.1\r\nHost: server\r\nContent-Length: 6\r\n\r\nabc").unwrap();
        wait_until(SOON, || unacknowledged(&stream) == 0).unwrap();
        let _memory = Missing::Label.take_memory(&rig);
        stream.write_all(b"def").unwrap();
        is_served(&mut stream);
        let new = rig.verdicts().since(&before);
        assert_eq!(new.unread(), 0, "{door:?}: {new:?}");
        is_reset(&rig, &mut stream, &format!("{door:?}"));
    }
}
