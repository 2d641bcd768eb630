// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a CPU remembers of a thread that left it is what the thread was then: it may have become another's elsewhere since.

use std::sync::mpsc::{Receiver, Sender, channel};

use fief::Container;
use fief_testkit::{cpus, pin, wait_until};
use fief_tests_netns::{SOON, all_end, in_unit};

const TURNS: usize = 50;

/// A thread that does what it is told, and sleeps in between.
struct Told {
    tell: Sender<Box<dyn FnOnce() + Send>>,
    done: Receiver<()>,
    tid: i32,
}

impl Told {
    fn new() -> Self {
        let (tell, told) = channel::<Box<dyn FnOnce() + Send>>();
        let (say, done) = channel();
        let (name, named) = channel();
        std::thread::spawn(move || {
            name.send(nix::unistd::gettid().as_raw()).unwrap();
            for what in told {
                what();
                say.send(()).unwrap();
            }
        });
        Self { tell, done, tid: named.recv().unwrap() }
    }

    fn run(&self, what: impl FnOnce() + Send + 'static) {
        self.tell.send(Box::new(what)).unwrap();
        self.done.recv().unwrap();
    }

    /// Runs, and sleeps since: what is left for it while it runs it takes only at a softirq.
    fn run_and_sleep(&self) {
        let (say, ran) = channel();
        self.run(move || say.send(sleeps("/proc/thread-self/status")).unwrap());
        let (before, status) = (ran.recv().unwrap(), format!("/proc/self/task/{}/status", self.tid));
        wait_until(SOON, || sleeps(&status) > before).unwrap();
    }
}

/// How often a thread went to sleep by itself.
fn sleeps(status: &str) -> u64 {
    let text = std::fs::read_to_string(status).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

fn bound_to(container: &Container) -> u32 {
    fief::current(container).unwrap().0
}

#[test]
fn a_thread_that_comes_back_to_a_cpu_is_what_it_became_elsewhere() {
    let cpus = cpus();
    if cpus.len() < 2 {
        return; // it cannot leave
    }
    in_unit("a_thread_that_comes_back_to_a_cpu_is_what_it_became_elsewhere", move || {
        let thread = Told::new();
        for turn in 0..TURNS {
            let (here, there) = (cpus[turn % 2], cpus[(turn + 1) % 2]);
            let (one, two) = (Container::create().unwrap(), Container::create().unwrap());
            let (id_one, id_two) = (one.info().unwrap().id, two.info().unwrap().id);
            let (first, second) = (one.duplicate().unwrap(), two.duplicate().unwrap());
            thread.run(move || {
                pin(0, here).unwrap();
                first.bind_thread().unwrap();
            });
            thread.run(move || assert_eq!(bound_to(&one), id_one)); // here it is remembered with that
            thread.run(move || {
                pin(0, there).unwrap();
                second.bind_thread().unwrap();
            });
            thread.run(move || {
                pin(0, here).unwrap();
                assert_eq!(bound_to(&two), id_two, "turn {turn}");
                fief::unbind(&two).unwrap();
            });
        }
        drop(thread);
        all_end();
    });
}

#[test]
fn a_sleeping_thread_takes_a_request_though_its_cpu_remembers_it() {
    in_unit("a_sleeping_thread_takes_a_request_though_its_cpu_remembers_it", || {
        let thread = Told::new();
        let cpu = cpus()[0];
        thread.run(move || pin(0, cpu).unwrap());
        for turn in 0..TURNS {
            let container = Container::create().unwrap();
            let id = container.info().unwrap().id;
            let asked = container.duplicate().unwrap();
            for _ in 0..3 {
                thread.run_and_sleep();
            }
            container.bind_other(thread.tid).unwrap();
            thread.run(move || {
                assert_eq!(bound_to(&asked), id, "turn {turn}");
                fief::unbind(&asked).unwrap();
            });
        }
        drop(thread);
        all_end();
    });
}
