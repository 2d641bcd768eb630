// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways round the tree that the kernel leaves to any thread, and what a thread holds up that the tree keeps waiting.

use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::Signal;

use crate::policies::pin;
use crate::report::{Found, Report, text};
use crate::schedule::{Spinner, Verb, apply, held, percents, percents_in, start, start_by, start_part};
use crate::work::spin;

/// Longer than a thread in a critical section of RCU takes to leave it, by some moments; shorter than the one that is better works.
const GRACE: Duration = Duration::from_secs(18);
const OPEN: Duration = Duration::from_secs(10);
/// By so much a better thread may have the CPU too late: one section, and some moments.
const LATE_MS: f64 = 2.5;
const BETTER: Duration = Duration::from_secs(25);
/// Of instructions, as many as the kernel takes in one filter and in all of a thread's.
const FILTER: usize = 4000;
const FILTERS: usize = 8;

pub fn check(report: &mut Report) {
    report.check("a thread that is kept waiting holds up no grace period of the kernel", ends_grace_periods);
    report.check("a thread that walks over long paths keeps no better one waiting", keeps_nobody_waiting);
    report.check("one that follows its sockets and has none is held to a limit", holds_who_has_no_socket);
    report.check("calls under a long filter are held to a limit", holds_who_filters);
}

/// The kernel removes a scheduler under which a grace period of RCU lasts for 21 s.
fn ends_grace_periods() -> Found {
    apply(&[("worse", "cpu.priority = 0"), ("better", "cpu.priority = 200"), ("unused", "cpu.limit = \"50%\"")])?;
    let walks = start_part("worse", "walks")?;
    pin(walks.pid())?;
    walks.signal(Signal::SIGCONT)?;
    let better = start_part("better", "sleeps-and-spins")?;
    pin(better.pid())?;
    better.signal(Signal::SIGCONT)?;
    std::thread::sleep(Duration::from_millis(200));
    let begin = Instant::now();
    grace_period()?;
    let took = begin.elapsed();
    if took > GRACE { Err(format!("{took:.1?}")) } else { Ok(format!("{took:.1?}")) }
}

/// MEMBARRIER_CMD_GLOBAL, which waits for one.
fn grace_period() -> Result<(), String> {
    // SAFETY: the call takes numbers and no pointer.
    #[allow(unsafe_code)]
    match unsafe { libc::syscall(libc::SYS_membarrier, 1, 0, 0) } {
        0 => Ok(()),
        _ => Err(format!("membarrier: {}", std::io::Error::last_os_error())),
    }
}

/// The part `walks`: a long path, again and again. Short enough that an emulated CPU is through with it in a moment.
pub fn walk() -> ! {
    let path = "./".repeat(100);
    loop {
        let _ = std::hint::black_box(std::fs::metadata(&path));
    }
}

/// Nearly all that it does is walk in critical sections of RCU, one behind the other, of half a millisecond each.
fn keeps_nobody_waiting() -> Found {
    apply(&[("worse", "cpu.priority = 0"), ("better", "cpu.priority = 200"), ("unused", "cpu.limit = \"50%\"")])?;
    let walks = start_part("worse", "walks-far")?;
    pin(walks.pid())?;
    walks.signal(Signal::SIGCONT)?;
    let said = Spinner::telling("better", "wakes", pin)?.said()?;
    let late: f64 = said.trim().parse().map_err(|_| format!("the better one said {said:?}"))?;
    if late <= LATE_MS { Ok(format!("{late:.2} ms late")) } else { Err(format!("{late:.2} ms late")) }
}

/// The part `walks-far`: the longest path, again and again.
pub fn walk_far() -> ! {
    let path = "./".repeat(2040);
    loop {
        let _ = std::hint::black_box(std::fs::metadata(&path));
    }
}

/// The part `wakes`: sleeps, and says by how many ms it had the CPU too late, the median.
pub fn wake() {
    const SLEEP: Duration = Duration::from_millis(7);
    let late = |_| {
        let due = Instant::now() + SLEEP;
        std::thread::sleep(SLEEP);
        due.elapsed()
    };
    let mut late: Vec<Duration> = (0..101).map(late).collect();
    late.sort();
    println!("{}", late[late.len() / 2].as_secs_f64() * 1e3);
}

/// What a thread does that follows its sockets is nobody's until it touches one.
fn holds_who_has_no_socket() -> Found {
    apply(&[("limited", "cpu.limit = \"5%\""), ("other", "")])?;
    let limited = start_by(Verb::Follow, &[("limited", 2)])?;
    let others = start(&[("other", 2)])?;
    // what is open is settled by the 40 ms
    held(&[5.0, 94.5], 0.8, || percents_in(OPEN, &["limited", "other"], &[&limited, &others]))
}

/// The part `sleeps-and-spins`.
pub fn sleep_and_spin() -> ! {
    loop {
        std::thread::sleep(Duration::from_millis(5));
        spin(BETTER);
    }
}

/// While a filter runs (seccomp), its thread may not leave its CPU: the kernel does not ask a scheduler that has not asked to be.
fn holds_who_filters() -> Found {
    apply(&[("limited", "cpu.limit = \"5%\""), ("other", "")])?;
    let calls = start_part("limited", "calls-filtered")?;
    calls.signal(Signal::SIGCONT)?;
    let calls = [calls];
    let alone = held(&[5.0], 0.6, || percents(&["limited"], &[&calls]))?;
    let others = [start_part("other", "spin")?, start_part("other", "spin")?];
    others.iter().try_for_each(|other| other.signal(Signal::SIGCONT))?;
    let beside = held(&[5.0], 0.6, || percents(&["limited"], &[&calls]))?;
    Ok(format!("{alone} alone; {beside} beside others"))
}

/// The part `calls-filtered`: calls, each of which runs through as many filters as a thread can have.
pub fn call_filtered() -> ! {
    if let Err(why) = (0..FILTERS).try_for_each(|_| filter()) {
        eprintln!("{why}");
        std::process::exit(1);
    }
    loop {
        std::hint::black_box(nix::unistd::getppid());
    }
}

/// One more, which lets everything pass: it adds ones, and what adds is not answered from the kernel's cache.
fn filter() -> Result<(), String> {
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut code = vec![op(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K, 1); FILTER];
    code.push(op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: the program and its code live for as long as the calls, which take no other pointer.
    #[allow(unsafe_code)]
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(text(std::io::Error::last_os_error())) }
}
