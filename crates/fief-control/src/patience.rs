// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at processes that can hold up whoever looks.
//!
//! Problem: some of what /proc tells of a process (`stat`, `maps`, on Linux 6.18 links too) the kernel tells only once an exec that is
//! under way is done (exec_update_lock). An exec closes files, which takes as long as their file system likes, and anybody can serve one of
//! FUSE. Then `ps` waits as well.
//! How: threads look. One that waits is left behind; it ends with this process, since that wait can be killed. What they cost is told as the
//! CPU time of whoever has them look ([`cpu_spent`]): how much there is to look at is for others to say.
//! Limits: who held up is not looked at. Once many threads wait, nothing is.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use fief_bpf::process;
use nix::sys::signal::SigSet;
use nix::time::{ClockId, clock_gettime};

/// After so long without news another thread goes on with the next process.
const STEP: Duration = Duration::from_millis(300);
/// So long a look is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// So many threads look at a time; of those that are left behind there can be no more.
const THREADS: usize = 64;
const STACK: usize = 1 << 20;

/// The numbers of all processes that are seen from here.
pub(crate) fn all() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// What a look finds, unless it takes too long.
pub(crate) fn in_time<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = mpsc::channel();
    // who waits no longer does not hear it
    start(move || drop(tell.send(look())))?;
    told.recv_timeout(PATIENCE).ok()
}

/// As [`process::started`]; of a process that takes too long nobody can tell.
pub(crate) fn started(pid: i32) -> io::Result<Option<u64>> {
    in_time(move || process::started(pid)).unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

/// Looks at each of these processes. `look` tells what it finds as long as that is heard, `take` gets it until it wants no more. Returns whether
/// that is so, or all were looked at.
pub(crate) fn each<T, L>(processes: Vec<i32>, look: L, mut take: impl FnMut(T) -> bool) -> bool
where
    T: Send + 'static,
    L: Fn(i32, &dyn Fn(T) -> bool) + Send + Sync + 'static,
{
    let (tell, told) = mpsc::channel();
    let count = processes.len();
    let looks = Arc::new(Looks { processes, next: AtomicUsize::new(0), look });
    let until = Instant::now() + PATIENCE;
    if go_on(&looks, &tell).is_none() {
        return false;
    }
    let mut seen = 0;
    while seen < count {
        match told.recv_timeout(STEP) {
            Ok(News::Done) => seen += 1,
            Ok(News::Found(found)) => {
                if !take(found) {
                    return true;
                }
            }
            Err(_) if Instant::now() >= until => return false,
            // where there can be no more threads, those that are there may go on yet
            Err(_) => {
                go_on(&looks, &tell);
            }
        }
    }
    true
}

enum News<T> {
    Found(T),
    /// With one process.
    Done,
}

struct Looks<L> {
    processes: Vec<i32>,
    next: AtomicUsize,
    look: L,
}

/// One more thread takes the next process, and so on.
fn go_on<T, L>(looks: &Arc<Looks<L>>, tell: &Sender<News<T>>) -> Option<()>
where
    T: Send + 'static,
    L: Fn(i32, &dyn Fn(T) -> bool) + Send + Sync + 'static,
{
    let (looks, tell) = (Arc::clone(looks), tell.clone());
    start(move || {
        while let Some(pid) = looks.processes.get(looks.next.fetch_add(1, Ordering::Relaxed)) {
            (looks.look)(*pid, &|found| tell.send(News::Found(found)).is_ok());
            if tell.send(News::Done).is_err() {
                return;
            }
        }
    })
}

/// `None`: there are too many threads.
fn start(work: impl FnOnce() + Send + 'static) -> Option<()> {
    let place = Place::take()?;
    let work = counted(work);
    let work = move || {
        let _place = place;
        // such a thread may be left behind, and who freezes cgroups counts on signals that wait (cgroup::remove)
        let _ = SigSet::all().thread_block();
        work();
    };
    thread::Builder::new().stack_size(STACK).spawn(work).ok().map(drop)
}

thread_local! {
    /// CPU time of other threads that worked for this one, in ns. They share it with those that work for them.
    static OTHERS_NS: RefCell<Arc<AtomicU64>> = RefCell::default();
}

/// What a thread of its own does for this one, as whose CPU time it counts once it is done.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let others_ns = OTHERS_NS.with_borrow(Arc::clone);
    move || {
        OTHERS_NS.set(Arc::clone(&others_ns));
        let done = work();
        others_ns.fetch_add(own_cpu().as_nanos() as u64, Ordering::Relaxed);
        done
    }
}

/// CPU time of this thread so far, with that of the threads that looked at processes for it and are done: one that just told what it found
/// may count a moment later. A look that others hold up costs nothing for it.
pub fn cpu_spent() -> Duration {
    own_cpu() + Duration::from_nanos(OTHERS_NS.with_borrow(|others| others.load(Ordering::Relaxed)))
}

fn own_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("each thread has one").into()
}

/// Of a thread that looks.
struct Place;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

impl Place {
    fn take() -> Option<Self> {
        let one_more = |taken: usize| (taken < THREADS).then_some(taken + 1);
        TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use fief_testkit::wait_until;

    use super::*;

    const WORK: Duration = Duration::from_millis(50);

    fn work() {
        let begun = own_cpu();
        while own_cpu() - begun < WORK {}
    }

    /// Whether what is spent comes to so much more than it was.
    fn comes_to(before: Duration, more: Duration) -> bool {
        wait_until(PATIENCE * 10, || cpu_spent() - before >= more).is_ok()
    }

    #[test]
    fn the_time_of_those_who_look_is_that_of_whoever_has_them_look_and_nobody_elses() {
        let before = cpu_spent();
        assert!(in_time(work).is_some());
        assert!(comes_to(before, WORK));
        assert!(each(vec![1, 2], |_, _| work(), |()| true));
        assert!(comes_to(before, WORK * 3));
        // in another namespace, and by those who look there
        let there = counted(|| assert!(in_time(work).is_some()));
        thread::scope(|scope| scope.spawn(there).join()).expect("it looks");
        assert!(comes_to(before, WORK * 4));
        let (own, before) = (own_cpu(), cpu_spent());
        thread::spawn(|| in_time(work)).join().expect("it looks").expect("in time");
        assert!(cpu_spent() - before <= own_cpu() - own, "it looked for another one");
    }

    #[test]
    fn a_look_that_is_held_up_costs_nothing() {
        let (begun, before) = (Instant::now(), cpu_spent());
        in_time(|| thread::sleep(WORK)).expect("in time");
        assert!(cpu_spent() - before < begun.elapsed() / 2);
    }

    #[test]
    fn who_holds_a_look_up_hides_nobody_else() {
        let (hold, held) = mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let mut found = Vec::new();
        let all = each(
            vec![1, 2, 3, 4],
            move |pid, tell| {
                if pid == 2 {
                    // until this test ends
                    let _ = held.lock().expect("one thread").recv();
                }
                tell(pid * 10);
            },
            |news: i32| {
                found.push(news);
                true
            },
        );
        drop(hold);
        assert_eq!((all, found), (false, vec![10, 30, 40]));
    }

    fn tell_itself(pid: i32, tell: &dyn Fn(i32) -> bool) {
        tell(pid);
    }

    #[test]
    fn it_ends_with_the_last_one_or_when_nothing_more_is_wanted() {
        let mut found = Vec::new();
        let keep = |news: i32| {
            found.push(news);
            true
        };
        assert!(each(vec![1, 2, 3], tell_itself, keep));
        assert_eq!(found, [1, 2, 3]);
        assert!(each(vec![1, 2, 3], tell_itself, |_| false));
        assert!(each(Vec::new(), tell_itself, |_| true));
    }

    #[test]
    fn a_look_that_takes_too_long_is_left_alone() {
        let (hold, held) = mpsc::channel::<()>();
        assert_eq!(in_time(move || held.recv().is_err()), None);
        drop(hold);
        assert_eq!(in_time(|| 7), Some(7));
    }
}
