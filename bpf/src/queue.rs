// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queues of requests: made and removed here, moved on by the kernel side alone.
//!
//! A queue has a number, which guards name. Before it is removed it lets all go that wait in it, refuses those that the server does not
//! take, and forgets those that cannot be told so: its number is another one's next.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::abi;
use crate::attachment::{self, When};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::pin::Pins;
use crate::record::{self, Record};
use crate::{batch, link, managed, trial};

/// So long a queue is waited for to become empty: all that can wait are reset within 2.1 s where nobody listens (pace.bpf.h).
pub const EMPTIES_WITHIN: Duration = Duration::from_secs(3);

/// In every network namespace.
const LOOPBACK: u32 = 1;

/// Every queue there is, by number.
pub fn all(pins: &Pins) -> Result<Vec<(u32, abi::fief_queue)>> {
    if !pins.map("queues").exists() {
        return Ok(Vec::new());
    }
    batch::entries(&pins.open_map("queues")?)
}

/// Makes one.
pub fn make(pins: &Pins, number: u32, queue: &abi::fief_queue) -> Result<()> {
    pins.open_map("queues")?
        .update(&number.to_ne_bytes(), queue.bytes(), MapFlags::NO_EXIST)
        .context(|| format!("cannot make the queue {number}"))
}

/// What a queue that no policy names any more is told.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    /// It lets go of all that wait, and of all that come.
    Open,
    /// It refuses those that are still there.
    Refuse,
}

/// Tells it until nobody is left, or until then. `interfaces`: guarded ones of the caller's network namespace; without any nothing happens.
/// How many requests are still there.
pub fn empty(pins: &Pins, number: u32, interfaces: &[u32], told: Told, until: Instant) -> Result<u32> {
    let program = pins.open_program("queue_opens")?;
    let told = match told {
        Told::Open => abi::FIEF_TOLD_OPEN,
        Told::Refuse => abi::FIEF_TOLD_REFUSE,
    };
    tell(program.as_fd(), interfaces, number, told, until).context(|| format!("cannot open the queue {number}"))
}

/// Whether what was in it is forgotten: only its removal has failed.
pub fn has_ended(queue: &abi::fief_queue) -> bool {
    queue.open > 1
}

/// Looks at which nobody must be there: one that a carrier has in hand is in no list for a moment, and may come back.
const EMPTY_LOOKS: u32 = 2;

/// Tells it of a queue again and again. How many requests are still there in the end.
fn tell(program: BorrowedFd<'_>, interfaces: &[u32], number: u32, told: u32, until: Instant) -> std::io::Result<u32> {
    let (mut left, mut looks) = (0, 0);
    for &interface in interfaces.iter().cycle() {
        left = trial::tell(program, interface, number, told)?;
        looks = if left == 0 { looks + 1 } else { 0 };
        if looks == EMPTY_LOOKS || Instant::now() >= until {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(left)
}

/// Nobody is left in a queue, and nobody comes back to it. An error: somebody is.
fn forget(pins: &Pins, number: u32) -> Result<()> {
    let program = pins.open_program("queue_opens")?;
    // nothing is sent, so that any interface does
    let left = tell(program.as_fd(), &[LOOPBACK], number, abi::FIEF_TOLD_FORGET, Instant::now() + EMPTIES_WITHIN)
        .context(|| format!("cannot empty the queue {number}"))?;
    if left == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Other, format!("cannot empty the queue {number}: {left} requests stay in it")))
}

/// Requests wait again in a queue that was opened: what it was opened for did not come into force.
pub fn close(pins: &Pins, number: u32) -> Result<()> {
    let program = pins.open_program("queue_opens")?;
    // nothing is sent, so that any interface does
    trial::tell(program.as_fd(), LOOPBACK, number, abi::FIEF_TOLD_WAIT)
        .map(drop)
        .context(|| format!("cannot close the queue {number}"))
}

/// Removes a queue that no guard names any more, with all that waits in it, and what its server still has of it: another queue may have
/// the number next, which never counted that. `queue`: as it is.
pub fn remove(pins: &Pins, number: u32, queue: &abi::fief_queue) -> Result<()> {
    // one that no policy in force has named is as it was made
    if queue.open != 0 || queue.waiting + queue.refused + queue.carried.linked > 0 {
        forget(pins, number)?;
    }
    pins.open_map("queues")?.delete(&number.to_ne_bytes()).context(|| format!("cannot remove the queue {number}"))?;
    for map in ["queue_serves", "queue_lasts"] {
        let served = pins.open_map(map)?;
        let its = batch::entries_if::<abi::fief_flow_key, abi::fief_served>(&served, |served| served.queue == number)?;
        for (key, _) in its {
            // one that is gone meanwhile is what is wanted
            let _ = served.delete(key.bytes());
        }
    }
    Ok(())
}

/// The clock at the state of sockets, which every connection of the machine passes: wanted while there is a queue.
pub fn attach_clock(pins: &Pins) -> Result<()> {
    managed::attach_traces(pins, When::Queued)
}

/// After the last queue.
pub fn detach_clock(pins: &Pins) -> Result<()> {
    attachment::traces(When::Queued).flat_map(|row| row.links(pins)).try_for_each(|pin| link::remove(&pin))?;
    // nobody tells any more when the server has done with these
    for map in ["queue_serves", "queue_lasts"] {
        let served = pins.open_map(map)?;
        for key in served.keys() {
            // one that is gone meanwhile is what is wanted
            let _ = served.delete(&key);
        }
    }
    Ok(())
}

/// Sets what carriers are known by, unless it is set.
pub(crate) fn set_mark(pins: &Pins) -> Result<()> {
    let map: MapHandle = pins.open_map("queue_marks")?;
    let there: u32 = record::lookup(&map, &0u32.to_ne_bytes())?.unwrap_or_default();
    if there != 0 {
        return Ok(());
    }
    let mut mark = [0u8; 4];
    while mark == [0; 4] {
        crate::secret::fill(&mut mark)
            .context(|| "cannot get the carriers' mark from the kernel's random source".into())?;
    }
    record::update(&map, 0, &u32::from_ne_bytes(mark))
}
