// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An application that holds containers while Fief's programs change under it: by descriptors, by threads that are bound and by a
//! ring. It works for them all the time, and sees itself whether one of them is lost.

use crate::error::{Context, Error, Result};
use fief::{Container, Place, Ring, State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const BY_DESCRIPTOR: usize = 40;
/// Each by one thread, which sleeps.
const BY_THREAD: usize = 4;
const BY_RING: usize = 8;
pub const HELD: usize = BY_DESCRIPTOR + BY_THREAD + BY_RING;

/// For each container in its turn. With the pauses it is a few hundredths of a CPU: the server needs the others.
const WORK: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_millis(2);
/// What is longer between two looks at the clock is somebody else's time.
const GAP: Duration = Duration::from_micros(5);
/// Of its work a container is charged at least one part in so many: interrupts shorter than a gap are not its time.
const CHARGED: u32 = 4;
/// Looks, one after the other, that find a container without its work: then it is lost. One alone says little: steal that becomes known
/// late is taken from whom is next, and where the kernel does not tell of a switch, what a ring said until then is home's.
const SHORT_LOOKS: u32 = 3;
/// A thread that does not end its turn by then never will.
const SOON: Duration = Duration::from_secs(30);

/// What the application says when it is asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Look {
    /// Slot and generation of each container, by its number.
    pub held: Vec<(u32, u64)>,
    /// What the looks at them found up to now.
    pub found: Found,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// Containers that were lost, and the first word of it.
    pub lost: BTreeMap<usize, String>,
    pub looks: u64,
    /// Looks that found less than was worked.
    pub short: u64,
}

type Shared = Arc<Mutex<Found>>;
type Asks = Receiver<Sender<()>>;
type Thread = Box<dyn FnOnce(&Shared, &Asks) + Send>;
/// Whether a look found all that was worked; or why the container is lost.
type Watched = std::result::Result<bool, String>;

fn words(error: &fief::Error) -> String {
    error.to_string()
}

/// A container of the application.
#[derive(Debug)]
struct Held {
    number: usize,
    container: Container,
    named: (u32, u32),
    used_ns: u64,
    /// Looks in turn that found less than was worked.
    short: u32,
}

impl Held {
    fn new(number: usize) -> Result<Self> {
        let fail = "make a container of an application";
        let container = Container::create().context(fail)?;
        let info = container.info().context(fail)?;
        Ok(Self { number, container, named: (info.id, info.generation), used_ns: 0, short: 0 })
    }

    /// It is the same one, lives, has what it had, and is charged for what is done.
    fn watch(&mut self, worked: Duration) -> Watched {
        let info = self.container.info().map_err(|error| words(&error))?;
        if (info.id, info.generation) != self.named || info.state != State::Alive {
            return Err(format!("it was {:?}, and is {info:?}", self.named));
        }
        let used_ns = self.container.usage().map_err(|error| words(&error))?.cpu_ns();
        let least_ns = self.used_ns + (worked / CHARGED).as_nanos() as u64;
        self.short = if used_ns < least_ns { self.short + 1 } else { 0 };
        if used_ns < self.used_ns || self.short >= SHORT_LOOKS {
            return Err(format!("it has {used_ns} ns, and had {} and {worked:?} of work", self.used_ns));
        }
        self.used_ns = used_ns;
        Ok(self.short == 0)
    }

    /// As one who works for it, and makes containers below it.
    fn turn(&mut self) -> Watched {
        let worked = {
            let _bound = self.container.bind().map_err(|error| words(&error))?;
            work()
        };
        let is_whole = self.watch(worked)?;
        self.container.child().map(|_| is_whole).map_err(|error| words(&error))
    }
}

fn note(found: &Shared, number: usize, watched: Watched) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    found.looks += 1;
    found.short += u64::from(watched == Ok(false));
    if let Err(why) = watched {
        found.lost.entry(number).or_insert(why);
    }
}

/// Has the CPU for so long, and tells how long it was.
fn work() -> Duration {
    let begun = Instant::now();
    let (mut last, mut gaps) = (Duration::ZERO, Duration::ZERO);
    while last < WORK + gaps {
        let now = begun.elapsed();
        if now - last > GAP {
            gaps += now - last;
        }
        last = now;
    }
    last - gaps
}

/// Turn by turn until nobody asks any more. Who asks is answered after a turn that began after the question.
fn turns(asks: &Asks, mut turn: impl FnMut()) {
    loop {
        let asked = asks.try_recv();
        if matches!(asked, Err(TryRecvError::Disconnected)) {
            return;
        }
        turn();
        if let Ok(reply) = asked {
            let _ = reply.send(());
        }
    }
}

/// Binds itself to each in turn.
fn caller(mut all: Vec<Held>, found: &Shared, asks: &Asks) {
    turns(asks, || {
        for held in &mut all {
            note(found, held.number, held.turn());
            std::thread::sleep(PAUSE);
        }
    });
}

/// Is bound for good, and works only when it is asked.
fn sleeper(mut held: Held, found: &Shared, asks: &Asks) {
    note(found, held.number, held.container.bind_thread().map(|()| true).map_err(|error| words(&error)));
    for reply in asks {
        let binding = fief::current(&held.container).map_err(|error| words(&error));
        let watched = binding.and_then(|binding| match binding == held.named {
            true => held.watch(work()),
            false => Err(format!("its thread is bound to {binding:?} instead")),
        });
        note(found, held.number, watched);
        let _ = reply.send(());
    }
}

/// Works for each in turn by its ring.
fn ringer(mut all: Vec<Held>, found: &Shared, asks: &Asks) {
    let opened = Ring::open().and_then(|mut ring| {
        let places: fief::Result<Vec<Place>> = all.iter().map(|held| ring.add(&held.container)).collect();
        Ok((ring, places?))
    });
    let (mut ring, places) = match opened {
        Ok(opened) => opened,
        Err(error) => return all.iter().for_each(|held| note(found, held.number, Err(words(&error)))),
    };
    turns(asks, || {
        let mut worked = Vec::new();
        for place in &places {
            worked.push(ring.bind(*place).map(|()| work()));
        }
        let home = ring.bind(Place::HOME).and_then(|()| ring.flush()).map_err(|error| words(&error));
        for (held, worked) in all.iter_mut().zip(worked) {
            let worked = home.clone().and_then(|()| worked.map_err(|error| words(&error)));
            note(found, held.number, worked.and_then(|worked| held.watch(worked)));
        }
        std::thread::sleep(PAUSE * BY_RING as u32);
    });
}

/// Says a [`Look`] once it holds all, and one for each line that it reads. Ends with its input.
pub fn main() -> Result<()> {
    let mut all: Vec<Held> = (0..HELD).map(Held::new).collect::<Result<_>>()?;
    let held = all.iter().map(|held| (held.named.0, held.named.1.into())).collect();
    let found = Shared::default();
    let mut asks = Vec::new();
    let mut start = |thread: Thread| {
        let (ask, asked) = channel();
        let found = Arc::clone(&found);
        // ends with the process
        std::thread::spawn(move || thread(&found, &asked));
        asks.push(ask);
    };
    let of_calls = all.split_off(BY_RING + BY_THREAD);
    start(Box::new(move |found, asks| caller(of_calls, found, asks)));
    let of_threads = all.split_off(BY_RING);
    for held in of_threads {
        start(Box::new(move |found, asks| sleeper(held, found, asks)));
    }
    start(Box::new(move |found, asks| ringer(all, found, asks)));
    let mut look = Look { held, found: Found::default() };
    let mut questions = std::io::stdin().lines();
    loop {
        turn_of_each(&asks)?;
        look.found.clone_from(&found.lock().unwrap_or_else(PoisonError::into_inner));
        let fail = "tell what is held";
        let mut output = std::io::stdout().lock();
        serde_json::to_writer(&mut output, &look).context(fail)?;
        writeln!(output).and_then(|()| output.flush()).context(fail)?;
        match questions.next() {
            Some(question) => drop(question.context("read a question")?),
            None => return Ok(()),
        }
    }
}

/// Waits until each thread has ended a turn that began after this.
fn turn_of_each(asks: &[Sender<Sender<()>>]) -> Result<()> {
    let stuck = || Error::failed("a thread of the application does not come to its end");
    let (tell, told) = channel();
    for ask in asks {
        ask.send(tell.clone()).map_err(|_| stuck())?;
    }
    asks.iter().try_for_each(|_| told.recv_timeout(SOON).map_err(|_| stuck()))
}
