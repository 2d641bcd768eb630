// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server that does some 50 us of work for a request, and on request makes a container for it.
//!
//! `/plain` is served as it is, `/container` in a container of its own: create, enter, serve, leave, close. One thread
//! takes one connection after the other, so both paths differ in nothing else.

use crate::error::{Context, Result};
use fief::Container;
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

const WORK_NS: u64 = 50_000;

/// Starts it in a thread that lives as long as the process.
pub fn start(address: SocketAddr, cpu: usize) -> Result<()> {
    let listener = TcpListener::bind(address).context(format!("listen on {address}"))?;
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(4096).context("a backlog")?)
        .context("listen")?;
    std::thread::spawn(move || {
        // An unpinned server would only make the figure noisier.
        let _ = fief_testkit::pin(0, cpu);
        let server = Server::new();
        for connection in listener.incoming().flatten() {
            // A client that went away is the load's business.
            let _ = server.serve(connection);
        }
    });
    Ok(())
}

struct Server {
    turns: u64,
    response: Vec<u8>,
    request: RefCell<Option<Container>>,
}

impl Server {
    fn new() -> Server {
        let mut response = b"HTTP/1.0 200 OK\r\nContent-Length: 1024\r\n\r\n".to_vec();
        response.extend([b'x'; 1024]);
        Server { turns: calibrate(), response, request: RefCell::new(None) }
    }

    fn serve(&self, mut connection: TcpStream) -> std::io::Result<()> {
        let mut request = [0; 2048];
        let length = connection.read(&mut request)?;
        if !request[..length].starts_with(b"GET /container") {
            return self.answer(&mut connection);
        }
        // a new container for each request; the descriptor is the server's
        let mut held = self.request.borrow_mut();
        let container = match held.take() {
            Some(mut former) => {
                former.renew().map_err(std::io::Error::other)?;
                former
            }
            None => Container::create().map_err(std::io::Error::other)?,
        };
        let container = held.insert(container);
        let _bound = container.bind().map_err(std::io::Error::other)?;
        self.answer(&mut connection)
    }

    fn answer(&self, connection: &mut TcpStream) -> std::io::Result<()> {
        work(self.turns);
        connection.write_all(&self.response)
    }
}

/// A fixed amount of work, not of time: a slower clock must not do less.
fn work(turns: u64) {
    let mut state = 1u64;
    for turn in 0..turns {
        state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn));
    }
}

/// How many turns take [`WORK_NS`]; the fastest of some tries, for who disturbs makes it only slower.
fn calibrate() -> u64 {
    const TURNS: u64 = 100_000;
    let tries = (0..20).map(|_| {
        let begin = Instant::now();
        work(TURNS);
        begin.elapsed().as_nanos() as u64
    });
    WORK_NS * TURNS / tries.min().unwrap_or(1).max(1)
}
