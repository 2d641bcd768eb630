// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at processes that can hold up whoever looks.
//!
//! Problem: some of what /proc tells of a process (`stat`, `maps`, on Linux 6.18 links too) the kernel tells only once an exec that is
//! under way is done (exec_update_lock). An exec closes files, which takes as long as their file system likes, and anybody can serve one of
//! FUSE. Then `ps` waits as well.
//! How: threads look. One that waits is left behind; it ends with this process, since that wait can be killed.
//! Limits: who held up is not looked at. Once many threads wait, nothing is.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use fief_bpf::process;
use nix::sys::signal::SigSet;

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
    let work = move || {
        let _place = place;
        // such a thread may be left behind, and who freezes cgroups counts on signals that wait (cgroup::remove)
        let _ = SigSet::all().thread_block();
        work();
    };
    thread::Builder::new().stack_size(STACK).spawn(work).ok().map(drop)
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
    use super::*;

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
