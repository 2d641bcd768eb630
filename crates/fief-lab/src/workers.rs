// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab's own blocking server: so many workers, each of which accepts a connection, answers it and accepts the next.
//!
//! It stands for the paper's Apache of 50 processes. Connections beyond the workers wait in the listen queue, and in what
//! order they leave it is what the experiments are about. Each request costs a set time of CPU, by the worker's own
//! clock, so that capacity is known and does not hang on a file's size.

use crate::error::{Context, Error, Kind, Result};
use nix::time::{ClockId, clock_gettime};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// The longest request that is read; a longer one is answered all the same.
const REQUEST: usize = 16 * 1024;
/// A worker does not wait longer for a client that says nothing.
const SILENCE: Duration = Duration::from_secs(5);
/// Short enough to be looked at often, long enough that the clock's own cost is small.
const SPIN: u32 = 400;

/// The child's main: port, number of workers, cost of a request in us.
pub fn workers_main(arguments: &[String]) -> Result<()> {
    let usage = || Error::new(Kind::Usage, "workers take a port, their number and the cost of a request in us");
    let [port, count, cost_us] = arguments else {
        return Err(usage());
    };
    let port: u16 = port.parse().map_err(|_| usage())?;
    let count: usize = count.parse().map_err(|_| usage())?;
    let cost = Duration::from_micros(cost_us.parse().map_err(|_| usage())?);
    serve(&listen(port)?, count, cost)
}

fn listen(port: u16) -> Result<TcpListener> {
    let listener = TcpListener::bind(("0.0.0.0", port)).context(format!("listen on port {port}"))?;
    // std listens with a backlog of 128; the other servers of the lab have 4096.
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(4096).context("a backlog")?)
        .context("listen")?;
    Ok(listener)
}

/// Until a worker fails.
fn serve(listener: &TcpListener, count: usize, cost: Duration) -> Result<()> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count.max(1)).map(|_| scope.spawn(|| work(listener, cost))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    })
}

fn work(listener: &TcpListener, cost: Duration) -> Result<()> {
    loop {
        match listener.accept() {
            // A client that went away is its own affair.
            Ok((connection, _)) => drop(answer(connection, cost)),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).context("accept"),
        }
    }
}

fn answer(mut connection: TcpStream, cost: Duration) -> std::io::Result<()> {
    connection.set_read_timeout(Some(SILENCE))?;
    let mut request = Vec::with_capacity(1024);
    let mut part = [0; 2048];
    while request.len() < REQUEST && !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        match connection.read(&mut part)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&part[..length]),
        }
    }
    spend(cost);
    let mut response = b"HTTP/1.0 200 OK\r\nContent-Length: 1024\r\n\r\n".to_vec();
    response.extend([b'x'; 1024]);
    connection.write_all(&response)
}

/// Uses that much CPU, whatever else runs meanwhile.
pub fn spend(cost: Duration) {
    let begin = used();
    while used().saturating_sub(begin) < cost {
        for step in 0..SPIN {
            std::hint::black_box(step);
        }
    }
}

/// CPU time of this thread.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_testkit::{Family, Feature, Topology, get, require};

    #[test]
    fn a_request_costs_what_was_asked_for() {
        let spent = || {
            let begin = used();
            spend(Duration::from_millis(20));
            used() - begin
        };
        // what the kernel does meanwhile only adds
        let took = (0..10).map(|_| spent()).min().expect("ten");
        assert!((20..25).contains(&took.as_millis()), "{took:?}");
    }

    #[test]
    fn one_worker_more_than_silent_clients_answers() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let listener = topology.server.run(|| listen(80)).expect("inside").expect("listens");
        // They serve until the process ends; the socket keeps the namespace that long.
        std::thread::spawn(move || serve(&listener, 3, Duration::ZERO));
        let address = Topology::server_address(Family::V4, 80);
        let silent = || topology.clients.run(|| TcpStream::connect(address)).expect("inside").expect("connected");
        let _clients = [silent(), silent()];
        let response = get(&topology.clients, address, "/").expect("a response");
        assert_eq!(response.split("\r\n\r\n").nth(1).map(str::len), Some(1024));
    }
}
