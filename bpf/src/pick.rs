// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What it takes to find the class of a queue that is next, beside one lookup in a hash table, and what a request takes of its queue
//! beside another CPU: all run by themselves (BPF_PROG_TEST_RUN), over tables that are in the cache.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, OpenObject};

use crate::abi;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::open;
use crate::record::Record;
use crate::skeleton::pick;

/// Flows in the hash table.
const FLOWS: u16 = 10_000;
/// A frame that says nothing.
const FRAME: [u8; 64] = [0; 64];

/// Of one run each, without what a run takes that does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The class of 32 that all have somebody who waits.
    pub pick: Duration,
    pub look_up: Duration,
}

/// What a request that waited takes of its queue under the lock, on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contended {
    /// No other CPU does the same.
    pub alone: Duration,
    /// Another one does without a pause, at a queue of its own.
    pub beside: Duration,
    /// At the same queue.
    pub at_one: Duration,
    /// With what all queues share, a link and the count of news: no other CPU does the same.
    pub sharing_alone: Duration,
    /// Another one does, at a queue of its own.
    pub sharing_beside: Duration,
}

fn load(place: &mut MaybeUninit<OpenObject>) -> Result<pick::PickSkel<'_>> {
    let open = pick::PickSkelBuilder::default().open(place).context(|| "cannot open the pick object".into())?;
    open.load().map_err(|e| open::unsupported("pick", &e))
}

/// The mean of so many runs.
pub fn measure(runs: u32) -> Result<Picked> {
    let mut place = MaybeUninit::<OpenObject>::uninit();
    let skel = load(&mut place)?;
    let (queue, next) = queue();
    let failed = || "cannot fill what is measured".to_owned();
    skel.maps.picked.update(&0u32.to_ne_bytes(), queue.bytes(), MapFlags::ANY).context(failed)?;
    for flow in 0..FLOWS {
        let key = abi::fief_flow_key { remote_port: flow, ..Default::default() };
        skel.maps.looked_up.update(key.bytes(), &1u64.to_ne_bytes(), MapFlags::ANY).context(failed)?;
    }
    let nothing = run(skel.progs.run_nothing.as_fd(), runs, 0)?;
    let own = |program: BorrowedFd<'_>, answer: u32| Ok(run(program, runs, answer)?.saturating_sub(nothing));
    Ok(Picked { pick: own(skel.progs.run_pick.as_fd(), next + 1)?, look_up: own(skel.progs.run_lookup.as_fd(), 1)? })
}

/// The mean of so many runs; `pin` keeps a thread on one CPU or the other.
pub fn measure_contended(runs: u32, pin: impl Fn(bool) + Sync) -> Result<Contended> {
    let mut place = MaybeUninit::<OpenObject>::uninit();
    let skel = load(&mut place)?;
    let (queue, next) = queue();
    for number in 0..2u32 {
        let failed = || "cannot fill what is measured".to_owned();
        skel.maps.picked.update(&number.to_ne_bytes(), queue.bytes(), MapFlags::ANY).context(failed)?;
    }
    // what one takes charges nobody, so that the same class is next each time
    let answer = next + 1;
    let (one, other) = (skel.progs.run_turn_of_one.as_fd(), skel.progs.run_turn_of_other.as_fd());
    let (sharing, other_sharing) = (skel.progs.run_shared_one.as_fd(), skel.progs.run_shared_other.as_fd());
    let nothing = run(skel.progs.run_nothing.as_fd(), runs, 0)?;
    let beside = |one: BorrowedFd<'_>, other: Option<BorrowedFd<'_>>| {
        let (begun, ended) = (Barrier::new(1 + usize::from(other.is_some())), AtomicBool::new(false));
        std::thread::scope(|scope| {
            if let Some(program) = other {
                let (begun, ended, pin) = (&begun, &ended, &pin);
                scope.spawn(move || {
                    pin(true);
                    begun.wait();
                    while !ended.load(Ordering::Relaxed) && run(program, runs / 16, answer).is_ok() {}
                });
            }
            let measured = scope.spawn(|| {
                pin(false);
                begun.wait();
                let took = run(one, runs, answer);
                ended.store(true, Ordering::Relaxed);
                took.map(|took| took.saturating_sub(nothing))
            });
            measured.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    };
    Ok(Contended {
        alone: beside(one, None)?,
        beside: beside(one, Some(other))?,
        at_one: beside(one, Some(one))?,
        sharing_alone: beside(sharing, None)?,
        sharing_beside: beside(sharing, Some(other_sharing))?,
    })
}

/// A queue of 32 classes of one level, and which of them is next.
fn queue() -> (abi::fief_queue, u32) {
    let mut queue = abi::fief_queue {
        bits: u32::MAX,
        flat: 1,
        classes: abi::FIEF_QUEUE_CLASSES,
        below_level: abi::FIEF_QUEUE_CLASSES,
        below: 1,
        tick_shift: 21, // as a queue has that holds a place for half a second
        stale_ticks: 250,
        ..Default::default()
    };
    let next = abi::FIEF_QUEUE_CLASSES / 2 + 1;
    for (number, class) in (0u32..).zip(&mut queue.class) {
        class.turn = 1000 + u64::from(number.abs_diff(next)) * 1000;
        class.list.linked = 1;
        class.floor = 1;
    }
    (queue, next)
}

/// The mean; an error if the program came to another answer.
fn run(program: BorrowedFd<'_>, runs: u32, answer: u32) -> Result<Duration> {
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: FRAME.as_ptr().cast(),
        data_size_in: FRAME.len() as u32,
        repeat: runs.cast_signed(),
        ..Default::default()
    };
    // SAFETY: the kernel reads the frame, which outlives the call, and writes nothing but the record of options.
    let err = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) };
    if err < 0 {
        return Err(std::io::Error::from_raw_os_error(-err)).context(|| "cannot run what is measured".into());
    }
    if opts.retval != answer {
        return Err(Error::new(ErrorKind::Other, format!("what is measured answered {}, not {answer}", opts.retval)));
    }
    Ok(Duration::from_nanos(opts.duration.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_that_is_found_is_the_one_with_the_least() {
        let (queue, next) = queue();
        let least = (0u32..).zip(&queue.class).min_by_key(|(_, class)| class.turn).map(|(number, _)| number);
        assert_eq!(least, Some(next));
    }
}
