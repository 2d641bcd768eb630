// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An HTTP/1.1 server in threads of the test: there at once, and it tells what it saw.
//!
//! `GET /<n>` is answered with n bytes of [`pattern`], anything else with its [`Seen`] in words. Persistent unless the
//! client says otherwise or the path is below `/close/`, which the server closes first. Below `/half/` it ends its own side
//! behind the answer, and reads on. Below `/mute/` it never answers.

use crate::{Error, NetNs, Result, wait_until};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// A client that says nothing for so long is let go, so that no test hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// One request as the server got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub line: String,
    /// Bytes from the request line to the empty line, both included.
    pub header: usize,
    pub body: usize,
    /// Of header and body, see [`digest`].
    pub digest: u64,
}

#[derive(Debug, Default)]
struct State {
    accepted: AtomicU64,
    seen: Mutex<Vec<Seen>>,
    open: Mutex<Vec<TcpStream>>,
}

/// A child that another thread starts holds the listener of a server before, from its fork to its exec.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let mut bound = TcpListener::bind(address);
    let _ = wait_until(Duration::from_secs(10), || {
        if bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
            bound = TcpListener::bind(address);
        }
        !bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    });
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until it is dropped.
#[derive(Debug)]
pub struct PlainServer {
    state: Arc<State>,
    stop: Option<OwnedFd>,
    accepting: Option<JoinHandle<()>>,
}

impl PlainServer {
    /// Listens on an address of the namespace.
    pub fn start(namespace: &NetNs, address: SocketAddr) -> Result<PlainServer> {
        let listener = namespace.run(|| bind(address))?.map_err(|e| Error::io(format!("listen on {address}"), e))?;
        let state = Arc::new(State::default());
        // a child that is started meanwhile must not hold the server's end
        let pipe = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC);
        let (stopped, stop) = pipe.map_err(|errno| Error::errno("make a pipe", errno))?;
        let shared = state.clone();
        let accepting = Some(std::thread::spawn(move || accept(&listener, &stopped, &shared)));
        Ok(PlainServer { state, stop: Some(stop), accepting })
    }

    /// Connections that it was given.
    pub fn accepted(&self) -> u64 {
        self.state.accepted.load(Ordering::Relaxed)
    }

    /// The requests so far, in the order of their ends.
    pub fn seen(&self) -> Vec<Seen> {
        held(&self.state.seen).clone()
    }
}

impl Drop for PlainServer {
    /// Nobody listens any more when it returns, and what was open is closed.
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(accepting) = self.accepting.take() {
            // A panic there has been reported, and the missing answers fail the test.
            let _ = accepting.join();
        }
        for stream in held(&self.state.open).drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// What `GET /<n>` sends: no period that a lost or doubled packet could hide in.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| ((n % 251) ^ (n / 251)) as u8).collect()
}

/// FNV-1a, 64 bits.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn accept(listener: &TcpListener, stopped: &OwnedFd, state: &Arc<State>) {
    loop {
        let mut ready = [listener.as_fd(), stopped.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _ = poll(&mut ready, PollTimeout::NONE);
        if ready[1].any().unwrap_or(false) {
            return;
        }
        let Ok((stream, _)) = listener.accept() else { continue };
        state.accepted.fetch_add(1, Ordering::Relaxed);
        let _ = stream.set_nonblocking(false);
        let mut open = held(&state.open);
        open.retain(|stream| stream.peer_addr().is_ok());
        open.extend(stream.try_clone());
        let state = state.clone();
        // A client that breaks off is its test's business.
        std::thread::spawn(move || drop(serve(stream, &state)));
    }
}

fn serve(mut stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1 << 16, stream.try_clone()?);
    let mut answers = true;
    while let Some((header, text)) = read_header(&mut reader)? {
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
        };
        if field("expect").is_some() {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let length = field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let line = text.lines().next().unwrap_or_default().to_owned();
        let digest = digest(&[header.as_slice(), &body].concat());
        let seen = Seen { line: line.clone(), header: header.len(), body: length, digest };
        let path = line.split(' ').nth(1).unwrap_or_default();
        let last =
            path.starts_with("/close") || line.ends_with("/1.0") || field("connection").as_deref() == Some("close");
        let answer = path.rsplit('/').next().and_then(|word| word.parse().ok()).map(pattern);
        let answer = answer.unwrap_or_else(|| format!("{seen:?}").into_bytes());
        held(&state.seen).push(seen);
        if !answers || path.starts_with("/mute") {
            continue;
        }
        let word = if last { "close" } else { "keep-alive" };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: {word}\r\n\r\n", answer.len());
        stream.write_all(&[head.as_bytes(), &answer].concat())?;
        if last {
            break;
        }
        if path.starts_with("/half") {
            stream.shutdown(std::net::Shutdown::Write)?;
            answers = false;
        }
    }
    stream.shutdown(std::net::Shutdown::Write)
}

/// Up to the empty line; `None` at the end of the stream.
fn read_header(reader: &mut impl BufRead) -> io::Result<Option<(Vec<u8>, String)>> {
    let mut header = Vec::new();
    loop {
        let begin = header.len();
        if reader.read_until(b'\n', &mut header)? == 0 {
            return Ok(None);
        }
        if matches!(&header[begin..], b"\r\n" | b"\n") {
            let text = String::from_utf8_lossy(&header).into_owned();
            return Ok(Some((header, text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, Feature, Topology, get, require};

    #[test]
    fn tells_what_it_saw_and_listens_no_more_when_it_is_dropped() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let address = Topology::server_address(Family::V4, 4000);
        let server = PlainServer::start(&topology.server, address).expect("a server");
        let answer = get(&topology.clients, address, "/1024").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Content-Length: 1024"), "{answer}");
        assert_eq!((server.accepted(), server.seen()[0].line.as_str()), (1, "GET /1024 HTTP/1.0"));
        drop(server);
        assert!(get(&topology.clients, address, "/1").is_err());
        PlainServer::start(&topology.server, address).expect("the address is free again");
    }
}
