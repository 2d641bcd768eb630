// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lazy receiver processing: a lane for each class of a listener with `[listener.X.lrp]`. A kernel thread with the priority of
//! the class does the receive work, which is charged to the class.
//!
//! Lanes are made before a policy comes into force; those that were there are changed and removed after it: packets always find theirs,
//! and a policy that fails has changed none. The network namespace of the lanes is written down first, so that the next command after a
//! kill finds them. What it is known by there, namespace and number, is a lane's alone: while a policy moves, both namespaces have lanes
//! of its containers.

mod devices;
mod former;
mod place;
mod rows;
mod settings;

use std::collections::{BTreeMap, HashMap};

use fief_bpf::admin::Admin;
use fief_bpf::map::{MapCore, MapFlags};
use fief_bpf::table::Table;
use fief_bpf::{Context, Error, ErrorKind, Result, abi, batch, lane, process};
use fief_policy::{Listener, Policy};

use crate::Fief;
use crate::front::Doors;
use crate::links::{self, Link};
use crate::namespace::{Known, sees_all_processes, within};
use crate::police;
use crate::schedule::nice_of;
use crate::tree::Tree;
use crate::veth::{self, Pair};
pub(crate) use former::FormerLanes;

/// A lane as it is now.
#[derive(Debug, Clone)]
pub struct LaneView {
    /// Path of the container.
    pub container: String,
    /// The interface that its thread polls.
    pub interface: String,
    /// The kernel thread, by number.
    pub thread: Option<i32>,
    /// Segments that came in.
    pub entered: u64,
    /// Of these, taken up by the thread.
    pub left: u64,
    /// Segments that found the queue full.
    pub discarded: u64,
}

/// A container that a policy wants a lane for.
#[derive(Debug, Clone, Copy)]
struct Wanted<'a> {
    container: abi::fief_ref,
    path: &'a str,
    priority: u32,
}

/// The containers of the classes of every listener that wants lanes, by slot.
fn wanted<'a>(policy: &'a Policy, containers: &HashMap<String, abi::fief_ref>) -> BTreeMap<u32, Wanted<'a>> {
    let listeners = policy.listeners.iter().filter(|listener| listener.lrp.is_some());
    listeners
        .flat_map(Listener::class_paths)
        .filter_map(|path| {
            let container = *containers.get(path)?;
            let priority = policy.container(path)?.cpu.priority;
            Some((container.id, Wanted { container, path, priority }))
        })
        .collect()
}

/// Priority 0 runs when nothing else wants its CPU.
fn nice(priority: u32) -> Option<i32> {
    (priority > 0).then(|| nice_of(priority))
}

/// Both ends of a container's lane, if they are there.
fn pair_of(ends: &[devices::End], container: abi::fief_ref) -> Option<Pair> {
    let index = |receives: bool| {
        let fits = |end: &&devices::End| end.receives == receives && end.container == Some(container);
        ends.iter().find(fits).map(|end| end.index)
    };
    Some(Pair { sends: index(false)?, receives: index(true)? })
}

/// The thread of a lane, at the container's priority.
fn schedule_lane(receives: u32, want: &Wanted<'_>) -> Result<i32> {
    let thread = devices::thread(receives)?.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "the kernel does not tell which thread polls an interface")
            .remedy("use a kernel of 6.8 or later")
    })?;
    process::set_thread_nice(thread, nice(want.priority))
        .context(|| format!("cannot set the priority of thread {thread}"))?;
    Ok(thread)
}

impl Fief {
    /// Makes the lanes of a policy that is being built in `slot`, beside those in force.
    pub(crate) fn stage_lanes(
        &self,
        policy: &Policy,
        containers: &HashMap<String, abi::fief_ref>,
        slot: u32,
        doors: &Doors,
        admin: &Admin,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let wanted = wanted(policy, containers);
        if wanted.is_empty() {
            return if self.pins().map("lane_levels").exists() { self.write_levels(slot, &[]) } else { Ok(()) };
        }
        if !sees_all_processes() {
            let what = "lanes have threads, whose numbers in the machine's PID namespace are others than here";
            return Err(Error::new(ErrorKind::Unsupported, what).remedy("run fief in that one (--pid=host)"));
        }
        lane::install(self.pins())?;
        self.remember_place(doors.netns.known)?;
        let all = links::list()?.into_iter().filter(|link| doors.interfaces.contains(&link.index));
        let (plain, others): (Vec<Link>, Vec<Link>) = all.partition(|link| link.ethernet && link.master.is_none());
        for skipped in others {
            notes.push(format!("{} feeds no lane: it is no Ethernet interface of its own", skipped.name));
        }
        for strict in plain.iter().filter(|interface| settings::is_strict(&interface.name)) {
            let name = &strict.name;
            notes.push(format!("the strict reverse path filter of {name} is a loose one for what takes a lane"));
        }
        let names: Vec<_> = plain.iter().map(|interface| interface.name.as_str()).collect();
        for want in wanted.values() {
            self.stage_lane(want, &names, doors.netns.inode, admin)
                .map_err(|e| Error::new(e.kind(), format!("lane of {}: {e}", want.path)))?;
        }
        self.write_levels(slot, &policy.listeners.iter().collect::<Vec<_>>())?;
        plain.iter().try_for_each(|interface| lane::attach_sorter(self.pins(), doors.netns.inode, interface.index))
    }

    /// One lane: found as it is, or made, and its thread given to the container. One in use is left alone, until the policy is in force.
    fn stage_lane(&self, want: &Wanted<'_>, interfaces: &[&str], netns: u64, admin: &Admin) -> Result<()> {
        let scope = self.pins().scope();
        let names = devices::names(scope, want.container.id);
        let there: Vec<_> = devices::ends(scope)?.into_iter().filter(|end| names.contains(&end.name)).collect();
        let in_use = self.lane(netns, want.container)?.map(|lane| lane.sends);
        if pair_of(&there, want.container).is_some_and(|pair| Some(pair.sends) == in_use) {
            return Ok(());
        }
        for end in &there {
            self.leave_lane(netns, end)?;
            veth::remove(end.index)?;
        }
        let pair = devices::make(scope, want.container)?;
        devices::set_offloads(pair)?;
        settings::copy(&names[0], &names[1], interfaces)?;
        lane::attach_end(self.pins(), netns, pair.receives)?;
        devices::raise(scope, want.container, want.path, pair)?;
        // it has a poll, which a thread can do, only from now on
        devices::set_threaded(&names[1])?;
        let thread = schedule_lane(pair.receives, want)?;
        admin.place_task(thread, want.container, 0)?;
        self.use_lane(netns, want.container, pair, thread)
    }

    /// In the policy's network namespace, once it is in force: its lanes have its priorities, and are again as they were made, whoever
    /// changed them.
    fn tend_lanes(&self, wanted: &BTreeMap<u32, Wanted<'_>>, netns: u64) -> Result<()> {
        let scope = self.pins().scope();
        let ends = devices::ends(scope)?;
        let tend = |want: &Wanted<'_>| -> Result<()> {
            let gone = || Error::new(ErrorKind::NotFound, format!("the lane of {} is gone", want.path));
            let pair = pair_of(&ends, want.container).ok_or_else(gone)?;
            devices::set_offloads(pair)?;
            devices::raise(scope, want.container, want.path, pair)?;
            if devices::thread(pair.receives)?.is_none() {
                devices::set_threaded(&devices::names(scope, want.container.id)[1])?;
            }
            let thread = schedule_lane(pair.receives, want)?;
            let placed = self.lane(netns, want.container)?.map(|lane| lane.thread.cast_signed());
            if placed != Some(thread) {
                Admin::open(self.pins())?.place_task(thread, want.container, 0)?;
                self.use_lane(netns, want.container, pair, thread)?;
            }
            Ok(())
        };
        wanted.values().map(tend).fold(Ok(()), Result::and)
    }

    /// From which level on each listener's packets take their lanes, and the ports of those that ever do.
    fn write_levels(&self, slot: u32, listeners: &[&Listener]) -> Result<()> {
        let mut levels = vec![0u32; abi::FIEF_MAX_LISTENERS as usize];
        let mut ports = vec![0u64; abi::FIEF_PORT_WORDS as usize];
        let indexes = self.steer_tables()?.indexes(slot as u8)?;
        for listener in listeners {
            let Some(lrp) = listener.lrp else { continue };
            let level = u32::from(police::level(lrp.when));
            for address in listener.addresses() {
                let port = usize::from(address.port());
                ports[port / 64] |= 1 << (port % 64);
                if let Some(index) = indexes.get(&address) {
                    levels[usize::from(*index)] = 1 + level;
                }
            }
        }
        let first = slot * abi::FIEF_MAX_LISTENERS;
        let entries: Vec<_> = (first..).zip(levels).collect();
        batch::update(&self.map("lane_levels")?, &entries)?;
        let bytes: Vec<u8> = ports.into_iter().flat_map(u64::to_ne_bytes).collect();
        self.write_map("lane_ports", slot, &bytes)
    }

    /// After a policy came into force: removes the lanes that it does not want.
    pub(crate) fn retire_lanes(
        &self,
        policy: &Policy,
        containers: &HashMap<String, abi::fief_ref>,
        doors: &Doors,
    ) -> Result<()> {
        let places = self.places();
        if places.is_empty() {
            return Ok(());
        }
        let wanted = wanted(policy, containers);
        let here = doors.netns.known;
        let sorted: Vec<_> = match wanted.is_empty() {
            true => Vec::new(),
            false => doors.interfaces.iter().map(|&interface| (here.inode, interface)).collect(),
        };
        let mut done = lane::detach_sorters(self.pins(), &sorted);
        done = done.and(self.tend_lanes(&wanted, here.inode));
        let mut left = Vec::new();
        for netns in places {
            let stays = |end: &devices::End| {
                let container = end.container.and_then(|container| wanted.get(&container.id));
                netns.is(here) && container.is_some_and(|want| Some(want.container) == end.container)
            };
            let removed = self.remove_ends(netns, stays);
            if removed.is_err() || netns.is(here) && !wanted.is_empty() {
                left.push(netns);
            }
            // a failure must not keep those of the others
            done = done.and(removed);
        }
        done.and(self.forget_lanes(|netns, slot| netns == here.inode && wanted.contains_key(&slot)))
            .and(lane::forget_ends(self.pins()))
            .and(self.write_places(&left))
    }

    /// Removes every lane of this scope, in whichever network namespace it is. What cannot be removed stays noted, for the next
    /// `fief down`.
    pub(crate) fn remove_lanes(&self) -> Result<()> {
        let mut done = lane::detach_sorters(self.pins(), &[]);
        let mut left = Vec::new();
        for netns in self.places() {
            // nothing sends packets there any more, and the maps may be another version's
            let scope = self.pins().scope();
            let remove = || devices::ends(scope)?.iter().try_for_each(|end| veth::remove(end.index));
            let removed = within(netns, remove).map(drop);
            if removed.is_err() {
                left.push(netns);
            }
            done = done.and(removed);
        }
        done.and(lane::forget_ends(self.pins())).and(self.write_places(&left))
    }

    fn remove_ends(&self, netns: Known, stays: impl Fn(&devices::End) -> bool + Sync) -> Result<()> {
        let work = || {
            for end in devices::ends(self.pins().scope())?.into_iter().filter(|end| !stays(end)) {
                // before the interface goes: a packet must not be sent to what is no more
                self.leave_lane(netns.inode, &end)?;
                veth::remove(end.index)?;
            }
            Ok(())
        };
        within(netns, work).map(drop)
    }

    /// The lanes in use, in the order of their containers' slots. Empty without a policy that wants some.
    pub fn lanes(&self) -> Result<Vec<LaneView>> {
        let mut found = Vec::new();
        if !self.installed() {
            return Ok(found);
        }
        let tree = Tree::read(&Table::open(self.pins())?);
        let scope = self.pins().scope();
        for netns in self.places() {
            let read = || {
                let mut ends: Vec<_> = devices::ends(scope)?.into_iter().filter(|end| end.receives).collect();
                ends.sort_by_key(|end| end.container.map(|container| container.id));
                ends.into_iter().map(|end| Ok((devices::thread(end.index)?, end))).collect::<Result<Vec<_>>>()
            };
            for (thread, end) in within(netns, read)?.unwrap_or_default() {
                let Some(container) = end.container else { continue };
                let Some(lane) = self.lane(netns.inode, container)? else { continue };
                let row = tree.rows().iter().find(|row| row.container == container);
                found.push(LaneView {
                    container: row.map_or_else(|| format!("#{}", container.id), |row| tree.path(row)),
                    interface: end.name,
                    thread,
                    entered: lane.entered,
                    left: lane.left,
                    discarded: lane.discarded,
                });
            }
        }
        Ok(found)
    }

    /// Lanes that somebody has removed.
    pub(crate) fn lane_problems(&self, tree: &Tree) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        for netns in self.places() {
            let Some(ends) = within(netns, || devices::ends(self.pins().scope()))? else { continue };
            for of in self.laned(netns.inode)?.into_iter().filter(|of| pair_of(&ends, *of).is_none()) {
                let path = tree.row(of).map_or_else(|| format!("#{}", of.id), |row| tree.path(row));
                problems.push(format!(
                    "the lane of {path} is gone, and its packets are received as all others; apply the policy again"
                ));
            }
        }
        Ok(problems)
    }

    fn write_map(&self, name: &str, key: u32, value: &[u8]) -> Result<()> {
        self.map(name)?
            .update(&key.to_ne_bytes(), value, MapFlags::ANY)
            .context(|| format!("cannot write the map {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
version = 1
[container.all]
[container.dear]
[container.last]
cpu.priority = 0
[container.other]
[listener.web]
address = "0.0.0.0:80"
admit = true
unproven = { rate = 100 }
isolate = { above = 10, for = "1s", into = "last" }
[listener.web.lrp]
when = "always"
[[listener.web.client]]
from = ["any"]
container = "all"
[[listener.web.request]]
path = "/dear"
container = "dear"
[listener.plain]
address = "0.0.0.0:81"
[[listener.plain.client]]
from = ["any"]
container = "other"
"#;

    /// Without a lane their packets would be received before those of all classes.
    #[test]
    fn who_is_isolated_has_a_lane_as_every_class_of_the_listener() {
        let policy = fief_policy::parse(POLICY, "test.toml").expect("a policy");
        let names = ["all", "dear", "last", "other"];
        let refs = (1..).map(|id| abi::fief_ref { id, generation: 1 });
        let containers = names.iter().map(|&name| name.to_owned()).zip(refs).collect();
        let lanes: Vec<_> = wanted(&policy, &containers).into_values().map(|want| want.path).collect();
        assert_eq!(lanes, ["all", "dear", "last"]);
    }
}
