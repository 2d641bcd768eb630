// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A minimal scheduler in the place of the kernel's own, to hold Fief's against. It goes with the guard, and with the process.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, OpenObject};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::open;
use crate::schedule;
use crate::skeleton::yardstick;

/// What the kernel calls it.
const NAME: &str = "yardstick";
/// The kernel stops and starts every thread of the machine to change its scheduler.
const LONGEST_CHANGE: Duration = Duration::from_secs(20);

/// It has the CPUs.
#[derive(Debug)]
pub struct Yardstick {
    link: Link,
}

impl Yardstick {
    /// Errors: this kernel knows no schedulers but its own, or another one has the CPUs.
    pub fn attach() -> Result<Self> {
        schedule::here()?;
        if let Some(other) = schedule::attached() {
            return Err(Error::new(ErrorKind::Exists, format!("the scheduler {other} has the CPUs")));
        }
        let mut place = MaybeUninit::<OpenObject>::uninit();
        let open = yardstick::YardstickSkelBuilder::default().open(&mut place);
        let open = open.context(|| "cannot open the yardstick object".into())?;
        let mut skel = open.load().map_err(|e| open::unsupported("yardstick", &e))?;
        let link = skel.maps.yardstick_ops.attach_struct_ops();
        Ok(Self { link: link.context(|| "the kernel does not take the yardstick".into())? })
    }

    /// Errors: the kernel took it out meanwhile, so that what was measured is of its own scheduler.
    pub fn end(self) -> Result<()> {
        if schedule::attached().as_deref() != Some(NAME) {
            return Err(Error::new(ErrorKind::Other, "the kernel took the yardstick out; `dmesg` tells why"));
        }
        self.link.detach().context(|| "cannot take the yardstick out".into())?;
        drop(self.link);
        let since = Instant::now();
        while schedule::attached().is_some() {
            if since.elapsed() > LONGEST_CHANGE {
                return Err(Error::new(ErrorKind::Other, "the kernel keeps the yardstick, which was detached"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
