// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A query over PostgreSQL's own protocol (version 3, "Frontend/Backend Protocol" of its documentation), without TLS and
//! without a password.
//!
//! ```text
//!  client                      server
//!  SSLRequest            ──►                        (libpq does unless it is told not to)
//!                        ◄──   'N': it has no TLS
//!  StartupMessage        ──►
//!                        ◄──   AuthenticationOk 'R', ParameterStatus 'S' ..., ReadyForQuery 'Z'
//!  Query 'Q'             ──►
//!                        ◄──   RowDescription 'T', DataRow 'D', CommandComplete 'C', or ErrorResponse 'E'; ReadyForQuery 'Z'
//!  Terminate 'X'         ──►
//! ```
//!
//! All messages but the client's first ones begin with a byte that says what they are, and 4 bytes of their length, themselves included.

use super::connection::Progress;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// Who asks, and of what every server has.
pub const USER: &str = "lab";
const DATABASE: &str = "postgres";
const VERSION: u32 = 3 << 16;
/// As if it were HTTP: what a query is answered with.
const SERVED: u16 = 200;
const REFUSED: u16 = 500;

/// SSLRequest: its length, and a number that is no version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
const NO_TLS: u8 = b'N';

/// Terminate.
pub const END: [u8; 5] = [b'X', 0, 0, 0, 4];

#[derive(Debug)]
pub struct Postgres {
    asks_tls: bool,
    state: State,
    messages: Messages,
    /// Whether the query was answered with an error.
    is_refused: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Connecting,
    AskingForTls,
    Starting,
    Ready,
    Asked,
}

impl Postgres {
    pub fn new(asks_tls: bool) -> Postgres {
        Postgres { asks_tls, state: State::default(), messages: Messages::default(), is_refused: false }
    }

    pub fn proceed(&mut self, socket: &TcpStream, query: &[u8], failed: bool, buffer: &mut [u8]) -> Progress {
        let said = match self.state {
            State::Connecting if failed => Err(Progress::Failed),
            State::Connecting if self.asks_tls => self.say(socket, &SSL_REQUEST, State::AskingForTls),
            State::Connecting => self.say(socket, &startup(), State::Starting),
            State::Ready => self.say(socket, query, State::Asked),
            State::AskingForTls | State::Starting | State::Asked => Ok(()),
        };
        match said.and_then(|()| self.hear(socket, query, buffer)) {
            Ok(progress) | Err(progress) => progress,
        }
    }

    /// Sends it at once, for which a connection has room.
    fn say(&mut self, mut socket: &TcpStream, bytes: &[u8], next: State) -> Result<(), Progress> {
        match socket.write(bytes) {
            Ok(length) if length == bytes.len() => {
                self.state = next;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(Progress::Waiting),
            _ => Err(Progress::Failed),
        }
    }

    /// An event is told of once: all that has come is read, the end too.
    fn hear(&mut self, mut socket: &TcpStream, query: &[u8], buffer: &mut [u8]) -> Result<Progress, Progress> {
        loop {
            let heard = match socket.read(buffer) {
                Ok(length) if length > 0 => &buffer[..length],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Progress::Waiting),
                _ => return Err(Progress::Failed),
            };
            match (self.state, heard) {
                (State::AskingForTls, [NO_TLS]) => self.say(socket, &startup(), State::Starting)?,
                (State::AskingForTls, _) => return Err(Progress::Failed),
                _ => self.messages.take(heard),
            }
            while let Some(kind) = self.messages.pop() {
                match (kind, self.state) {
                    (b'E', _) => self.is_refused = true,
                    (b'Z', State::Asked) if self.is_refused => return Ok(Progress::Complete(REFUSED)),
                    (b'Z', State::Asked) => return Ok(Progress::Complete(SERVED)),
                    (b'Z', _) => self.say(socket, query, State::Asked)?,
                    _ => {}
                }
            }
        }
    }

    /// For the next query.
    pub fn keep(&mut self) -> bool {
        self.state = State::Ready;
        self.is_refused = false;
        true
    }
}

/// What a client says first.
pub fn startup() -> Vec<u8> {
    let words = ["user", USER, "database", DATABASE].map(|word| format!("{word}\0")).concat();
    let length = 4 + 4 + words.len() + 1;
    [&(length as u32).to_be_bytes()[..], &VERSION.to_be_bytes(), words.as_bytes(), &[0]].concat()
}

/// The message that asks for it.
pub fn query(text: &str) -> Vec<u8> {
    let length = 4 + text.len() + 1;
    [&b"Q"[..], &(length as u32).to_be_bytes(), text.as_bytes(), &[0]].concat()
}

/// Tells the messages apart, however they are cut.
#[derive(Debug, Default)]
struct Messages {
    head: Vec<u8>,
    /// What is still to come of the message whose head is whole.
    rest: usize,
    /// Those that are whole, the oldest first.
    whole: std::collections::VecDeque<u8>,
}

impl Messages {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.head.len() < 5 {
                let part = bytes.len().min(5 - self.head.len());
                self.head.extend_from_slice(&bytes[..part]);
                bytes = &bytes[part..];
                if self.head.len() < 5 {
                    return;
                }
                let length = u32::from_be_bytes([self.head[1], self.head[2], self.head[3], self.head[4]]);
                self.rest = (length as usize).saturating_sub(4);
            }
            let part = bytes.len().min(self.rest);
            bytes = &bytes[part..];
            self.rest -= part;
            if self.rest == 0 {
                self.whole.push_back(self.head[0]);
                self.head.clear();
            }
        }
    }

    /// What the next one is that is whole.
    fn pop(&mut self) -> Option<u8> {
        self.whole.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;

    const READY: [u8; 6] = [b'Z', 0, 0, 0, 5, b'I'];
    const OK: [u8; 9] = [b'R', 0, 0, 0, 8, 0, 0, 0, 0];
    const ERROR: [u8; 6] = [b'E', 0, 0, 0, 5, 0];

    proptest! {
        #[test]
        fn messages_are_told_apart_however_they_are_cut(lengths in prop::collection::vec(0u32..40, 0..6), cut in 1usize..20) {
            let message = |length: &u32| [&b"D"[..], &(length + 4).to_be_bytes(), &vec![b'Z'; *length as usize][..]].concat();
            let whole: Vec<u8> = lengths.iter().flat_map(message).chain(READY).collect();
            let mut messages = Messages::default();
            whole.chunks(cut).for_each(|part| messages.take(part));
            let kinds: Vec<u8> = std::iter::from_fn(|| messages.pop()).collect();
            prop_assert_eq!(kinds, [vec![b'D'; lengths.len()], vec![b'Z']].concat());
        }
    }

    #[test]
    fn the_first_message_has_its_own_length_and_no_kind() {
        let first = startup();
        assert_eq!(first[..8], [0, 0, 0, first.len() as u8, 0, 3, 0, 0]);
        assert!(first.ends_with(b"database\0postgres\0\0"));
        assert_eq!(query("SELECT 1")[..5], [b'Q', 0, 0, 0, 13]);
    }

    /// A server that says what it is told to, for each that it reads.
    fn served(asks_tls: bool, heard_and_says: &[(Vec<u8>, Vec<u8>)]) -> Progress {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        socket.set_nonblocking(true).expect("a socket");
        let (mut server, _) = listener.accept().expect("accepted");
        let mut postgres = Postgres::new(asks_tls);
        let mut buffer = [0; 512];
        let query = query("SELECT 1");
        let mut progress = postgres.proceed(&socket, &query, false, &mut buffer);
        for (heard, said) in heard_and_says {
            assert_eq!(progress, Progress::Waiting);
            let mut bytes = vec![0; heard.len()];
            server.read_exact(&mut bytes).expect("a message");
            assert_eq!(&bytes, heard);
            server.write_all(said).expect("room");
            // each answer is one segment, which a busy machine may hand over later
            let comes = || socket.peek(&mut [0]).is_ok();
            fief_testkit::wait_until(std::time::Duration::from_secs(20), comes).expect("it comes");
            progress = postgres.proceed(&socket, &query, false, &mut buffer);
        }
        progress
    }

    #[test]
    fn a_query_follows_the_greeting_and_is_served_or_refused() {
        let greeted = (startup(), [&OK[..], &READY].concat());
        let asked = |answer: &[u8]| (query("SELECT 1"), answer.to_vec());
        let served_so = served(false, &[greeted.clone(), asked(&READY)]);
        assert_eq!(served_so, Progress::Complete(SERVED));
        let refused = served(false, &[greeted.clone(), asked(&[&ERROR[..], &READY].concat())]);
        assert_eq!(refused, Progress::Complete(REFUSED));
        let no_tls = (SSL_REQUEST.to_vec(), vec![NO_TLS]);
        assert_eq!(served(true, &[no_tls, greeted, asked(&READY)]), Progress::Complete(SERVED));
        assert_eq!(served(true, &[(SSL_REQUEST.to_vec(), b"S".to_vec())]), Progress::Failed);
    }
}
