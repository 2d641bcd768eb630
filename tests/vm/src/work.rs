// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work whose length the worker itself measures, by the clock of its thread.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use fief::Container;
use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};

use crate::report::text;

/// Long enough that a tick more or less does not matter.
pub const SPELL: Duration = Duration::from_millis(200);

/// What the thread had of the CPUs, by its own clock.
pub fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Works for so long; says how long it was.
pub fn spin(length: Duration) -> u64 {
    let start = thread_ns();
    loop {
        let spent = thread_ns() - start;
        if u128::from(spent) >= length.as_nanos() {
            return spent;
        }
    }
}

/// The part `work`: at each byte of standard input a spell, whose length it prints.
pub fn when_told() {
    let mut byte = [0];
    while std::io::stdin().read(&mut byte).is_ok_and(|n| n == 1) {
        println!("{}", spin(SPELL));
    }
}

/// The part `work-for-descriptor`: a spell for the container whose descriptor is standard input.
pub fn for_descriptor() {
    let fd = std::io::stdin().as_fd().try_clone_to_owned().expect("standard input is open");
    let container = Container::from_fd(fd).expect("standard input is a container");
    let bound = container.bind().expect("the descriptor has all rights");
    println!("{}", spin(SPELL));
    drop(bound);
}

/// Starts this program in the part `work-for-descriptor`, or with `None` in the part `work` for one spell, and waits for
/// it. Says how long it worked.
pub fn in_a_child(container: Option<OwnedFd>) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(text)?;
    let mut command = Command::new(program);
    match container {
        Some(fd) => command.arg("work-for-descriptor").stdin(Stdio::from(fd)),
        None => {
            let (reader, mut writer) = std::io::pipe().map_err(text)?;
            std::io::Write::write_all(&mut writer, b"1").map_err(text)?;
            command.arg("work").stdin(reader)
        }
    };
    let output = command.output().map_err(text)?;
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().map_err(|_| format!("the child said {said:?} {}", String::from_utf8_lossy(&output.stderr)))
}

/// The part `spin`: computes until it is killed.
pub fn without_end() -> ! {
    let mut step = 0u64;
    loop {
        step = std::hint::black_box(step.wrapping_add(1));
    }
}

/// Waits for SIGUSR1.
pub fn until_told() {
    let mut told = SigSet::empty();
    told.add(Signal::SIGUSR1);
    told.thread_block().expect("a signal of ours");
    told.wait().expect("a signal comes");
}
