// SPDX-License-Identifier: Apache-2.0 OR MIT
//! More containers want the CPU than the scheduler has queues for.

use std::sync::{Arc, Barrier};
use std::thread::Builder;
use std::time::Instant;

use fief::Container;
use nix::sys::resource::{Resource, setrlimit};

use crate::command::objects;
use crate::report::{Found, Report};
use crate::schedule::{DEADLINE, apply, must, near, percents, start, start_managed};
use crate::work::{until_told, without_end};

/// More than one application gets queues for.
const CROWD: usize = 2500;
/// Of each of its threads.
const STACK: usize = 64 << 10;

pub fn check(report: &mut Report) {
    report.check("shares are held beside an application with very many containers", holds_shares);
}

fn holds_shares() -> Found {
    apply(&[("shop", "cpu.share = \"60%\""), ("site", "")])?;
    let crowd = start_managed("site", "crowds")?;
    crowd.tell()?;
    let since = Instant::now();
    while unqueued()? == 0 {
        if since.elapsed() > DEADLINE {
            return Err("all have a queue".into());
        }
    }
    let shop = start(&[("shop", 2)])?;
    percents(&["shop"], &[&shop])?; // what was begun before
    let figures = near(&percents(&["shop"], &[&shop])?, &[60.0], 3.0)?;
    must(true)?;
    Ok(format!("{figures}; {} times without a queue", unqueued()?))
}

fn unqueued() -> Result<u64, String> {
    let system = objects(&["show", "system"])?;
    let counts = system.first().and_then(|one| one["scheduler"].as_array()).ok_or("no scheduler")?;
    let count = counts.iter().find(|one| one["event"] == "unqueued").and_then(|one| one["count"].as_u64());
    count.ok_or_else(|| "no such count".into())
}

/// The part `crowds`: once it is told to, very many containers with a thread each, which compute from when all are there.
pub fn crowd() -> ! {
    until_told();
    let most = CROWD as u64 + 64;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("root may");
    let gate = Arc::new(Barrier::new(CROWD + 1));
    for _ in 0..CROWD {
        let (made, gate) = (Container::create().expect("it is managed"), gate.clone());
        let thread = Builder::new().stack_size(STACK).spawn::<_, ()>(move || {
            made.bind_thread().expect("its own container");
            gate.wait();
            without_end()
        });
        thread.expect("room for a thread");
    }
    gate.wait();
    without_end()
}
