// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Answers on their way to clients that do not take them at once, with bounds that no client moves.
//!
//! Nothing here waits for a client. Where there are too many answers, or they keep too many pages, the one of which nothing was taken
//! for the longest time gives way: a client that reads is served, however many others read slowly.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::door::Connection;
use crate::http::Answer;

/// Answers on their way.
pub(crate) const MOST: usize = 128;
/// Bytes of pages that they keep. A page is made anew again and again, and who reads slowly keeps an old one.
const MOST_KEPT: usize = 64 * 1024 * 1024;

/// How long a client may take.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Nothing of its answer.
    pub(crate) stalled: Duration,
    /// All of it.
    pub(crate) whole: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { stalled: Duration::from_secs(1), whole: Duration::from_secs(10) }
    }
}

/// An answer, as far as it has gone.
pub(crate) struct Sending {
    connection: Box<dyn Connection>,
    answer: Answer,
    sent: usize,
    begun: Instant,
    taken: Instant,
}

impl Sending {
    /// Over a connection that never waits.
    pub(crate) fn of(connection: Box<dyn Connection>, answer: Answer) -> Self {
        let now = Instant::now();
        Self { connection, answer, sent: 0, begun: now, taken: now }
    }

    pub(crate) fn connection(&self) -> &dyn Connection {
        &*self.connection
    }

    /// Sends what the socket takes now, once: who reads fast does not keep others waiting either. `None`: that was the rest, or the
    /// client is gone, which is no failure.
    pub(crate) fn go_on(mut self) -> Option<Self> {
        match self.connection.write_vectored(&self.answer.rest(self.sent)) {
            Ok(length) if length > 0 => {
                self.sent += length;
                self.taken = Instant::now();
                (self.sent < self.answer.length()).then_some(self)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Some(self),
            _ => None,
        }
    }

    /// How long it is waited for.
    fn time(&self, patience: Patience) -> Duration {
        let stalled = patience.stalled.saturating_sub(self.taken.elapsed());
        stalled.min(patience.whole.saturating_sub(self.begun.elapsed()))
    }
}

/// All that are on their way, in the order in which they came.
pub(crate) struct Sendings {
    all: Vec<Sending>,
    patience: Patience,
}

impl Sendings {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { all: Vec::new(), patience }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sending> {
        self.all.iter()
    }

    /// Until the next one has taken too long.
    pub(crate) fn time(&self) -> Option<Duration> {
        self.all.iter().map(|one| one.time(self.patience)).min()
    }

    /// Sends on over those connections that take more, as `writable` says of each in its turn, and gives up who takes too long.
    pub(crate) fn go_on(&mut self, mut writable: impl Iterator<Item = bool>) {
        let patience = self.patience;
        let step = |one: Sending| if writable.next().unwrap_or(false) { one.go_on() } else { Some(one) };
        let all = std::mem::take(&mut self.all).into_iter().filter_map(step);
        self.all = all.filter(|one| !one.time(patience).is_zero()).collect();
    }

    /// Takes one in, in place of the slowest if there is no room.
    pub(crate) fn add(&mut self, one: Sending) {
        // what it waited to come here is not its client's doing
        self.all.push(Sending { taken: Instant::now(), ..one });
        // a page that is too large for all bounds goes alone
        while self.all.len() > MOST || self.kept() > MOST_KEPT && self.all.len() > 1 {
            let slowest = self.all.iter().enumerate().min_by_key(|(_, one)| one.taken).map_or(0, |(at, _)| at);
            self.all.remove(slowest);
        }
    }

    fn kept(&self) -> usize {
        self.all.iter().map(|one| one.answer.share()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;
    use crate::http;

    const HOUR: Duration = Duration::from_secs(3600);
    /// More than a socket takes in.
    const LONG: usize = 16 * 1024 * 1024;

    fn patient() -> Sendings {
        Sendings::new(Patience { stalled: HOUR, whole: HOUR })
    }

    /// The client's end, and an answer of which it has read nothing.
    fn begun(page: &Arc<Vec<u8>>) -> (UnixStream, Sending) {
        let (client, own) = UnixStream::pair().expect("two sockets");
        own.set_nonblocking(true).expect("a socket");
        let begun = Sending::of(Box::new(own), http::answer("text/plain", Arc::clone(page))).go_on();
        (client, begun.expect("it does not take all"))
    }

    /// Reads so many bytes, or to the end; how many there were.
    fn read(client: &mut UnixStream, most: usize) -> usize {
        client.take(most as u64).read_to_end(&mut Vec::new()).expect("readable")
    }

    #[test]
    fn the_one_of_which_nothing_was_taken_for_longest_gives_way() {
        let (page, mut sendings) = (Arc::new(vec![0; LONG]), patient());
        let mut clients = Vec::new();
        for _ in 0..MOST {
            let (client, one) = begun(&page);
            sendings.add(one);
            clients.push(client);
        }
        // the oldest reads, and gets more
        read(&mut clients[0], 64 * 1024);
        sendings.go_on((0..MOST).map(|at| at == 0));
        let (_last, one) = begun(&page);
        sendings.add(one);
        assert_eq!(sendings.all.len(), MOST);
        assert!(read(&mut clients[1], LONG) < LONG, "it is cut off");
        clients[0].set_nonblocking(true).expect("a socket");
        let more = clients[0].read_to_end(&mut Vec::new());
        assert_eq!(more.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock), "it goes on");
    }

    #[test]
    fn clients_that_read_slowly_keep_few_pages_and_many_of_them_one() {
        let (mut sendings, mut clients) = (patient(), Vec::new());
        for _ in 0..2 * MOST_KEPT / LONG {
            let (client, one) = begun(&Arc::new(vec![0; LONG]));
            sendings.add(one);
            clients.push(client);
        }
        assert_eq!(sendings.all.len(), MOST_KEPT / LONG);
        let (mut sendings, page) = (patient(), Arc::new(vec![0; MOST_KEPT]));
        for kept in 1..=32 {
            let (client, one) = begun(&page);
            sendings.add(one);
            clients.push(client);
            assert_eq!(sendings.all.len(), kept);
        }
    }

    #[test]
    fn a_page_beyond_the_bound_goes_out_all_the_same() {
        let mut sendings = patient();
        let (_client, one) = begun(&Arc::new(vec![0; MOST_KEPT + 1]));
        sendings.add(one);
        assert_eq!(sendings.all.len(), 1);
    }

    #[test]
    fn who_takes_nothing_for_too_long_is_given_up() {
        let mut sendings = Sendings::new(Patience { stalled: Duration::ZERO, whole: HOUR });
        let (mut client, one) = begun(&Arc::new(vec![0; LONG]));
        sendings.add(one);
        assert_eq!(sendings.time(), Some(Duration::ZERO));
        sendings.go_on(std::iter::repeat(false));
        assert_eq!(sendings.time(), None);
        assert!(read(&mut client, LONG) < LONG, "it is cut off");
    }
}
