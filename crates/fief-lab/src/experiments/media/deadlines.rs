// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A clip of 25 frames a second, in one container with processes that compute, and beside the most hogs: which frames come late, by the
//! order among the container's own threads.

use std::time::Duration;

use super::cast::{Cast, Computing};
use super::clip::Work;
use super::player::Played;
use super::way::{self, Way};
use crate::error::Result;
use crate::experiments::cpu::{Groups, Spinner, Stand};

/// 25 frames a second.
pub const PERIOD: Duration = Duration::from_millis(40);
/// Of the machine, for player, server and companions. By their budgets they have 10 ms in 20, and by this 12.
pub const PERCENT: u32 = 60;
const COMPANIONS: usize = 3;
/// What a frame costs: less than a budget each, so that both are done within two periods, which is one frame's time.
pub const DECODE: Duration = Duration::from_micros(1700);
pub const SHOW: Duration = Duration::from_micros(1300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Without Fief: a cgroup that has the same part, and in it the kernel's own order.
    Kernel,
    Turns,
    Fair,
    Edf,
}

impl Order {
    pub const FIEF: [Order; 3] = [Order::Turns, Order::Fair, Order::Edf];

    /// As a figure's name begins.
    pub fn name(self) -> &'static str {
        match self {
            Order::Kernel => "eevdf",
            Order::Turns => "rr",
            Order::Fair => "fair",
            Order::Edf => "edf",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Order::Kernel => "EEVDF, cgroup weights",
            Order::Turns => "one container, rr",
            Order::Fair => "one container, fair",
            Order::Edf => "one container, edf",
        }
    }

    /// Its lines in the policy.
    fn given(self) -> &'static str {
        match self {
            Order::Kernel | Order::Fair => "",
            Order::Turns => "cpu.policy = \"rr\"",
            Order::Edf => "cpu.policy = \"edf\"\ncpu.period = \"20ms\"\ncpu.budget = \"2ms\"",
        }
    }
}

/// In a container that has the order; the hogs are in theirs.
pub fn by_fief(stand: &mut Stand, work: Work, order: Order, hogs: &[Spinner], length: Duration) -> Result<Played> {
    way::give(stand, &way::ordered(PERCENT, order.given()), hogs.len())?;
    let (cast, companions) = (Way::One.cast(work, None)?, way::companions(COMPANIONS, None)?);
    play(cast, &companions, hogs, length)
}

pub fn by_groups(groups: &Groups, work: Work, hogs: &[Spinner], length: Duration) -> Result<Played> {
    way::weigh(groups, PERCENT, hogs.len())?;
    let (cast, companions) = (Way::Groups.cast(work, Some(groups))?, way::companions(COMPANIONS, Some(groups))?);
    play(cast, &companions, hogs, length)
}

fn play(mut cast: Cast, companions: &[Spinner], hogs: &[Spinner], length: Duration) -> Result<Played> {
    let others = Computing::begin(hogs)?;
    let beside = Computing::begin(companions)?;
    let (played, _) = cast.play(length, PERIOD, Duration::ZERO)?;
    drop((others, beside));
    cast.end()?;
    Ok(played)
}
