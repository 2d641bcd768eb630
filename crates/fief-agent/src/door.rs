// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections, from accept to the end of an answer, with bounds that no client moves: so many wait for their head, so many answers
//! are made at once, and so many are on their way to clients that read slowly ([`sending`](crate::sending)).
//!
//! One thread waits for all clients, and those that make answers wait for none. When one more head is waited for than may be, the one
//! that has waited longest gives way: a client that sends its request at once is served, however many others send nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::http::{self, Answer, Head, LONGEST_HEAD, Request, Status};
use crate::peer::{self, Readers};
use crate::sending::{Patience, Sending, Sendings};

/// Connections whose head has not come.
const WAITING: usize = 128;
/// How long one may take to come.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Requests whose answer nobody makes yet.
const READY: usize = 128;
/// Answers at a time.
const WORKERS: usize = 4;
/// Without descriptors or memory, until it is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that clients come to.
pub(crate) enum Door {
    /// Only these.
    Unix(UnixListener, Readers),
    /// Everybody on this machine.
    Loopback(TcpListener),
}

/// Answers a request.
pub(crate) type Serve = dyn Fn(&Request) -> Answer + Send + Sync;

pub(crate) trait Connection: Read + Write + Send {
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// From now on, neither for bytes nor for room.
    fn never_wait(&self) -> io::Result<()>;
}

macro_rules! connection {
    ($($name:ty),*) => {
        $(impl Connection for $name {
            fn descriptor(&self) -> BorrowedFd<'_> {
                self.as_fd()
            }

            fn never_wait(&self) -> io::Result<()> {
                self.set_nonblocking(true)
            }
        })*
    };
}

connection!(UnixStream, TcpStream);

struct Waiting {
    connection: Box<dyn Connection>,
    since: Instant,
    head: Vec<u8>,
}

/// A client that has sent a whole request, and that request.
type Asked = (Box<dyn Connection>, Request);

/// The way of answers that their clients did not take at once, to the thread that waits for all clients.
struct Slow {
    begun: SyncSender<Sending>,
    bell: Arc<EventFd>,
}

impl Door {
    /// Serves until the process ends, in threads of its own.
    pub(crate) fn open(self, serve: Arc<Serve>) -> io::Result<()> {
        self.open_for(Patience::default(), serve)
    }

    fn open_for(self, patience: Patience, serve: Arc<Serve>) -> io::Result<()> {
        match &self {
            Self::Unix(listener, _) => listener.set_nonblocking(true),
            Self::Loopback(listener) => listener.set_nonblocking(true),
        }?;
        let (ready, wanted) = sync_channel::<Asked>(READY);
        let wanted = Arc::new(Mutex::new(wanted));
        let (begun, slow) = sync_channel(WORKERS);
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        for _ in 0..WORKERS {
            let (wanted, serve) = (Arc::clone(&wanted), Arc::clone(&serve));
            let slow = Slow { begun: begun.clone(), bell: Arc::clone(&bell) };
            thread("fief-answer", move || work(&wanted, &*serve, &slow))?;
        }
        thread("fief-door", move || self.wait(patience, &ready, &slow, &bell))
    }

    fn listener(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Loopback(listener) => listener.as_fd(),
        }
    }

    /// `None`: nobody is there, or one who may not.
    fn accept(&self) -> io::Result<Option<Box<dyn Connection>>> {
        match self {
            Self::Unix(listener, readers) => {
                let (peer, _) = listener.accept()?;
                if readers.has(&peer) {
                    return Ok(Some(Box::new(peer)));
                }
                peer.never_wait()?;
                let why = "only root and members of the agent's group read here";
                let _ = Sending::of(Box::new(peer), http::refuse(Status::NotAllowed, why)).go_on();
                Ok(None)
            }
            Self::Loopback(listener) => Ok(Some(Box::new(listener.accept()?.0))),
        }
    }

    fn wait(&self, patience: Patience, ready: &SyncSender<Asked>, slow: &Receiver<Sending>, bell: &EventFd) {
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut sendings = Sendings::new(patience);
        loop {
            let mut turn = self.polled(bell, &waiting, &sendings).into_iter().chain(std::iter::repeat(false));
            let (comes, rings) = (turn.next() == Some(true), turn.next() == Some(true));
            waiting = waiting.into_iter().filter_map(|one| self.step(one, turn.next() == Some(true), ready)).collect();
            sendings.go_on(turn);
            if rings {
                // before they are fetched: who comes later rings again
                let _ = bell.read();
                slow.try_iter().for_each(|one| sendings.add(one));
            }
            if comes {
                self.take(&mut waiting, ready);
            }
        }
    }

    /// What can be done now: for the listener, the bell, each head that is waited for, and each answer on its way.
    fn polled(&self, bell: &EventFd, waiting: &[Waiting], sendings: &Sendings) -> Vec<bool> {
        let mut polled: Vec<_> = [self.listener(), bell.as_fd()].map(|one| PollFd::new(one, PollFlags::POLLIN)).into();
        polled.extend(waiting.iter().map(|one| PollFd::new(one.connection.descriptor(), PollFlags::POLLIN)));
        polled.extend(sendings.iter().map(|one| PollFd::new(one.connection().descriptor(), PollFlags::POLLOUT)));
        let heads = waiting.iter().map(|one| HEAD_TIME.saturating_sub(one.since.elapsed()));
        let timeout = match heads.chain(sendings.time()).min() {
            Some(time) => PollTimeout::try_from(time + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        match poll(&mut polled, timeout) {
            Ok(_) => polled.iter().map(|one| one.any().unwrap_or(true)).collect(),
            Err(_) => Vec::new(), // a signal
        }
    }

    /// Takes in who waits for accept, each with its first look.
    fn take(&self, waiting: &mut Vec<Waiting>, ready: &SyncSender<Asked>) {
        // what is left is taken at the next poll: those who wait are looked at between
        for _ in 0..WAITING {
            match self.accept() {
                Ok(Some(connection)) => {
                    if connection.never_wait().is_err() {
                        continue;
                    }
                    let fresh = Waiting { connection, since: Instant::now(), head: Vec::new() };
                    if let Some(one) = self.step(fresh, true, ready) {
                        if waiting.len() >= WAITING {
                            waiting.remove(0); // they stand in the order in which they came
                        }
                        waiting.push(one);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    let is_full = !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted);
                    if is_full && error.kind() != ErrorKind::Interrupted {
                        // without this the listener would stay readable, and the loop never rest
                        std::thread::sleep(PAUSE);
                    }
                    return;
                }
            }
        }
    }

    /// Reads what has come. `None`: it is answered, refused or gone.
    fn step(&self, mut one: Waiting, is_readable: bool, ready: &SyncSender<Asked>) -> Option<Waiting> {
        if !is_readable {
            return (one.since.elapsed() < HEAD_TIME).then_some(one);
        }
        let mut part = [0; 2048];
        loop {
            match one.connection.read(&mut part) {
                Ok(0) => return None,
                Ok(length) => one.head.extend(&part[..length.min(LONGEST_HEAD - one.head.len())]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(one),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return None,
            }
            match http::read(&one.head, matches!(self, Self::Loopback(_))) {
                Head::Partial => {}
                Head::Whole(request) => {
                    // more than can be answered go unanswered
                    let _ = ready.try_send((one.connection, request));
                    return None;
                }
                Head::Refused(status) => {
                    let why = "the agent answers GET /metrics and a few more";
                    let _ = Sending::of(one.connection, http::refuse(status, why)).go_on();
                    return None;
                }
            }
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // reading what is in force takes little stack, parsing a policy some
    const STACK: usize = 1024 * 1024;
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(|_| ())
}

fn work(wanted: &Mutex<Receiver<Asked>>, serve: &Serve, slow: &Slow) {
    loop {
        let next = wanted.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((connection, mut request)) = next else { return };
        request.asker = peer::user(&connection.descriptor());
        // a failure of ours is one answer's, not the door's
        let Ok(answer) = catch_unwind(AssertUnwindSafe(|| serve(&request))) else { continue };
        if let Some(rest) = Sending::of(connection, answer).go_on() {
            let Ok(()) = slow.begun.send(rest) else { return };
            let _ = slow.bell.write(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, setsockopt, socket, sockopt};

    use super::*;
    use crate::sending::MOST;

    /// Generous: the machine may be busy.
    const SOON: Duration = Duration::from_secs(60);
    /// More than a socket takes in.
    const PAGE: usize = 8 * 1024 * 1024;

    fn asked(mut client: TcpStream) -> TcpStream {
        client.set_read_timeout(Some(SOON)).expect("a socket");
        client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it is let in");
        client
    }

    /// Takes small segments and has room for few of them, so that little of its answer fits into the machine. It reads the begin.
    fn slow(to: SocketAddrV4) -> TcpStream {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        setsockopt(&socket, sockopt::RcvBuf, &2048).expect("a socket");
        setsockopt(&socket, sockopt::TcpMaxSeg, &536).expect("a socket");
        connect(socket.as_raw_fd(), &SockaddrIn::from(to)).expect("it listens");
        let mut client = asked(socket.into());
        client.read_exact(&mut [0; 8]).expect("it is answered, whoever holds on before it");
        client
    }

    #[test]
    fn clients_that_read_slowly_keep_nobody_from_reading() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it listens");
        let port = SocketAddrV4::new([127, 0, 0, 1].into(), address.port());
        let page = Arc::new(vec![b'x'; PAGE]);
        let served = Arc::clone(&page);
        // nobody is given up for being slow: who is answered is answered beside all of them
        let hour = Duration::from_secs(3600);
        let patience = Patience { stalled: hour, whole: hour };
        let serve = move |_: &Request| http::answer("text/plain", Arc::clone(&served));
        Door::Loopback(listener).open_for(patience, Arc::new(serve)).expect("it serves");
        let answers = || Arc::strong_count(&page) - 2;
        let mut held = Vec::new();
        for number in 0..200 {
            held.push(slow(port));
            if number % 50 == 49 {
                let mut answer = Vec::new();
                asked(TcpStream::connect(address).expect("it listens")).read_to_end(&mut answer).expect("an answer");
                assert!(answer.len() > PAGE && answer.ends_with(&page), "{number}: {} bytes", answer.len());
            }
        }
        assert!((1..=MOST + WORKERS).contains(&answers()), "{} are on their way", answers());
    }
}
