// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is in force, read from the kernel, and kept for a moment: a hundred readers at once cost one reading.
//!
//! What was read, and what was made of it, is kept for ten times as long as that took, so that readers, however many and eager, cost
//! a tenth of a CPU at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use fief_control::{CostView, Explanation, Fief, FrontView, Moment, Question, Result, Snapshot, Status};

/// A look again and again sees what is new.
pub(crate) const SHORTEST: Duration = Duration::from_millis(50);
const TIMES_ITS_COST: u32 = 10;
const LATELY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Readings {
    pub(crate) fief: Fief,
    snapshot: Kept<Snapshot>,
    front: Kept<FrontView>,
    status: Kept<Status>,
    costs: Kept<CostView>,
    lately: Kept<Status>,
    questions: Paced,
}

impl Readings {
    pub(crate) fn of(fief: Fief) -> Self {
        Self {
            fief,
            snapshot: Kept::at_least(SHORTEST),
            front: Kept::at_least(SHORTEST),
            status: Kept::at_least(SHORTEST),
            costs: Kept::at_least(SHORTEST),
            lately: Kept::at_least(LATELY),
            questions: Paced::default(),
        }
    }

    pub(crate) fn snapshot(&self) -> Result<Arc<Snapshot>> {
        self.kept(&self.snapshot, || self.fief.snapshot())
    }

    pub(crate) fn front(&self) -> Result<Arc<FrontView>> {
        self.kept(&self.front, || self.fief.front())
    }

    pub(crate) fn status(&self) -> Result<Arc<Status>> {
        self.kept(&self.status, || self.fief.status())
    }

    /// That it is counted is the one thing that reading changes.
    pub(crate) fn costs(&self) -> Result<Arc<CostView>> {
        self.kept(&self.costs, || self.fief.costs(Duration::ZERO))
    }

    /// How it stands with a client now. `None`: it is too early for another question.
    pub(crate) fn explain(&self, asker: Option<u32>, question: &Question) -> Option<Result<Explanation>> {
        self.questions.take(asker, || self.fief.explain(question))
    }

    /// What is no longer in force is not told from memory.
    fn kept<T>(&self, kept: &Kept<T>, read: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        if self.fief.installed() { kept.get(read) } else { read().map(Arc::new) }
    }

    /// As it was within a minute: who listens is looked for among the descriptors of all processes.
    pub(crate) fn status_lately(&self) -> Result<Arc<Status>> {
        self.lately.get(|| self.fief.status())
    }

    /// As it is now, which [`Readings::status_lately`] has from then on.
    pub(crate) fn status_now(&self) -> Result<Arc<Status>> {
        self.lately.renew(|| self.fief.status())
    }

    /// Usage and the front door, as they are now. Who hands on what it is made into keeps that.
    pub(crate) fn moment(&self) -> Result<Moment> {
        self.fief.moment()
    }
}

/// Answers one question at a time, and each user again after a pause. The pauses are so long that all users together
/// cost a tenth of a CPU, and nobody who asks without pause keeps another one from asking. A question is refused at once rather than
/// queued, so that it never delays a scrape.
#[derive(Debug, Default)]
struct Paced {
    /// When each user may ask again.
    next: Mutex<HashMap<Option<u32>, Instant>>,
}

impl Paced {
    fn take<T>(&self, asker: Option<u32>, read: impl FnOnce() -> T) -> Option<T> {
        let mut next = match self.next.try_lock() {
            Ok(next) => next,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let begun = Instant::now();
        next.retain(|_, next| begun < *next);
        if next.contains_key(&asker) {
            return None;
        }
        let read = read();
        let users = next.len() as u32 + 1;
        next.insert(asker, Instant::now() + begun.elapsed() * TIMES_ITS_COST * users);
        Some(read)
    }
}

#[derive(Debug)]
pub(crate) struct Kept<T> {
    reading: Mutex<Option<Reading<T>>>,
    least: Duration,
}

#[derive(Debug)]
struct Reading<T> {
    until: Instant,
    of: Arc<T>,
}

impl<T> Kept<T> {
    pub(crate) fn at_least(least: Duration) -> Self {
        Self { reading: Mutex::new(None), least }
    }

    /// A caller that comes while another one reads waits for that reading. A failure is not kept.
    pub(crate) fn get(&self, read: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let mut kept = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reading) = kept.as_ref().filter(|reading| Instant::now() < reading.until) {
            return Ok(Arc::clone(&reading.of));
        }
        // first, so that there are not two of them at a time
        *kept = None;
        let reading = self.read(read)?;
        let of = Arc::clone(&reading.of);
        *kept = Some(reading);
        Ok(of)
    }

    /// Reads, whatever is kept; those who [`Kept::get`] it meanwhile have what was.
    fn renew(&self, read: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let reading = self.read(read)?;
        let of = Arc::clone(&reading.of);
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        Ok(of)
    }

    fn read(&self, read: impl FnOnce() -> Result<T>) -> Result<Reading<T>> {
        let begun = Instant::now();
        let of = Arc::new(read()?);
        let now = Instant::now();
        Ok(Reading { until: now + self.least.max((now - begun) * TIMES_ITS_COST), of })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn readings_cost_a_tenth_of_a_cpu_at_most() {
        let (kept, reads) = (Kept::at_least(SHORTEST), Cell::new(0_u32));
        let costly = || {
            reads.set(reads.get() + 1);
            std::thread::sleep(Duration::from_millis(20));
            Ok(reads.get())
        };
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            kept.get(costly).expect("read");
        }
        assert!((1..=3).contains(&reads.get()), "{}", reads.get());
    }

    #[test]
    fn questions_cost_a_tenth_of_a_cpu_at_most_and_keep_nobody_waiting() {
        let (paced, reads) = (Paced::default(), Cell::new(0_u32));
        let costly = || {
            reads.set(reads.get() + 1);
            std::thread::sleep(Duration::from_millis(20));
            assert!(paced.take(Some(7), || ()).is_none(), "one at a time");
        };
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            paced.take(Some(1000), costly);
        }
        assert!((1..=3).contains(&reads.get()), "{}", reads.get());
        paced.take(Some(1000), || ());
        assert!(paced.take(Some(1001), || ()).is_some(), "another one's question is answered");
    }

    #[test]
    fn what_was_renewed_is_what_is_kept() {
        let kept = Kept::at_least(LATELY);
        assert_eq!(*kept.get(|| Ok(1)).expect("read"), 1);
        let within = kept.renew(|| Ok(*kept.get(|| Ok(5)).expect("nobody waits for who renews") + 1));
        assert_eq!(*within.expect("read"), 2);
        assert_eq!(*kept.get(|| Ok(7)).expect("read"), 2);
    }

    #[test]
    fn a_failure_is_not_kept() {
        let kept = Kept::at_least(SHORTEST);
        let failure = || fief_control::Error::new(fief_control::ErrorKind::NotFound, "nothing is in force");
        assert!(kept.get(|| Err::<u32, _>(failure())).is_err());
        assert_eq!(*kept.get(|| Ok(7)).expect("read"), 7);
    }
}
