// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The display server, a process of one thread: shows the frames of all its clients, in the order in which they come.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::clip::{FRAME, Screen, sum};
use crate::error::{Context, Error, Kind, Result};

/// The child's main: the socket where it listens, and the pixels of a frame. It ends with the last client.
pub fn display_main(arguments: &[String]) -> Result<()> {
    let usage = || Error::new(Kind::Usage, "a display server takes a socket and the pixels of a frame");
    let [socket, pixels] = arguments else { return Err(usage()) };
    let pixels: usize = pixels.parse().map_err(|_| usage())?;
    let listener = UnixListener::bind(socket).context("listen as a display server")?;
    println!("{}", std::process::id());
    let mut clients = vec![accept(&listener)?];
    let (mut screen, mut frame) = (Screen::new(), vec![0; FRAME]);
    while !clients.is_empty() {
        let ready = wait(&listener, &clients)?;
        let mut number = 0;
        clients.retain_mut(|client| {
            number += 1;
            !ready[number - 1] || serve(client, &mut screen, &mut frame, pixels)
        });
        if ready.last() == Some(&true) {
            clients.push(accept(&listener)?);
        }
    }
    Ok(())
}

fn accept(listener: &UnixListener) -> Result<UnixStream> {
    listener.accept().map(|(client, _)| client).context("accept a client")
}

/// Which clients, and last the listener, have something to read.
fn wait(listener: &UnixListener, clients: &[UnixStream]) -> Result<Vec<bool>> {
    let sockets = clients.iter().map(AsFd::as_fd).chain([listener.as_fd()]);
    let mut polled: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::POLLIN)).collect();
    poll(&mut polled, PollTimeout::NONE).context("wait for a frame")?;
    Ok(polled.iter().map(|one| one.any() == Some(true)).collect())
}

/// Shows a frame; false: the client has gone.
fn serve(client: &mut UnixStream, screen: &mut Screen, frame: &mut [u8], pixels: usize) -> bool {
    if client.read_exact(frame).is_err() {
        return false;
    }
    screen.show(frame, pixels);
    client.write_all(&sum(frame).to_ne_bytes()).is_ok()
}
