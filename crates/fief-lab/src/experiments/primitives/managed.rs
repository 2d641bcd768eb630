// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The worker under `fief run`: every operation of the crate `fief` in a loop.

use super::bare::bare_socket;
use super::batch::Costs;
use crate::error::{Context, Result};
use fief::Container;
use fief_testkit::{cpus, pin};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_millis(30);

/// Tells the costs, and keeps Fief in force until its input ends.
pub fn main() -> Result<()> {
    let costs = measure()?;
    super::tell(&costs)?;
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).map(drop).context("wait for the end of input")
}

/// What one rebinding by a call costs, beside the cheapest system call.
pub fn measure_bind(costs: &mut Costs, one: &Container, two: &Container) -> Result<()> {
    costs.measure("getppid", 2000, || {
        std::hint::black_box(nix::unistd::getppid());
        Ok(())
    })?;
    let mut turn = false;
    costs.measure("bind", 1000, || {
        turn = !turn;
        if turn { one.bind_thread() } else { two.bind_thread() }.context("work on a container")
    })
}

fn measure() -> Result<Costs> {
    let last = *cpus().last().expect("a running process has a CPU");
    pin(0, last)?;
    let fail = "work on a container";
    let (one, two) = (Container::create().context(fail)?, Container::create().context(fail)?);
    let mut costs = Costs::default();
    measure_bind(&mut costs, &one, &two)?;
    costs.measure("get_binding", 1000, || fief::current(&one).map(drop).context(fail))?;
    costs.measure("usage", 500, || one.usage().map(drop).context(fail))?;
    costs.measure("get_attributes", 500, || one.attributes().map(drop).context(fail))?;
    costs.measure("set_attribute", 500, || one.set_weight(200).context(fail))?;
    costs.measure("open_binding", 200, || fief::open_current().map(drop).context(fail))?;
    fief::unbind(&one).context(fail)?;
    costs.measure("create_destroy", 300, || Container::create().map(drop).context(fail))?;
    costs.measure("socket_managed", 300, bare_socket)?;
    pass(&mut costs, &one)?;
    contend(&mut costs, &one)?;
    Ok(costs)
}

/// Sends the descriptor over a pair of sockets, receives and closes it.
fn pass(costs: &mut Costs, container: &Container) -> Result<()> {
    let (near, far) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC).context("a socket pair")?;
    costs.measure("pass", 300, || {
        let descriptors = [container.as_fd().as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<()>(near.as_raw_fd(), &[IoSlice::new(b"c")], &rights, MsgFlags::empty(), None)
            .context("pass a container")?;
        receive(&far)
    })
}

fn receive(socket: &OwnedFd) -> Result<()> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([i32; 1]);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)
        .context("receive a container")?;
    for control in message.cmsgs().context("read the passed descriptors")? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for descriptor in descriptors {
                nix::unistd::close(descriptor).context("close a passed container")?;
            }
        }
    }
    Ok(())
}

/// Bind and unbind alone and on two CPUs at once, each thread by a descriptor of its own of one container.
fn contend(costs: &mut Costs, container: &Container) -> Result<()> {
    let cpus = cpus_of_machine();
    let mut alone = f64::INFINITY;
    let mut contended = f64::INFINITY;
    // In turn, so that a slow moment of the machine hits both.
    for _ in 0..8 {
        alone = alone.min(pairs(container, &cpus[..1])?);
        contended = contended.min(pairs(container, &cpus)?);
    }
    costs.put("bind_pair_alone", alone);
    costs.put("bind_pair_contended", contended);
    Ok(())
}

/// The main thread was pinned to one CPU; a fresh look at the machine tells the others.
fn cpus_of_machine() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|word| word.parse().ok()).unwrap_or(0);
    if last == 0 { vec![0] } else { vec![0, last] }
}

/// ns of a pair while all these CPUs are at it. A window and no batches: the fastest batch would be one in which the
/// other thread was not running.
fn pairs(container: &Container, cpus: &[usize]) -> Result<f64> {
    let barrier = Barrier::new(cpus.len());
    let results: Vec<Result<f64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|&cpu| {
                let barrier = &barrier;
                scope.spawn(move || {
                    // Nobody may be missing at the barrier, whatever fails before.
                    let ready = prepared(container, cpu);
                    barrier.wait();
                    in_window(&ready?)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    let costs = results.into_iter().collect::<Result<Vec<f64>>>()?;
    Ok(costs.iter().sum::<f64>() / costs.len() as f64)
}

fn prepared(container: &Container, cpu: usize) -> Result<Container> {
    pin(0, cpu)?;
    container.duplicate().context("duplicate a container's descriptor")
}

fn in_window(container: &Container) -> Result<f64> {
    let begin = Instant::now();
    let mut pairs = 0u32;
    while begin.elapsed() < WINDOW {
        // Few looks at the clock.
        for _ in 0..100 {
            container.bind_thread().context("bind")?;
            fief::unbind(container).context("unbind")?;
        }
        pairs += 100;
    }
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(pairs))
}
