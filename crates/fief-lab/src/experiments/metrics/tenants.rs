// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server of many tenants: a container with a name for each, some of which have work in every second, with packets.

use crate::error::{Context, Error, Kind, Result};
use fief::Container;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
/// What one that is active does in a second: as a small request.
const WORK: Duration = Duration::from_micros(200);

/// `CONTAINERS ACTIVE`: makes them, says so, and keeps on until its input ends.
pub fn main(arguments: &[String]) -> Result<()> {
    let numbers: Option<Vec<usize>> = arguments.iter().map(|word| word.parse().ok()).collect();
    let Some(&[containers, active]) = numbers.as_deref() else {
        return Err(Error::new(Kind::Usage, "tenants are two numbers: how many, and how many of them are active"));
    };
    let (descriptors, fail) = ((containers + 256) as u64, "have a descriptor for each tenant");
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context(fail)?;
    setrlimit(Resource::RLIMIT_NOFILE, descriptors, most.max(descriptors)).context(fail)?;
    let tenants: Vec<Container> = (0..containers).map(tenant).collect::<Result<_>>()?;
    let mut output = std::io::stdout();
    writeln!(output, "ready").and_then(|()| output.flush()).context("say that it is ready")?;
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    // ends with the process
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
    });
    let apart = (containers / active.max(1)).max(1);
    for turn in 0.. {
        let begun = Instant::now();
        for at in 0..active.min(containers) {
            // others in each second
            work(&tenants[(turn + at * apart) % containers])?;
        }
        if ended.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(SECOND.saturating_sub(begun.elapsed()));
    }
    Ok(())
}

fn tenant(number: usize) -> Result<Container> {
    let fail = "make a container for a tenant";
    let tenant = Container::create().context(fail)?;
    tenant.set_name(&format!("tenant-{number}")).context(fail)?;
    Ok(tenant)
}

/// Time, and packets to nobody.
fn work(tenant: &Container) -> Result<()> {
    let fail = "work for a tenant";
    let _bound = tenant.bind().context(fail)?;
    let socket = UdpSocket::bind("127.0.0.1:0").context(fail)?;
    tenant.assign(&socket).context(fail)?;
    let own = socket.local_addr().context(fail)?;
    for length in [200, 1400, 700] {
        socket.send_to(&[0; 1400][..length], own).context(fail)?;
        socket.recv_from(&mut [0; 1400]).context(fail)?;
    }
    let until = Instant::now() + WORK;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    Ok(())
}
