// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stage's one client: a child on the server's core that asks, waits, and times batches of requests.
//!
//! It blocks while the server works, so it takes no time that is not part of a request.

use super::{Manner, Order};
use crate::error::{Context, Error, Kind, Result};
use fief_testkit::{Client, Family, Topology};
use nix::libc;
use nix::sys::socket::sockopt::{IpBindAddressNoPort, Linger};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket};
use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const PORT: u16 = 80;
/// Addresses that connections come from in turn.
const ADDRESSES: u64 = 40;
/// A server that does not answer within it is an error.
const SILENCE: Duration = Duration::from_secs(10);

/// The child's main: the path that is asked for; orders come on standard input.
pub fn client_main(arguments: &[String]) -> Result<()> {
    let [path] = arguments else {
        return Err(Error::new(Kind::Usage, "the client of the stage takes the path that it asks for"));
    };
    fief_testkit::pin(0, Topology::server_cpu())?;
    let mut client = Asking {
        request: format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n").into_bytes(),
        response: None,
        connections: 0,
    };
    for line in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line.context("read an order")?).context("read an order")?;
        let batches = client.run(order).context("ask the server of the stage")?;
        println!("{}", serde_json::to_string(&batches).context("write down what the batches took")?);
    }
    Ok(())
}

struct Asking {
    request: Vec<u8>,
    /// Bytes of every response, once one was seen.
    response: Option<usize>,
    connections: u64,
}

impl Asking {
    /// ns a request of each batch.
    fn run(&mut self, order: Order) -> std::io::Result<Vec<f64>> {
        let mut kept = match order.manner {
            Manner::Persistent => Some(self.connect()?),
            Manner::ConnectionEach => None,
        };
        (0..order.batches)
            .map(|_| {
                let begin = Instant::now();
                for _ in 0..order.requests {
                    match &mut kept {
                        Some(stream) => self.exchange(stream)?,
                        None => {
                            let mut stream = self.connect()?;
                            self.exchange(&mut stream)?;
                            let now = libc::linger { l_onoff: 1, l_linger: 0 };
                            setsockopt(&stream, Linger, &now)?;
                        }
                    }
                }
                Ok(begin.elapsed().as_nanos() as f64 / order.requests as f64)
            })
            .collect()
    }

    fn connect(&mut self) -> std::io::Result<TcpStream> {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
        self.connections += 1;
        let from = Client::Low.address(Family::V4, 1 + (self.connections % ADDRESSES) as u8);
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(Topology::server_address(Family::V4, PORT)))?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(stream)
    }

    fn exchange(&mut self, stream: &mut TcpStream) -> std::io::Result<()> {
        stream.write_all(&self.request)?;
        let (mut part, mut length) = ([0; 8192], 0);
        let mut head = Vec::new();
        while self.response.is_none_or(|whole| length < whole) {
            match stream.read(&mut part)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => {
                    length += read;
                    if self.response.is_none() {
                        head.extend_from_slice(&part[..read]);
                        self.response = whole(&head);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Bytes of the whole response, if its head is there and names the body's length.
fn whole(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    Some(head + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_as_long_as_its_head_and_body() {
        assert_eq!(whole(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab"), Some(49));
        assert_eq!(whole(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n"), None);
    }
}
