// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part `serve`: a server with one thread and one listening socket that knows nothing of containers; and its clients.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};

use crate::report::text;
use crate::work::{SPELL, spin};

/// Says when it listens, then answers each connection with a spell of work and its length, until a signal ends it.
pub fn serve(address: &str) {
    let listener = TcpListener::bind(address).expect("the address is free");
    println!("listening");
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_ok() {
            let worked = spin(SPELL);
            // a client that went away needs no answer
            let _ = stream.write_all(worked.to_string().as_bytes());
        }
    }
}

/// One request from an address; says how long the server worked for it.
pub fn ask(from: Ipv4Addr, to: SocketAddrV4) -> Result<u64, String> {
    let mut stream = connect_from(from, to).map_err(|e| format!("{from} cannot reach {to}: {e}"))?;
    stream.write_all(b"?").map_err(text)?;
    let mut said = String::new();
    stream.read_to_string(&mut said).map_err(text)?;
    said.parse().map_err(|_| format!("the server said {said:?}"))
}

pub fn connect_from(from: Ipv4Addr, to: SocketAddrV4) -> nix::Result<TcpStream> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from, 0)))?;
    connect(fd.as_raw_fd(), &SockaddrIn::from(to))?;
    Ok(TcpStream::from(fd))
}
