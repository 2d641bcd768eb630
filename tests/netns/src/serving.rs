// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server of one thread.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// One loop over all connections: `serve` does what one of them asks for, and says whether it goes on. Never ends.
pub fn serve_in_turn(address: SocketAddr, mut serve: impl FnMut(&mut TcpStream) -> bool) {
    let listener = TcpListener::bind(address).unwrap();
    let mut connections: Vec<TcpStream> = Vec::new();
    loop {
        let mut fds: Vec<_> = std::iter::once(listener.as_fd())
            .chain(connections.iter().map(AsFd::as_fd))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        poll(&mut fds, PollTimeout::NONE).unwrap();
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect::<Vec<_>>().into_iter();
        let is_called = ready.next().unwrap_or(false);
        connections.retain_mut(|connection| !ready.next().unwrap_or(false) || serve(connection));
        if is_called {
            connections.push(listener.accept().unwrap().0);
        }
    }
}
