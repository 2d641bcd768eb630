// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server of the test's own behind a door, and clients: real ones, and raw ones whose segments the test writes.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use fief_testkit::segment::{ACK, SYN, Segment};
use fief_testkit::{Family, ORDINARY_OPTIONS, PlainServer, RawClients, RawConnection, Topology, wait_until};
use nix::errno::Errno;

use crate::front::{Door, Front, Verdicts, anywhere, plain};
use crate::{SOON, connect_from, spare};

/// Handshakes under way, fewer than what is received between two reads.
const AT_ONCE: usize = 250;

/// The server listens at port 80 over both families.
pub struct Rig {
    pub front: Front,
    pub server: PlainServer,
    pub clients: RawClients,
    next: Cell<u16>,
}

impl Rig {
    pub fn new(door: Door, policy: &str) -> Self {
        Self::at(door, policy, Topology::new().unwrap())
    }

    /// The same in a topology of one's own making.
    pub fn at(door: Door, policy: &str, topology: Topology) -> Self {
        let front = Front::at(door, policy, topology);
        let server = front.plain_server();
        let clients = RawClients::new(&front.topology).unwrap();
        Self { front, server, clients, next: spare::first_port().into() }
    }

    /// Packets arrive in the order in which they are sent. (GRO keeps good ones for a moment, which broken ones overtake.)
    pub fn in_order(door: Door, policy: &str) -> Self {
        let rig = Self::new(door, policy);
        let ethtool = ["-K", Topology::SERVER, "gro", "off"];
        fief_testkit::run(rig.front.topology.server.command("ethtool").args(ethtool)).unwrap();
        rig
    }

    /// A handshake of the fifth raw client, from a port of its own, without the ACK that ends it.
    pub fn open(&self, family: Family) -> RawConnection<'_> {
        self.open_offering(family, &ORDINARY_OPTIONS)
    }

    /// The same with these options of the SYN.
    pub fn open_offering(&self, family: Family, options: &[u8]) -> RawConnection<'_> {
        let port = self.next.replace(self.next.get() + 1);
        self.open_with((RawClients::address(family, 5), port).into(), first_number(port), options)
    }

    /// The same from this address.
    pub fn open_from(&self, client: SocketAddr) -> RawConnection<'_> {
        self.open_with(client, first_number(client.port()), &ORDINARY_OPTIONS)
    }

    /// The same with this first number and these options of the SYN.
    pub fn open_with(&self, client: SocketAddr, first: u32, options: &[u8]) -> RawConnection<'_> {
        let server = plain(family_of(client.ip()));
        let open = RawConnection::open(&self.clients, [client, server], first, options, SOON).unwrap();
        open.unwrap_or_else(|| panic!("no SYN-ACK for {client}: {:?}", self.verdicts()))
    }

    /// A connection request from this address.
    pub fn syn(&self, client: SocketAddr) {
        let mut syn = Segment::new(client, plain(family_of(client.ip())), SYN);
        syn.options = ORDINARY_OPTIONS.to_vec();
        self.clients.send(&syn).unwrap();
    }

    /// Every one of these addresses returns a cookie, with these bytes behind it.
    pub fn begin(&self, sources: &[IpAddr], bytes: &[u8]) {
        for piece in sources.chunks(AT_ONCE) {
            let clients: Vec<_> = piece.iter().map(|source| SocketAddr::new(*source, 60_000)).collect();
            clients.iter().for_each(|client| self.syn(*client));
            for client in clients {
                let greeting = self.greeting(client);
                let mut first = Segment::new(client, greeting.source, ACK);
                first.sequence = greeting.acknowledgment;
                first.acknowledgment = greeting.sequence.wrapping_add(1);
                first.payload = bytes.to_vec();
                if let Some(stamp) = greeting.option(8) {
                    first.options = vec![1, 1, 8, 10, 0, 0, 0x10, 1];
                    first.options.extend(&stamp[..4]);
                }
                self.clients.send(&first).unwrap();
            }
        }
    }

    /// The answer to a SYN that was sent; what is lost is sent again.
    fn greeting(&self, client: SocketAddr) -> Segment {
        let end = Instant::now() + SOON;
        loop {
            match self.clients.receive(client, Duration::from_millis(300)) {
                Some(greeting) if greeting.has(SYN | ACK) => return greeting,
                Some(_) => continue,
                None => {}
            }
            assert!(Instant::now() < end, "no SYN-ACK for {client}: {:?}", self.verdicts());
            self.syn(client);
        }
    }

    /// What became of so many SYNs that were sent since `before`.
    pub fn verdicts_on(&self, before: &Verdicts, syns: u64) -> Verdicts {
        let new = || self.verdicts().since(before);
        wait_until(SOON, || new().syns() >= syns).unwrap_or_else(|_| panic!("{syns} SYNs, {:?}", new()));
        new()
    }

    /// Whether so many verdicts are those on what was asked, as [`Front::is_counted`] says; for raw clients too.
    pub fn is_counted(&self, counted: u64, asked: u64) -> bool {
        (asked..=asked + self.front.sent_again() + self.clients.sent_again()).contains(&counted)
    }

    pub fn verdicts(&self) -> Verdicts {
        if self.front.door == Door::Stock { Verdicts::default() } else { self.front.verdicts() }
    }
}

/// The stream passes the end of the sequence numbers in every third connection.
fn first_number(port: u16) -> u32 {
    if port.is_multiple_of(3) { u32::MAX - 50 } else { u32::from(port) << 8 }
}

pub fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// A stream in pieces of so many bytes.
pub fn pieces(stream: &[u8], size: usize) -> Vec<Range<usize>> {
    (0..stream.len()).step_by(size).map(|at| at..stream.len().min(at + size)).collect()
}

/// A stream in one piece.
pub fn whole(stream: &[u8]) -> Vec<Range<usize>> {
    pieces(stream, stream.len())
}

impl Front {
    /// A connection on which one request was made, from anywhere to the server over IPv4.
    pub fn ask(&self, path: &str) -> TcpStream {
        self.ask_from(anywhere(Family::V4).ip(), plain(Family::V4), path).unwrap()
    }

    /// The same from this address to that one.
    pub fn ask_from(&self, from: IpAddr, to: SocketAddr, path: &str) -> Result<TcpStream, Errno> {
        let mut stream = connect_from(&self.topology.clients, (from, 0).into(), to)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(errno)?;
        Ok(stream)
    }

    /// Status of the answer to a request on a connection of its own, or why there is none.
    pub fn status(&self, path: &str) -> Result<u16, Errno> {
        status_of(self.ask(path))
    }

    /// The same from this address to that one.
    pub fn status_from(&self, from: IpAddr, to: SocketAddr, path: &str) -> Result<u16, Errno> {
        status_of(self.ask_from(from, to, path)?)
    }

    /// The first listener's level of overload.
    pub fn level(&self) -> &'static str {
        self.load().0
    }

    /// The same, and the percentage of its accept queue that was taken at the last look.
    pub fn load(&self) -> (&'static str, u32) {
        let view = self.topology.server.run(|| self.installation().fief().front().unwrap()).unwrap();
        view.loads.first().map_or(("unknown", 0), |load| (load.level, load.queue_percent))
    }

    /// A server with so many places in its queue at port 80 over IPv4. It accepts and answers once it is let.
    pub fn server_with_queue(&self, places: i32) -> Sender<()> {
        let listener = self.topology.server.run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
        // SAFETY: no pointers are passed. A second listen only changes the length of the queue.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), places) }, 0);
        let (let_it, go) = channel();
        std::thread::spawn(move || go.recv().is_ok_and(|()| serve(&listener)));
        let_it
    }
}

fn serve(listener: &TcpListener) -> bool {
    loop {
        let Ok((mut stream, _)) = listener.accept() else { return false };
        // who connected only to be counted says nothing
        let _ = stream.set_read_timeout(Some(SOON));
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n");
    }
}

/// Of an answer that ends with its connection.
pub fn status_of(mut stream: TcpStream) -> Result<u16, Errno> {
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(errno)?;
    text.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or(Errno::EBADMSG)
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().expect("the kernel's error"))
}
