// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP clients without a kernel: every segment is sent as the test says, in the order that it says.
//!
//! Their addresses (10.89.0.0/16, fd89::/64) are routed to the clients' end of the link and are nobody's there, so that no
//! kernel answers for them; what the server sends them ends there. Segments that the server has not acknowledged are
//! sent again after [`AGAIN`], as any TCP would.

use crate::segment::{ACK, FIN, RST, SYN, Segment, frame};
use crate::{Family, Result, Topology, Wire};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long a client waits for an acknowledgment before it sends again.
pub const AGAIN: Duration = Duration::from_millis(50);

/// Segments that wait for their client; the oldest go first.
const INBOX: usize = 4096;

/// The clients' end of the link, spoken to in frames.
#[derive(Debug)]
pub struct RawClients {
    wire: Wire,
    server: [u8; 6],
    own: [u8; 6],
    /// What came for others than the one who read.
    inbox: RefCell<VecDeque<Segment>>,
    again: Cell<u64>,
}

impl RawClients {
    pub fn new(topology: &Topology) -> Result<RawClients> {
        let routes = [("10.89.0.0/16 via 10.77.0.2", ""), ("fd89::/64 via fd77::1:0:2", "-6 ")];
        for (route, family) in routes {
            topology.server.ip(&format!("{family}route replace {route} dev {}", Topology::SERVER))?;
        }
        Ok(RawClients {
            wire: Wire::open(&topology.clients, Topology::CLIENTS)?,
            server: topology.link.near_mac.octets(),
            own: topology.link.far_mac.octets(),
            inbox: RefCell::default(),
            again: Cell::default(),
        })
    }

    /// The n-th client's address.
    pub fn address(family: Family, n: u16) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::from(0x0a59_0000 | u32::from(n)).into(),
            Family::V6 => Ipv6Addr::new(0xfd89, 0, 0, 0, 0, 0, 0, n).into(),
        }
    }

    /// Segments that were sent once more since nobody had acknowledged them.
    pub fn sent_again(&self) -> u64 {
        self.again.get()
    }

    pub fn send(&self, segment: &Segment) -> Result<()> {
        self.send_packet(&[], &segment.packet())
    }

    /// A packet of whatever shape, with these VLAN tags.
    pub fn send_packet(&self, tags: &[u16], packet: &[u8]) -> Result<()> {
        self.wire.send(&frame(self.server, self.own, tags, packet))
    }

    /// The next segment to this client; none within the time.
    pub fn receive(&self, client: SocketAddr, time: Duration) -> Option<Segment> {
        let mut inbox = self.inbox.borrow_mut();
        if let Some(place) = inbox.iter().position(|segment| segment.destination == client) {
            return inbox.remove(place);
        }
        let end = Instant::now() + time;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let length = self.wire.receive(&mut buffer, left);
            match length.and_then(|length| Segment::parse(&buffer[..length])) {
                Some(segment) if segment.destination == client => return Some(segment),
                Some(segment) => inbox.push_back(segment),
                None if left.is_zero() => return None,
                None => {}
            }
            if inbox.len() > INBOX {
                inbox.pop_front();
            }
        }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The server closed it.
    Closed,
    /// The server broke it off.
    Reset,
    /// Nothing more came, or was waited for.
    Silent,
}

/// One connection; its sequence numbers begin at the given one.
#[derive(Debug)]
pub struct RawConnection<'a> {
    clients: &'a RawClients,
    pub client: SocketAddr,
    pub server: SocketAddr,
    /// The SYN's number.
    pub first: u32,
    /// The number that the server expects next, as far as it has said.
    pub acknowledged: u32,
    /// The number up to which the server takes bytes, as it said last.
    pub edge: u32,
    /// The number that we expect next.
    pub expected: u32,
    /// What the server said in its SYN-ACK.
    pub greeting: Segment,
    received: Vec<u8>,
    /// The server's last timestamp, which goes back to it: it measures the way by that.
    stamp: Option<[u8; 4]>,
}

/// Options of a SYN as Linux sends them: MSS 1460, SACK, timestamps, window scale 7.
pub const ORDINARY_OPTIONS: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0x10, 0, 0, 0, 0, 0, 1, 3, 3, 7];

impl<'a> RawConnection<'a> {
    /// The handshake; `None` if no SYN-ACK comes within the time. The ACK that ends it is sent if `finish`.
    pub fn open(
        clients: &'a RawClients,
        [client, server]: [SocketAddr; 2],
        first: u32,
        options: &[u8],
        time: Duration,
    ) -> Result<Option<RawConnection<'a>>> {
        let mut syn = Segment::new(client, server, SYN);
        (syn.sequence, syn.options) = (first, options.to_vec());
        clients.send(&syn)?;
        let end = Instant::now() + time;
        while let Some(greeting) = clients.receive(client, end.saturating_duration_since(Instant::now())) {
            if !greeting.has(SYN | ACK) || greeting.acknowledgment != first.wrapping_add(1) {
                continue;
            }
            let connection = RawConnection {
                clients,
                client,
                server,
                first,
                acknowledged: first.wrapping_add(1),
                edge: first.wrapping_add(1).wrapping_add(greeting.window.into()),
                expected: greeting.sequence.wrapping_add(1),
                stamp: stamp_of(&greeting),
                greeting,
                received: Vec::new(),
            };
            return Ok(Some(connection));
        }
        Ok(None)
    }

    /// A segment of this connection that carries `payload` from `offset` bytes into the stream on.
    pub fn segment(&self, flags: u8, offset: u32, payload: &[u8]) -> Segment {
        let mut segment = Segment::new(self.client, self.server, flags);
        segment.sequence = self.first.wrapping_add(1).wrapping_add(offset);
        segment.acknowledgment = self.expected;
        segment.payload = payload.to_vec();
        if let Some(stamp) = self.stamp {
            segment.options = vec![1, 1, 8, 10, 0, 0, 0x10, 1];
            segment.options.extend(stamp);
        }
        segment
    }

    /// An ACK without payload, as the last packet of the handshake or for what came.
    pub fn acknowledge(&self) -> Result<()> {
        let offset = self.acknowledged.wrapping_sub(self.first).wrapping_sub(1);
        self.clients.send(&self.segment(ACK, offset, &[]))
    }

    /// Sends pieces of a stream in their order, what is lost again, and reads until the end or the silence. The server's
    /// words and how it went.
    pub fn converse(&mut self, stream: &[u8], pieces: &[Range<usize>], silence: Duration) -> Result<(Vec<u8>, Ending)> {
        self.converse_until(stream, pieces, silence, |_| false)
    }

    /// The same on a connection that may stay open: it waits for no more once the server's words are enough.
    pub fn converse_until(
        &mut self,
        stream: &[u8],
        pieces: &[Range<usize>],
        silence: Duration,
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> Result<(Vec<u8>, Ending)> {
        for piece in pieces {
            self.send(stream, piece.clone())?;
        }
        let mut again = Instant::now() + AGAIN;
        let mut end = Instant::now() + silence;
        while Instant::now() < end && !is_enough(&self.received) {
            let wait = again.min(end).saturating_duration_since(Instant::now());
            let before = (self.acknowledged, self.expected);
            if let Some(segment) = self.clients.receive(self.client, wait)
                && let Some(ending) = self.take(&segment)?
            {
                return Ok((self.received.clone(), ending));
            }
            if before != (self.acknowledged, self.expected) {
                end = Instant::now() + silence;
                again = Instant::now() + AGAIN;
            }
            if Instant::now() >= again {
                self.send_again(stream, pieces)?;
                again = Instant::now() + AGAIN;
            }
        }
        Ok((self.received.clone(), Ending::Silent))
    }

    /// Takes what comes until nothing has for so long; how the connection ended, if it did.
    pub fn hear(&mut self, silence: Duration) -> Result<Option<Ending>> {
        while let Some(segment) = self.clients.receive(self.client, silence) {
            if let Some(ending) = self.take(&segment)? {
                return Ok(Some(ending));
            }
        }
        Ok(None)
    }

    /// The client is gone: from now on it neither sends nor answers anything, as one whose link is cut.
    pub fn vanish(self) {
        std::mem::forget(self);
    }

    /// What the server has said so far, without gaps.
    pub fn received(&self) -> &[u8] {
        &self.received
    }

    fn send(&self, stream: &[u8], piece: Range<usize>) -> Result<()> {
        let offset = u32::try_from(piece.start).expect("streams are short");
        self.clients.send(&self.segment(ACK, offset, &stream[piece]))
    }

    /// What the server has not acknowledged, in the stream's order, as a sender does whose timer ran out.
    fn send_again(&self, stream: &[u8], pieces: &[Range<usize>]) -> Result<()> {
        let done = self.acknowledged.wrapping_sub(self.first).wrapping_sub(1) as usize;
        let mut missing: Vec<_> = pieces.iter().filter(|piece| done < piece.end).cloned().collect();
        missing.sort_by_key(|piece| piece.start);
        self.clients.again.update(|again| again + missing.len() as u64);
        missing.into_iter().try_for_each(|piece| self.send(stream, piece))
    }

    /// Takes what came; how the connection ended, if it did.
    fn take(&mut self, segment: &Segment) -> Result<Option<Ending>> {
        if segment.has(RST) {
            return Ok(Some(Ending::Reset));
        }
        if segment.has(SYN) {
            return Ok(None); // sent again: the ACK was lost
        }
        if self.stamp.is_some() {
            self.stamp = stamp_of(segment).or(self.stamp);
        }
        if segment.acknowledgment.wrapping_sub(self.acknowledged).cast_signed() > 0 {
            self.acknowledged = segment.acknowledgment;
        }
        let scale = self.greeting.option(3).map_or(0, |scale| scale[0]);
        self.edge = segment.acknowledgment.wrapping_add(u32::from(segment.window) << scale);
        if segment.sequence == self.expected {
            self.received.extend(&segment.payload);
            self.expected = self.expected.wrapping_add(segment.length());
        }
        if segment.length() > 0 {
            self.acknowledge()?;
        }
        let closed = segment.has(FIN) && self.expected == segment.sequence.wrapping_add(segment.length());
        Ok(closed.then_some(Ending::Closed))
    }
}

/// When the server sent it, by its own clock.
fn stamp_of(segment: &Segment) -> Option<[u8; 4]> {
    segment.option(8)?.first_chunk().copied()
}

impl Drop for RawConnection<'_> {
    /// The server is told that nobody is left.
    fn drop(&mut self) {
        let mut reset = self.segment(RST | ACK, 0, &[]);
        reset.sequence = self.acknowledged;
        let _ = self.clients.send(&reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Feature, require};
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_stream_in_pieces_and_out_of_order_arrives_whole() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        for family in [Family::V4, Family::V6] {
            let server = Topology::server_address(family, 4000);
            let listener = topology.server.run(|| TcpListener::bind(server)).expect("inside").expect("bound");
            let echo = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut words = [0; 9];
                stream.read_exact(&mut words).expect("all of it");
                stream.write_all(&words).expect("sent");
            });
            let clients = RawClients::new(&topology).expect("clients");
            let addresses = [(RawClients::address(family, 7), 5000).into(), server];
            let time = Duration::from_secs(5);
            let connection = RawConnection::open(&clients, addresses, u32::MAX - 3, &ORDINARY_OPTIONS, time);
            let mut connection = connection.expect("sent").expect("a SYN-ACK");
            connection.acknowledge().expect("sent");
            let (words, ending) = connection.converse(b"onetwotri", &[6..9, 0..3, 3..6], time).expect("sent");
            assert_eq!((words.as_slice(), ending), (&b"onetwotri"[..], Ending::Closed));
            echo.join().expect("the server");
        }
    }

    #[test]
    fn nobody_answers_for_a_raw_client() {
        if !require(Feature::NetNs) {
            return;
        }
        let topology = Topology::new().expect("a topology");
        let clients = RawClients::new(&topology).expect("clients");
        let server = Topology::server_address(Family::V4, 4001);
        let _listener = topology.server.run(|| TcpListener::bind(server)).expect("inside").expect("bound");
        let client: SocketAddr = (RawClients::address(Family::V4, 8), 5000).into();
        let time = Duration::from_secs(5);
        let _half_open =
            RawConnection::open(&clients, [client, server], 1, &[], time).expect("sent").expect("a SYN-ACK");
        // A RST by the clients' kernel would have ended the half-open connection, and the SYN-ACK would not come again.
        let again = clients.receive(client, time).expect("the SYN-ACK again");
        assert!(again.has(SYN | ACK));
    }
}
