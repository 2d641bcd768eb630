// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lanes as the kernel side finds them: by network namespace and container, their ends by network namespace and interface. So a
//! policy that moves to another namespace, and fails, has taken nothing of what is in force.

use fief_bpf::map::{self, MapCore, MapFlags};
use fief_bpf::record::{self, Record};
use fief_bpf::{Context, Result, abi, batch};

use super::devices::End;
use crate::Fief;
use crate::veth::Pair;

const LANES: &str = "lanes";
const ENDS: &str = "lane_ends";

/// `of`: slot of a container, index of an interface. The kernel numbers namespaces with 32 bits.
fn key(netns: u64, of: u32) -> abi::fief_lane_key {
    abi::fief_lane_key { netns: u32::try_from(netns).unwrap_or(0), of }
}

impl Fief {
    /// The lane of a container in a network namespace, if it is in use.
    pub(super) fn lane(&self, netns: u64, container: abi::fief_ref) -> Result<Option<abi::fief_lane>> {
        let lane: Option<abi::fief_lane> = record::lookup(&self.map(LANES)?, key(netns, container.id).bytes())?;
        Ok(lane.filter(|lane| lane.container == container))
    }

    /// The containers that have a lane there.
    pub(super) fn laned(&self, netns: u64) -> Result<Vec<abi::fief_ref>> {
        if !self.pins().map(LANES).exists() {
            return Ok(Vec::new());
        }
        let all: Vec<(abi::fief_lane_key, abi::fief_lane)> = batch::entries(&self.map(LANES)?)?;
        Ok(all.into_iter().filter(|(of, _)| u64::from(of.netns) == netns).map(|(_, lane)| lane.container).collect())
    }

    /// Puts a lane into use, whose thread has been given to the container.
    pub(super) fn use_lane(&self, netns: u64, container: abi::fief_ref, pair: Pair, thread: i32) -> Result<()> {
        // one in use goes on counting; what is counted at this moment shows as lost, once
        let lane = self.lane(netns, container)?.filter(|lane| lane.sends == pair.sends).unwrap_or_default();
        let lane = abi::fief_lane { container, sends: pair.sends, thread: thread.cast_unsigned(), ..lane };
        self.write_row(ENDS, key(netns, pair.receives), container.id.bytes())?;
        self.write_row(LANES, key(netns, container.id), lane.bytes())
    }

    /// Before an end goes: packets are sent no more to the lane that it is of.
    pub(super) fn leave_lane(&self, netns: u64, end: &End) -> Result<()> {
        if !self.pins().map(LANES).exists() {
            return Ok(());
        }
        let ends = self.map(ENDS)?;
        let at = key(netns, end.index);
        let slot: Option<u32> = record::lookup(&ends, at.bytes())?;
        if let Some(container) = end.container {
            let sends = self.lane(netns, container)?.is_some_and(|lane| lane.sends == end.index);
            if sends || slot == Some(container.id) {
                map::delete(&self.map(LANES)?, LANES, key(netns, container.id).bytes())?;
            }
        }
        map::delete(&ends, ENDS, at.bytes())
    }

    /// Forgets the lanes but those of which this is true, by network namespace and slot of the container. Of a namespace that is gone
    /// nothing else is left, and another one gets its number.
    pub(super) fn forget_lanes(&self, stays: impl Fn(u64, u32) -> bool) -> Result<()> {
        if !self.pins().map(LANES).exists() {
            return Ok(());
        }
        let lanes = self.map(LANES)?;
        let all: Vec<abi::fief_lane_key> = batch::keys(&lanes)?;
        let old: Vec<_> = all.into_iter().filter(|lane| !stays(lane.netns.into(), lane.of)).collect();
        batch::delete(&lanes, &old)?;
        let ends = self.map(ENDS)?;
        let all: Vec<(abi::fief_lane_key, u32)> = batch::entries(&ends)?;
        let old = all.into_iter().filter(|(end, slot)| !stays(end.netns.into(), *slot));
        batch::delete(&ends, &old.map(|(end, _)| end).collect::<Vec<_>>())
    }

    fn write_row(&self, name: &str, key: abi::fief_lane_key, value: &[u8]) -> Result<()> {
        let map = self.map(name)?;
        map.update(key.bytes(), value, MapFlags::ANY).context(|| format!("cannot write the map {name}"))
    }
}
