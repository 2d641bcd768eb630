// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client with many connections at a time, one thread, one epoll. It sends bytes as they are, in the pieces that are
//! asked for, each by a call of its own and others' pieces between, and then the end of the stream. Between the pieces of a
//! slow job it waits.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

/// Answers of many pipelined requests; what is behind is read and forgotten.
const MOST_KEPT: usize = 1 << 16;
/// After so long nothing more is expected of a server that has not seen the end of the stream.
const QUIET: Duration = Duration::from_millis(200);
/// Between the pieces of a slow job; a server that takes what it has for a request answers by then.
const PACE: Duration = Duration::from_millis(20);
/// How often what time alone brings about is looked for.
const SWEEP: Duration = Duration::from_millis(5);
const CLIENTS: u32 = 700;
/// Of /24: clients of one network share the room for half heads.
const NETWORKS: u32 = 100;

/// What to do on one connection.
#[derive(Clone, Debug)]
pub struct Job {
    pub server: SocketAddr,
    /// Sent first of all; its answer is awaited.
    pub opening: Vec<u8>,
    /// What the answer to the opening must hold.
    pub opened: &'static str,
    pub bytes: Vec<u8>,
    /// Ends of the pieces, ascending; the last one is the bytes' end.
    pub pieces: Vec<usize>,
    /// Each piece but the first waits until the server has had time for those before it.
    pub slow: bool,
    pub shut: Shut,
    /// The exchange is over once an answer holds this.
    pub until: &'static str,
}

/// When the end of the stream follows the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    AtOnce,
    /// So that no incomplete request waits for patience to run out. Not at once: HAProxy may drop a pipelined request
    /// when it has seen the end of the stream.
    WhenQuiet,
    Never,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The last answer came.
    Answered,
    /// The server, or Fief in its name, closed.
    Closed,
    Reset,
    /// Nothing more came.
    Silent,
    /// No answer to the opening request: this says nothing about the case.
    Unopened,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub end: End,
    /// What came after the opening.
    pub received: Vec<u8>,
}

impl Outcome {
    pub fn count(&self, words: &str) -> usize {
        self.received.windows(words.len()).filter(|window| *window == words.as_bytes()).count()
    }

    pub fn has(&self, words: &str) -> bool {
        holds(&self.received, words.as_bytes())
    }
}

/// What makes jobs and takes their outcomes.
pub trait Work {
    type Ticket;
    /// `None`: nothing to begin for now; with nothing under way the work is done.
    fn next(&mut self) -> Option<(Self::Ticket, Job)>;
    fn done(&mut self, ticket: Self::Ticket, outcome: Outcome);
}

struct Connection<T> {
    stream: TcpStream,
    job: Job,
    ticket: T,
    received: Vec<u8>,
    sent: usize,
    opened: bool,
    opening_sent: usize,
    /// Until when the next piece of a slow job waits.
    rests_until: Option<Instant>,
    deadline: Instant,
    /// When something happened last.
    moved: Instant,
    is_shut: bool,
}

/// Does the work in the calling thread's namespace.
pub fn perform<W: Work>(work: &mut W, at_once: usize, patience: Duration) -> nix::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut open: HashMap<i32, Connection<W::Ticket>> = HashMap::new();
    let mut events = vec![EpollEvent::empty(); 256];
    let mut begun = 0_u32;
    let mut swept = Instant::now();
    let tick = EpollTimeout::try_from(SWEEP).expect("a few milliseconds");
    loop {
        while open.len() < at_once {
            let Some((ticket, job)) = work.next() else { break };
            begun = begun.wrapping_add(1);
            let stream = dial(begun, job.server)?;
            let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
            epoll.add(&stream, EpollEvent::new(interest, stream.as_raw_fd() as u64))?;
            let opened = job.opening.is_empty();
            let now = Instant::now();
            let rests = if job.slow { 2 * PACE * job.pieces.len() as u32 } else { Duration::ZERO };
            let connection = Connection {
                ticket,
                job,
                received: vec![],
                sent: 0,
                opened,
                opening_sent: 0,
                rests_until: None,
                deadline: now + patience + rests,
                moved: now,
                is_shut: false,
                stream,
            };
            open.insert(connection.stream.as_raw_fd(), connection);
        }
        if open.is_empty() {
            return Ok(());
        }
        let count = match epoll.wait(&mut events, tick) {
            Err(Errno::EINTR) => 0,
            count => count?,
        };
        for event in &events[..count] {
            let fd = event.data() as i32;
            let Some(connection) = open.get_mut(&fd) else { continue };
            if let Some(end) = connection.step(&epoll, event.events())? {
                finish(work, open.remove(&fd).expect("it was there"), end);
            }
        }
        if swept.elapsed() >= SWEEP {
            let now = Instant::now();
            let stood_still = now - swept > QUIET / 2;
            swept = now;
            for connection in open.values_mut() {
                if stood_still {
                    // so may the servers: what they have not answered yet is not all that they say
                    connection.moved = now;
                }
                connection.go_on(&epoll, swept)?;
                connection.shut_when_quiet(swept);
            }
            let late: Vec<i32> =
                open.iter().filter(|(_, connection)| connection.deadline <= swept).map(|(fd, _)| *fd).collect();
            for fd in late {
                finish(work, open.remove(&fd).expect("it was there"), End::Silent);
            }
        }
    }
}

fn finish<W: Work>(work: &mut W, connection: Connection<W::Ticket>, end: End) {
    // Without a reset the client's side of thousands of connections would wait in FIN_WAIT.
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    let _ = setsockopt(&connection.stream, sockopt::Linger, &linger);
    let end = if connection.opened { end } else { End::Unopened };
    work.done(connection.ticket, Outcome { end, received: connection.received });
}

fn dial(number: u32, server: SocketAddr) -> nix::Result<TcpStream> {
    let fd: OwnedFd =
        socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    // Each connection has another address, so that no pair of ports comes again soon.
    let host = number % CLIENTS;
    let from = Ipv4Addr::new(10, 88, 1 + (host % NETWORKS) as u8, 1 + (host / NETWORKS) as u8);
    setsockopt(&fd, sockopt::IpBindAddressNoPort, &true)?;
    setsockopt(&fd, sockopt::TcpNoDelay, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(IpAddr::V4(from), 0)))?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(server)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(fd)),
        Err(errno) => Err(errno),
    }
}

impl<T> Connection<T> {
    /// Goes on as far as it can; how the connection ended, if it did.
    fn step(&mut self, epoll: &Epoll, events: EpollFlags) -> nix::Result<Option<End>> {
        if events.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP)
            && let Some(end) = self.receive()
        {
            return Ok(Some(end));
        }
        if !self.opened {
            if self.opening_sent < self.job.opening.len() && events.contains(EpollFlags::EPOLLOUT) {
                match self.stream.write(&self.job.opening[self.opening_sent..]) {
                    Ok(count) => self.opening_sent += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return Ok(self.receive().or(Some(End::Reset))),
                }
                if self.opening_sent == self.job.opening.len() {
                    self.wait_for(epoll, EpollFlags::EPOLLIN)?;
                }
            }
            if !holds(&self.received, self.job.opened.as_bytes()) {
                return Ok(None);
            }
            self.opened = true;
            self.received.clear();
            self.wait_for(epoll, EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT)?;
            return Ok(None);
        }
        if self.sent < self.job.bytes.len() && events.contains(EpollFlags::EPOLLOUT) {
            let end = *self.job.pieces.iter().find(|&&end| end > self.sent).expect("the last piece ends the bytes");
            match self.stream.write(&self.job.bytes[self.sent..end]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // What the server had said before it closed is still there.
                Err(_) => return Ok(self.receive().or(Some(End::Reset))),
            }
            if self.sent == self.job.bytes.len() {
                self.moved = Instant::now();
                if self.job.shut == Shut::AtOnce {
                    self.shut();
                }
                self.wait_for(epoll, EpollFlags::EPOLLIN)?;
            } else if self.job.slow && self.sent == end {
                self.rests_until = Some(Instant::now() + PACE);
                // Else the room to write would wake it all the time.
                self.wait_for(epoll, EpollFlags::EPOLLIN)?;
            }
        }
        Ok(None)
    }

    /// Lets the next piece of a slow job follow, once it has waited long enough.
    fn go_on(&mut self, epoll: &Epoll, now: Instant) -> nix::Result<()> {
        if self.rests_until.is_none_or(|until| until > now) {
            return Ok(());
        }
        self.rests_until = None;
        self.wait_for(epoll, EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT)
    }

    fn shut_when_quiet(&mut self, now: Instant) {
        let is_sent = self.opened && self.sent == self.job.bytes.len();
        if is_sent && self.job.shut == Shut::WhenQuiet && !self.is_shut && now - self.moved > QUIET {
            self.shut();
        }
    }

    fn shut(&mut self) {
        self.is_shut = true;
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn wait_for(&self, epoll: &Epoll, interest: EpollFlags) -> nix::Result<()> {
        epoll.modify(&self.stream, &mut EpollEvent::new(interest, self.stream.as_raw_fd() as u64))
    }

    fn receive(&mut self) -> Option<End> {
        let mut room = [0; 16384];
        loop {
            match self.stream.read(&mut room) {
                Ok(0) => return Some(End::Closed),
                Ok(count) => {
                    self.moved = Instant::now();
                    let before = self.received.len().saturating_sub(self.job.until.len());
                    if self.received.len() < MOST_KEPT {
                        self.received.extend(&room[..count]);
                    }
                    if self.opened && holds(&self.received[before..], self.job.until.as_bytes()) {
                        return Some(End::Answered);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Some(End::Reset),
            }
        }
    }
}

fn holds(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|window| window == words)
}
