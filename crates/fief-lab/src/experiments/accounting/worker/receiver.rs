// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets of two classes whose packets cost what the order says: a classic socket filter works on each of them.

use super::Look;
use crate::error::{Context, Result};
use fief::Container;
use fief_testkit::attach_work;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Steps of a packet that takes half a millisecond: others can come behind it meanwhile.
const LONG: u16 = 20_000;
/// So that a queue of 200 kB never fills, and the reader hardly runs.
const DRAIN: Duration = Duration::from_millis(2);

pub struct Receiver {
    /// Of both classes and of long packets.
    pub ports: [u16; 3],
    containers: Arc<[Container; 2]>,
    ended: Arc<AtomicBool>,
    drain: Option<JoinHandle<()>>,
}

enum Inbox {
    Udp(UdpSocket),
    Listener(TcpListener),
    Tcp(std::net::TcpStream),
}

impl Receiver {
    pub fn open(tcp: bool, work: [u16; 2]) -> Result<Receiver> {
        let make = || Container::create().context("make a container");
        let containers = Arc::new([make()?, make()?]);
        let mut inboxes = Vec::new();
        let mut ports = [0; 3];
        for place in 0..2 {
            let (inbox, port) = open(tcp, work[place], &containers[place])?;
            ports[place] = port;
            inboxes.push(inbox);
        }
        let own = make()?;
        let (mut long, port) = open(false, LONG, &own)?;
        ports[2] = port;
        let ended = Arc::new(AtomicBool::new(false));
        let drain = std::thread::spawn({
            let (ended, containers) = (ended.clone(), containers.clone());
            move || {
                while !ended.load(Ordering::Relaxed) {
                    for (place, inbox) in inboxes.iter_mut().enumerate() {
                        drain(inbox, work[place], &containers[place]);
                    }
                    drain(&mut long, LONG, &own);
                    std::thread::sleep(DRAIN);
                }
            }
        });
        Ok(Receiver { ports, containers, ended, drain: Some(drain) })
    }

    pub fn look(&self) -> Result<[Look; 2]> {
        Ok([Look::of(&self.containers[0])?, Look::of(&self.containers[1])?])
    }

    /// Of both classes.
    pub fn receive_ns(&self) -> Result<u64> {
        Ok(self.look()?.iter().map(|one| one.receive_ns).sum())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(drain) = self.drain.take() {
            let _ = drain.join();
        }
    }
}

fn open(tcp: bool, work: u16, container: &Container) -> Result<(Inbox, u16)> {
    if tcp {
        let listener = TcpListener::bind("0.0.0.0:0").context("listen")?;
        listener.set_nonblocking(true).context("make a listener non-blocking")?;
        let port = listener.local_addr().context("ask for a port")?.port();
        return Ok((Inbox::Listener(listener), port));
    }
    let socket = UdpSocket::bind("0.0.0.0:0").context("open a socket")?;
    socket.set_nonblocking(true).context("make a socket non-blocking")?;
    let port = socket.local_addr().context("ask for a port")?.port();
    prepare(&socket, work, container)?;
    Ok((Inbox::Udp(socket), port))
}

fn prepare(socket: &impl AsFd, work: u16, container: &Container) -> Result<()> {
    container.assign(socket).context("label a socket")?;
    attach_work(socket, work).context("attach a filter")
}

fn drain(inbox: &mut Inbox, work: u16, container: &Container) {
    let mut buffer = [0; 65536];
    match inbox {
        Inbox::Udp(socket) => while socket.recv(&mut buffer).is_ok() {},
        Inbox::Tcp(stream) => while std::io::Read::read(stream, &mut buffer).is_ok_and(|length| length > 0) {},
        Inbox::Listener(listener) => {
            let Ok((stream, _)) = listener.accept() else { return };
            if stream.set_nonblocking(true).is_ok() && prepare(&stream, work, container).is_ok() {
                *inbox = Inbox::Tcp(stream);
            }
        }
    }
}
