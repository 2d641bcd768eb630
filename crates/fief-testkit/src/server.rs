// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real servers with a generated configuration, ready when they answer.
//!
//! The configuration is apart from the running server, so that another program (`fief run`) can start it.

mod haproxy;
mod nginx;
mod plain;

pub use haproxy::{Haproxy, HaproxyConfig};
pub use nginx::{Nginx, NginxConfig};
pub use plain::{PlainServer, Seen, digest, pattern};

use crate::{Error, Kind, NetNs, Process, Result, wait_until};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Long enough for a server that starts on a busy core.
const READY: Duration = Duration::from_secs(60);

/// One HTTP/1.0 request from inside the namespace; the whole response.
pub fn get(namespace: &NetNs, server: SocketAddr, path: &str) -> Result<String> {
    namespace
        .run(|| {
            let mut stream = TcpStream::connect_timeout(&server, Duration::from_secs(10))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            // In one segment: a simple server answers the first that it sees.
            stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: server\r\n\r\n").as_bytes())?;
            let mut response = Vec::new();
            stream.read_to_end(&mut response)?;
            Ok(String::from_utf8_lossy(&response).into_owned())
        })?
        .map_err(|error| Error::io(format!("get {path} from {server}"), error))
}

/// Whether the server sends 200 to somebody in the namespace.
pub fn answers(namespace: &NetNs, server: SocketAddr) -> bool {
    get(namespace, server, "/1k").is_ok_and(|response| response.split(' ').nth(1) == Some("200"))
}

/// Waits until the server answers over the loopback of its namespace; an error if it ends before.
pub fn wait_ready(namespace: &NetNs, process: &mut Process, port: u16, log: Option<&Path>) -> Result<()> {
    let address = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port);
    let mut ended = None;
    let waited = wait_until(READY, || {
        ended = process.try_wait();
        ended.is_some() || answers(namespace, address)
    });
    let said = log.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    match (ended, waited) {
        (Some(status), _) => Err(Error::failed(format!("the server ended with {status}: {}", said.trim()))),
        (None, Err(_)) => Err(Error::new(Kind::Deadline, format!("no answer on port {port}: {}", said.trim()))),
        (None, Ok(())) => Ok(()),
    }
}

/// A Python program as a server; it must answer GET /1k with 200 on its port.
#[derive(Debug)]
pub struct Python {
    process: Process,
    _folder: tempfile::TempDir,
}

impl Python {
    pub fn start(namespace: &NetNs, program: &str, arguments: &[&str], port: u16) -> Result<Python> {
        let folder = folder()?;
        let file = folder.path().join("server.py");
        write(&file, program)?;
        let mut command = namespace.command("python3");
        command.arg(&file).args(arguments).current_dir(folder.path());
        let mut process = Process::start(command)?;
        wait_ready(namespace, &mut process, port, None)?;
        Ok(Python { process, _folder: folder })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// A folder that a server which gave up root can still read.
fn folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("ff-server-")
        .tempdir()
        .map_err(|error| Error::io("make a folder for a server", error))?;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).map_err(|error| Error::io("open the folder of a server", error))?;
    Ok(folder)
}

fn write(file: &std::path::Path, text: &str) -> Result<()> {
    std::fs::write(file, text).map_err(|error| Error::io(format!("write {}", file.display()), error))
}
