// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections, from accept to a whole request, with bounds that no client moves: so many wait for their head, so many answers
//! are made at once, each for so long.
//!
//! One thread waits for all heads. When one more comes than may wait, the one that has waited longest gives way: a client that
//! sends its request at once is served, however many others send nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::http::{self, Head, LONGEST_HEAD, Request, Status};
use crate::peer::{self, Readers};

/// Connections whose head has not come.
const WAITING: usize = 128;
/// How long one may take to come.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Requests whose answer nobody makes yet.
const READY: usize = 128;
/// Answers at a time.
const WORKERS: usize = 4;
/// How long a client may read nothing of its answer, and how long all of it may take.
const STALLED: Duration = Duration::from_secs(1);
const ANSWER_TIME: Duration = Duration::from_secs(10);
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
pub(crate) type Serve = dyn Fn(&Request, &mut dyn Write) -> io::Result<()> + Send + Sync;

trait Connection: Read + Write + Send {
    fn descriptor(&self) -> BorrowedFd<'_>;
    fn wait_for(&self, none: Option<Duration>) -> io::Result<()>;
}

macro_rules! connection {
    ($($name:ty),*) => {
        $(impl Connection for $name {
            fn descriptor(&self) -> BorrowedFd<'_> {
                self.as_fd()
            }

            fn wait_for(&self, time: Option<Duration>) -> io::Result<()> {
                self.set_nonblocking(time.is_none())?;
                self.set_write_timeout(time)
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

impl Door {
    /// Serves until the process ends, in threads of its own.
    pub(crate) fn open(self, serve: Arc<Serve>) -> io::Result<()> {
        match &self {
            Self::Unix(listener, _) => listener.set_nonblocking(true),
            Self::Loopback(listener) => listener.set_nonblocking(true),
        }?;
        let (ready, wanted) = sync_channel::<(Box<dyn Connection>, Request)>(READY);
        let wanted = Arc::new(Mutex::new(wanted));
        for _ in 0..WORKERS {
            let (wanted, serve) = (Arc::clone(&wanted), Arc::clone(&serve));
            thread("fief-answer", move || work(&wanted, &*serve))?;
        }
        thread("fief-door", move || self.wait(&ready))
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
                let (mut peer, _) = listener.accept()?;
                if readers.has(&peer) {
                    return Ok(Some(Box::new(peer)));
                }
                peer.set_nonblocking(true)?;
                let _ =
                    http::refuse(&mut peer, Status::NotAllowed, "only root and members of the agent's group read here");
                Ok(None)
            }
            Self::Loopback(listener) => Ok(Some(Box::new(listener.accept()?.0))),
        }
    }

    fn wait(&self, ready: &SyncSender<(Box<dyn Connection>, Request)>) {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            let readable = self.readable(&waiting);
            let comes = readable.first().copied().unwrap_or(false);
            let mut turn = readable.into_iter().skip(1).chain(std::iter::repeat(false));
            waiting =
                waiting.into_iter().filter_map(|one| self.step(one, turn.next().unwrap_or(false), ready)).collect();
            if comes {
                self.take(&mut waiting, ready);
            }
        }
    }

    /// Of the listener, then of each connection.
    fn readable(&self, waiting: &[Waiting]) -> Vec<bool> {
        let mut polled = vec![PollFd::new(self.listener(), PollFlags::POLLIN)];
        polled.extend(waiting.iter().map(|one| PollFd::new(one.connection.descriptor(), PollFlags::POLLIN)));
        let timeout = match waiting.iter().map(|one| HEAD_TIME.saturating_sub(one.since.elapsed())).min() {
            Some(time) => PollTimeout::try_from(time + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        match poll(&mut polled, timeout) {
            Ok(_) => polled.iter().map(|one| one.any().unwrap_or(true)).collect(),
            Err(_) => Vec::new(), // a signal
        }
    }

    /// Takes in who waits for accept, each with its first look.
    fn take(&self, waiting: &mut Vec<Waiting>, ready: &SyncSender<(Box<dyn Connection>, Request)>) {
        // what is left is taken at the next poll: those who wait are looked at between
        for _ in 0..WAITING {
            match self.accept() {
                Ok(Some(connection)) => {
                    if connection.wait_for(None).is_err() {
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
    fn step(
        &self,
        mut one: Waiting,
        is_readable: bool,
        ready: &SyncSender<(Box<dyn Connection>, Request)>,
    ) -> Option<Waiting> {
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
                    let _ = http::refuse(&mut one.connection, status, "the agent answers GET /metrics and a few more");
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

fn work(wanted: &Mutex<Receiver<(Box<dyn Connection>, Request)>>, serve: &Serve) {
    loop {
        let next = wanted.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((connection, mut request)) = next else { return };
        request.asker = peer::user(&connection.descriptor());
        if connection.wait_for(Some(STALLED)).is_ok() {
            let mut timed = Timed { connection, until: Instant::now() + ANSWER_TIME };
            // a client that has gone is no failure, and a failure of ours is one answer's, not the door's
            let _ = catch_unwind(AssertUnwindSafe(|| serve(&request, &mut timed)));
        }
    }
}

/// Fails once the answer has taken too long, however little is missing.
struct Timed {
    connection: Box<dyn Connection>,
    until: Instant,
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if Instant::now() >= self.until {
            return Err(ErrorKind::TimedOut.into());
        }
        self.connection.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.connection.flush()
    }
}
