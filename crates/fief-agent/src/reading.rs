// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is in force, read from the kernel, and kept for a moment: a hundred readers at once cost one reading and one page.
//!
//! A page is kept as the bytes that go out, so that no client has it written once more. It is kept for ten times as long as that took, so that readers, however many and eager, cost
//! a tenth of a CPU at most.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use fief_control::{Charges, Error, ErrorKind, Explanation, Fief, FrontView, Moment, Question, Result, Status};
use serde::Serialize;

use crate::ask::ChargeQuestion;

/// A look again and again sees what is new.
pub(crate) const SHORTEST: Duration = Duration::from_millis(50);
const TIMES_ITS_COST: u32 = 10;
/// Who follows comes again much sooner, also where a page is kept for long.
const FOLLOWED: Duration = Duration::from_secs(2);

/// A view as JSON: the bytes that its clients get.
type Page = Kept<Vec<u8>>;

#[derive(Debug)]
pub(crate) struct Readings {
    pub(crate) fief: Fief,
    snapshot: Page,
    front: Page,
    queues: Page,
    status: Page,
    costs: Page,
    notices: Page,
    looked: Looked<Status>,
    questions: Paced,
    charges: Paced,
}

impl Readings {
    pub(crate) fn of(fief: Fief) -> Self {
        Self {
            fief,
            snapshot: Kept::at_least(SHORTEST),
            front: Kept::at_least(SHORTEST),
            queues: Kept::at_least(SHORTEST),
            status: Kept::at_least(SHORTEST),
            costs: Kept::at_least(SHORTEST),
            notices: Kept::at_least(SHORTEST),
            looked: Looked::default(),
            questions: Paced::default(),
            charges: Paced::default(),
        }
    }

    pub(crate) fn snapshot(&self) -> Result<Arc<Vec<u8>>> {
        self.page(&self.snapshot, || self.fief.snapshot())
    }

    pub(crate) fn front(&self) -> Result<Arc<Vec<u8>>> {
        self.page(&self.front, || self.fief.front())
    }

    pub(crate) fn queues(&self) -> Result<Arc<Vec<u8>>> {
        self.page(&self.queues, || self.fief.queue_views())
    }

    pub(crate) fn status(&self) -> Result<Arc<Vec<u8>>> {
        self.page(&self.status, || self.fief.status())
    }

    /// That it is counted is the one thing that reading changes.
    pub(crate) fn costs(&self) -> Result<Arc<Vec<u8>>> {
        self.page(&self.costs, || self.fief.costs(Duration::ZERO))
    }

    /// What happened lately: each of those who follow comes again within that time, and knows what is new by its number.
    pub(crate) fn notices(&self) -> Result<Arc<Vec<u8>>> {
        self.page(&self.notices, || self.fief.recent(FOLLOWED))
    }

    /// How it stands with a client now. `None`: it is too early for another question.
    pub(crate) fn explain(&self, asker: Option<u32>, question: &Question) -> Option<Result<Explanation>> {
        self.questions.take(asker, |_| self.fief.explain(question))
    }

    /// What a container is charged for from now on, in the time that is asked for. `None`: somebody else's is watched, or one was a
    /// moment ago.
    pub(crate) fn charges(&self, asker: Option<u32>, asked: &ChargeQuestion) -> Option<Result<Charges>> {
        let watch = |slept: &mut Duration| {
            let mut watch = self.fief.watch(&asked.container, asked.lasts)?;
            std::thread::sleep(asked.lasts);
            *slept = asked.lasts;
            watch.look(asked.lasts)
        };
        self.charges.take(asker, watch)
    }

    fn page<T: Serialize>(&self, kept: &Page, read: impl FnOnce() -> Result<T>) -> Result<Arc<Vec<u8>>> {
        page(kept, self.fief.installed(), read)
    }

    /// As it was found last, and how long ago: who listens is looked for among the descriptors of all processes, for which no scrape waits
    /// but the first one of a policy.
    pub(crate) fn status_lately(&self) -> Result<(Arc<Status>, Duration)> {
        match self.looked.last_of(self.policy()) {
            Some(last) => Ok(last),
            None => Ok((self.status_now()?, Duration::ZERO)),
        }
    }

    /// How old that is; `None`: there is none.
    pub(crate) fn status_age(&self) -> Option<Duration> {
        self.looked.place().as_ref().map(|found| found.at.elapsed())
    }

    /// Of a policy that has gone.
    pub(crate) fn forget_status(&self) {
        self.looked.forget();
    }

    /// As it is now, which [`Readings::status_lately`] has from then on.
    pub(crate) fn status_now(&self) -> Result<Arc<Status>> {
        // first: of what comes into force meanwhile there is another look
        let policy = self.policy();
        Ok(self.keep(policy, self.fief.status()?))
    }

    /// Which one is in force, by its text; `None`: none, or it was removed.
    fn policy(&self) -> Option<u64> {
        let text = self.fief.policy_text().ok()??;
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Some(hasher.finish())
    }

    /// A status without a policy in force is not kept: a first apply was killed, or is under way.
    fn keep(&self, policy: Option<u64>, status: Status) -> Arc<Status> {
        if status.in_force { self.looked.keep(policy, status) } else { Arc::new(status) }
    }

    /// The same, with the front door.
    pub(crate) fn status_and_front_now(&self) -> Result<(Arc<Status>, FrontView)> {
        let policy = self.policy();
        let (status, front) = self.fief.status_and_front()?;
        Ok((self.keep(policy, status), front))
    }

    /// Usage and the front door, as they are now. Who hands on what it is made into keeps that.
    pub(crate) fn moment(&self) -> Result<Moment> {
        self.fief.moment()
    }
}

/// What is no longer in force is not told from memory.
fn page<T: Serialize>(kept: &Page, is_in_force: bool, read: impl FnOnce() -> Result<T>) -> Result<Arc<Vec<u8>>> {
    let write = || json(&read()?);
    if is_in_force { kept.get(write) } else { write().map(Arc::new) }
}

/// The bytes of a page.
pub(crate) fn json(view: &impl Serialize) -> Result<Vec<u8>> {
    let written = serde_json::to_vec(view).map_err(|error| Error::new(ErrorKind::Other, error.to_string()));
    written.map(|mut page| {
        page.shrink_to_fit();
        page
    })
}

/// Answers one question at a time, and each user again after a pause: for each of the users ten times what the answer took, so that
/// all of them together cost a tenth of a CPU. Nobody who asks without pause keeps another one from asking. A question is refused at
/// once rather than queued, so that it never delays a scrape.
///
/// An answer that slept kept root from asking, who asks elsewhere. So all users pause for as long as it took, and half of the time
/// is root's, however many they are. The one who asked pauses for longer by as much as the others need for their turns.
#[derive(Debug, Default)]
struct Paced {
    next: Mutex<Next>,
}

/// When somebody may ask again.
#[derive(Debug, Default)]
struct Next {
    users: HashMap<Option<u32>, Instant>,
    any: Option<Instant>,
}

/// After an answer that slept nobody is answered for at least this, nor its user for at least this after the others may ask: who waits
/// for it tries several times meanwhile.
const GAP: Duration = Duration::from_millis(200);

impl Paced {
    /// `read` is told where to say how long it slept.
    fn take<T>(&self, asker: Option<u32>, read: impl FnOnce(&mut Duration) -> T) -> Option<T> {
        let mut next = match self.next.try_lock() {
            Ok(next) => next,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let begun = Instant::now();
        next.users.retain(|_, next| begun < *next);
        if next.any.is_some_and(|any| begun < any) || next.users.contains_key(&asker) {
            return None;
        }
        let mut slept = Duration::ZERO;
        let read = read(&mut slept);
        let ended = Instant::now();
        let users = next.users.len() as u32 + 1;
        let mut pause = (ended - begun).saturating_sub(slept) * TIMES_ITS_COST * users;
        if slept > Duration::ZERO {
            let all = (ended - begun).max(GAP);
            next.any = Some(ended + all);
            // each of the others has a turn and the pause after it
            pause += all + all * 2 * (users - 1) + GAP;
        }
        next.users.insert(asker, ended + pause);
        Some(read)
    }
}

/// The status that the last look found, however old it is. Scrapes take it and look for nothing.
#[derive(Debug)]
struct Looked<T>(Mutex<Option<Found<T>>>);

#[derive(Debug)]
struct Found<T> {
    /// In force when the look began.
    policy: Option<u64>,
    of: Arc<T>,
    at: Instant,
}

impl<T> Default for Looked<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Looked<T> {
    fn place(&self) -> MutexGuard<'_, Option<Found<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, policy: Option<u64>, found: T) -> Arc<T> {
        let of = Arc::new(found);
        *self.place() = Some(Found { policy, of: Arc::clone(&of), at: Instant::now() });
        of
    }

    fn last_of(&self, policy: Option<u64>) -> Option<(Arc<T>, Duration)> {
        let place = self.place();
        let found = place.as_ref().filter(|found| found.policy == policy);
        found.map(|found| (Arc::clone(&found.of), found.at.elapsed()))
    }

    fn forget(&self) {
        *self.place() = None;
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
        let begun = Instant::now();
        let of = Arc::new(read()?);
        let now = Instant::now();
        *kept = Some(Reading { until: now + self.least.max((now - begun) * TIMES_ITS_COST), of: Arc::clone(&of) });
        Ok(of)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A test that takes so long does not end.
    const LONG: Duration = Duration::from_secs(60);

    /// A view that counts how often it is written.
    struct Counted<'a>(&'a AtomicU32);

    impl Serialize for Counted<'_> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(SHORTEST * 10);
            serializer.serialize_str("much")
        }
    }

    #[test]
    fn a_hundred_requests_at_once_make_one_page() {
        let (kept, reads, writes) = (Page::at_least(SHORTEST), AtomicU32::new(0), AtomicU32::new(0));
        let read = || {
            reads.fetch_add(1, Ordering::Relaxed);
            Ok(Counted(&writes))
        };
        let page = || page(&kept, true, read).expect("read");
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..100).map(|_| scope.spawn(page)).collect();
            let all: Vec<_> = all.into_iter().map(|one| one.join().expect("a page")).collect();
            assert!(all.iter().all(|page| Arc::ptr_eq(page, &all[0]) && ***page == *b"\"much\""));
        });
        assert_eq!([&reads, &writes].map(|count| count.load(Ordering::Relaxed)), [1, 1]);
        // writing counts as reading does: it is kept for ten times as long as both took
        drop(page());
        assert_eq!(writes.load(Ordering::Relaxed), 1);
        // what is no longer in force is not told from memory
        drop(super::page(&kept, false, read));
        assert_eq!(writes.load(Ordering::Relaxed), 2);
    }

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
        let costly = |_: &mut Duration| {
            reads.set(reads.get() + 1);
            std::thread::sleep(Duration::from_millis(20));
            assert!(paced.take(Some(7), |_| ()).is_none(), "one at a time");
        };
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            paced.take(Some(1000), costly);
        }
        assert!((1..=3).contains(&reads.get()), "{}", reads.get());
        paced.take(Some(1000), |_| ());
        assert!(paced.take(Some(1001), |_| ()).is_some(), "another one's question is answered");
    }

    /// Its answer sleeps for as long, or costs as much.
    fn watch(paced: &Paced, asker: u32, lasts: Duration, tells: bool) -> Option<()> {
        let sleeps = |slept: &mut Duration| {
            std::thread::sleep(lasts);
            *slept = if tells { lasts } else { Duration::ZERO };
        };
        paced.take(Some(asker), sleeps)
    }

    #[test]
    fn who_has_an_answer_sleep_asks_again_after_a_longer_pause_than_all_others() {
        const SLEEPS: Duration = Duration::from_millis(250);
        let pauses = |tells: bool| {
            let (paced, begun) = (Paced::default(), Instant::now());
            watch(&paced, 1, SLEEPS, tells).expect("nobody else asks");
            let next = paced.next.lock().expect("nobody asks");
            (next.users[&Some(1)] - begun, next.any.map(|any| any - begun))
        };
        let (own, all) = pauses(true);
        let all = all.expect("it slept");
        assert!(all >= SLEEPS * 2 && own >= all + GAP, "{own:?}, {all:?}");
        let (own, all) = pauses(false);
        assert!(own >= SLEEPS * (1 + TIMES_ITS_COST) && all.is_none(), "it cost what it took: {own:?}, {all:?}");
    }

    #[test]
    fn nobody_is_answered_in_the_pause_of_all() {
        let paced = Paced::default();
        let until = |any: Instant| paced.next.lock().expect("nobody asks").any = Some(any);
        until(Instant::now() + LONG);
        assert!(paced.take(Some(1), |_| ()).is_none());
        until(Instant::now());
        assert!(paced.take(Some(1), |_| ()).is_some());
    }

    /// Root asks elsewhere, and has its turn while nobody's answer sleeps.
    #[test]
    fn users_who_take_turns_have_half_of_the_time_together() {
        let (paced, begun) = (Paced::default(), Instant::now());
        let (mut slept, mut turns) = (Duration::ZERO, [0; 3]);
        // each of them asks without pause, always in this order
        while turns.contains(&0) {
            for (asker, turns) in (0..).zip(&mut turns) {
                let sleeps = |told: &mut Duration| {
                    assert!(slept * 2 <= begun.elapsed(), "{slept:?} of {:?}", begun.elapsed());
                    let asked = Instant::now();
                    std::thread::sleep(GAP);
                    *told = GAP;
                    slept += asked.elapsed();
                };
                *turns += u32::from(paced.take(Some(asker), sleeps).is_some());
            }
            assert!(begun.elapsed() < LONG, "each has a turn: {turns:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_scrape_has_what_was_found_last_however_long_ago_and_looks_for_nothing() {
        // nothing is in force in it, so a look fails
        let readings = Readings::of(Fief::with_scope(&format!("ff-looked-{}", std::process::id())));
        assert!(readings.status_lately().is_err());
        let (hour, status) = (LONG * 60, crate::metrics::tests::status());
        readings.keep(None, status);
        readings.looked.place().iter_mut().for_each(|found| found.at -= hour);
        let (last, age) = readings.status_lately().expect("it was found");
        assert!(last.problems == ["one"] && age >= hour, "{age:?}");
        readings.forget_status();
        assert!(readings.status_lately().is_err() && readings.status_age().is_none());
    }

    #[test]
    fn a_status_is_kept_for_its_own_policy_and_for_no_half_done_one() {
        let readings = Readings::of(Fief::with_scope(&format!("ff-kept-{}", std::process::id())));
        let status = crate::metrics::tests::status;
        let half = readings.keep(None, Status { in_force: false, ..status() });
        assert!(!half.in_force && readings.status_age().is_none(), "who asked has it, and nobody else");
        readings.keep(Some(1), status());
        let has = |policy| readings.looked.last_of(policy).is_some();
        assert_eq!([Some(1), Some(2), None].map(has), [true, false, false]);
        // the text in force is another one here: there is none
        assert!(readings.status_lately().is_err() && readings.status_age().is_some());
    }

    #[test]
    fn a_failure_is_not_kept() {
        let kept = Kept::at_least(SHORTEST);
        let failure = || fief_control::Error::new(fief_control::ErrorKind::NotFound, "nothing is in force");
        assert!(kept.get(|| Err::<u32, _>(failure())).is_err());
        assert_eq!(*kept.get(|| Ok(7)).expect("read"), 7);
    }
}
