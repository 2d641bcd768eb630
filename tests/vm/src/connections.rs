// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A container for each connection, all of one server on one CPU: a long transfer beside short requests (Banga et al. 1999, section 4.8:
//! who has used much goes behind who has used little). Of the connections only the containers are real: a transfer is a process that
//! computes, and a request a spell of this process's own thread. No byte is sent, so nothing of what the kernel does to receive is in it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fief::Container;
use nix::unistd::Pid;

use crate::command::{WHOLE, run_part};
use crate::policies::pin;
use crate::report::{Found, Report, text};
use crate::work::spin;

const TRANSFERS: usize = 4;
const SHORT: Duration = Duration::from_millis(1);
/// Many slices: what is more than its part it pays for.
const LONG: Duration = Duration::from_millis(400);
/// From one request to the next.
const PAUSE: Duration = Duration::from_millis(20);
const REQUESTS: usize = 60;
/// A slice, rounded up to the tick, and the request.
const MOST: Duration = Duration::from_millis(6);

pub fn check(report: &mut Report) {
    report.check("a short connection waits for no long one's past, with a container each", is_not_behind);
}

fn is_not_behind() -> Found {
    run_part(WHOLE, "serves-connections")
}

/// The part `serves-connections`.
pub fn serve() -> Found {
    pin(Pid::this())?;
    let program = std::env::current_exe().map_err(text)?;
    let mut transfers = Vec::new();
    for _ in 0..TRANSFERS {
        let connection = Container::create().map_err(text)?;
        let bound = connection.bind().map_err(text)?;
        // it inherits the binding and the CPU
        let transfer = Command::new(&program).arg("spin").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        drop(bound);
        transfers.push((connection, transfer.map_err(text)?));
    }
    let found = requests(&transfers.iter().map(|(connection, _)| connection).collect::<Vec<_>>());
    for (_, transfer) in &mut transfers {
        transfer.kill().and_then(|()| transfer.wait()).map_err(text)?;
    }
    found
}

/// One of `work` in a connection of its own; how long it takes.
fn request(work: Duration) -> Result<Duration, String> {
    std::thread::sleep(PAUSE);
    let connection = Container::create().map_err(text)?;
    let begin = Instant::now();
    let bound = connection.bind().map_err(text)?;
    spin(work);
    let took = begin.elapsed();
    drop(bound);
    Ok(took)
}

fn requests(transfers: &[&Container]) -> Found {
    std::thread::sleep(Duration::from_millis(500));
    let mut took = (0..REQUESTS).map(|_| request(SHORT)).collect::<Result<Vec<_>, _>>()?;
    took.sort();
    let short = took[REQUESTS * 9 / 10];
    let parts = request(LONG)?.as_secs_f64() / LONG.as_secs_f64();
    let used = || -> Result<u64, String> {
        transfers.iter().map(|one| one.usage().map(|usage| usage.thread_ns).map_err(text)).sum()
    };
    let (before, begin) = (used()?, Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let percent = (used()? - before) as f64 * 100.0 / begin.elapsed().as_nanos() as f64;
    let figures = format!(
        "{short:.1?} at p90 for {SHORT:?} of work; {parts:.1} times {LONG:?} beside {TRANSFERS}; these have {percent:.0} % of the CPU"
    );
    let all = TRANSFERS as f64 + 1.0;
    let decays = (all * 0.8..all * 1.05).contains(&parts);
    if short <= MOST && decays && percent > 95.0 { Ok(figures) } else { Err(figures) }
}
