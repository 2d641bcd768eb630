// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits until a server answers in its own protocol, over the loopback of its namespace.

use crate::error::{Context, Error, Result};
use crate::load::{Protocol, postgres_startup};
use fief_testkit::{Process, Topology, wait_ready, wait_until};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Long enough for a server that starts on a busy core.
const READY: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(5);

/// An error with what stands in its log if it ends before.
pub fn wait(topology: &Topology, process: &mut Process, port: u16, protocol: Protocol, log: &Path) -> Result<()> {
    let is_ready: fn(u16) -> bool = match protocol {
        Protocol::Http => return Ok(wait_ready(&topology.server, process, port, Some(log))?),
        // nginx listens when it can serve
        Protocol::Tls => |port| connect(port).is_ok(),
        Protocol::Postgres { .. } => |port| greets(port).unwrap_or(false),
    };
    let mut ended = None;
    let waited = wait_until(READY, || {
        ended = process.try_wait();
        ended.is_some() || topology.server.run(|| is_ready(port)).unwrap_or(false)
    });
    let said = || std::fs::read_to_string(log).unwrap_or_default();
    match ended {
        Some(status) => Err(Error::failed(format!("the server ended with {status}: {}", said().trim()))),
        None => waited.context(format!("no answer on port {port}: {}", said().trim())),
    }
}

fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(SILENCE))?;
    Ok(stream)
}

/// While it starts it says so in an error.
fn greets(port: u16) -> std::io::Result<bool> {
    let mut stream = connect(port)?;
    stream.write_all(&postgres_startup())?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    Ok(kind == [b'R'])
}
