// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy comes into force as a whole: its containers and tables are built next to those in force, then one word is flipped.
//! After a kill before the flip the old policy stands; after the flip, the new one. The next apply sweeps the remains of
//! either.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use fief_bpf::abi;
use fief_bpf::admin::Admin;
use fief_bpf::charging;
use fief_bpf::ingress;
use fief_bpf::open::{self, Config};
use fief_bpf::queue;
use fief_bpf::table::{self, Row, Table};
use fief_bpf::top;
use fief_bpf::upgrade;
use fief_bpf::{Error, ErrorKind, Result};
use fief_policy::Policy;

use crate::front::{Doors, Others};
use crate::homes::{self, LetGo, LostHome};
use crate::namespace::{self, Namespace};
use crate::origin::Source;
use crate::queue::Opened;
use crate::renamed::There;
use crate::schedule::policy_number;
use crate::staging::Staging;
use crate::tree::Tree;
use crate::{Fief, Status, charged, front, guard, made, police, probe, promises, steer};

/// How to apply.
#[derive(Debug, Clone, Default)]
pub struct ApplyOptions {
    /// Size of the container table, if nothing is in force yet; `None`: 65,536.
    pub containers: Option<u32>,
    /// Containers that one unprivileged user may have, if nothing is in force yet; `None`: 4096.
    pub user_quota: Option<u32>,
    /// Although the policy in force is of another network namespace: the front door moves to the caller's.
    pub here: bool,
    /// Although these managed units lose their container by it: they stay in the old ones, which are nobody's accounts any more.
    pub let_go: LetGo,
    /// The policy's file, absolute, which is told of the policy in force; `None`: its text came another way.
    pub file: Option<PathBuf>,
}

/// What applying changed.
#[derive(Debug, Clone, Default)]
pub struct Applied {
    /// Paths of containers that are new.
    pub made: Vec<String>,
    /// Paths of containers that both policies name; their usage goes on.
    pub kept: Vec<String>,
    /// Old and new paths of containers that were renamed; their usage goes on.
    pub renamed: Vec<(String, String)>,
    /// Paths of containers that the new policy no longer names; they live while somebody holds them.
    pub released: Vec<String>,
    /// What the operator should know.
    pub notes: Vec<String>,
}

impl Applied {
    /// Once each: what is wrong with the groups is said when they are made and when a cgroup of theirs has gone.
    fn note(&mut self, notes: Vec<String>) {
        let new: Vec<_> = notes.into_iter().filter(|note| !self.notes.contains(note)).collect();
        self.notes.extend(new);
    }

    fn swept(&mut self, swept: Result<Vec<String>>) {
        let swept = swept.map(|notes| self.note(notes));
        self.told("not all that has gone is forgotten", swept);
    }

    /// If `done` failed, a note says so, and the apply goes on: the policy is in force, and an error would say that the former one still
    /// is. The next apply tries it again.
    fn told(&mut self, what: &str, done: Result<()>) {
        self.note(done.err().map(|error| format!("the policy is in force, but {what}: {error}")).into_iter().collect());
    }
}

/// Between the scheduler of the version before and this one's.
fn gap(unscheduled: Duration) -> String {
    let ms = unscheduled.as_secs_f64() * 1e3;
    format!(
        "the kernel has no exchange of schedulers: its own had the CPUs for {ms:.1} ms, until this version's took over"
    )
}

/// A policy that has come into force.
struct Flipped {
    /// By path.
    containers: HashMap<String, abi::fief_ref>,
    doors: Doors,
    orders_attached: bool,
    /// Requests of former queues that the server did not take.
    opened: Opened,
}

/// In a slot that is not in force no container is named yet. One that stays so keeps what it is in force with until it is let go of: its
/// limit, and whether its usage is passed up; but for its share, which the new policy may give others.
fn unname(admin: &Admin, tree: &Tree, slot: u32) -> Result<()> {
    for row in tree.rows().iter().filter(|row| row.record.flags & abi::FIEF_CONTAINER_POLICY != 0) {
        let was = row.record.attributes[1 - slot as usize];
        // the number of an object is another one's by the time that the slot is in force
        let policy = if was.policy >= abi::FIEF_POLICY_OBJECT { abi::FIEF_POLICY_FAIR } else { was.policy };
        let attributes = abi::fief_attributes { named: 0, share_ppm: 0, reserved_ppm: 0, programs: 0, policy, ..was };
        admin.stage_attributes(row.container, slot, attributes)?;
    }
    Ok(())
}

/// Lets go of the containers that only older policies named. Whom applications still hold lives on below the nearest container
/// above that stays, and not with strangers: a policy's containers are somebody's accounts.
fn release_unnamed(admin: &Admin, tree: &Tree, slot: u32, applied: &mut Applied) -> Result<()> {
    let is_named = |row: &Row| row.record.attributes[slot as usize].named != 0;
    let mut failed = Ok(());
    for row in tree.of_policy().into_iter().filter(|row| !is_named(row)) {
        let heir = tree.nearest_above(row, is_named);
        match admin.release(row.container, abi::FIEF_CONTAINER_POLICY, Some(heir)) {
            Ok(()) => applied.released.push(tree.path(row)),
            Err(e) => failed = failed.and(Err(e)),
        }
    }
    failed
}

impl Fief {
    /// Puts a policy into force, instead of the one that was. `text` is kept beside it.
    ///
    /// Errors leave what was in force; what fails once the policy is, its notes tell. [`ErrorKind::Exists`]: one is in force in another
    /// network namespace, and `here` is not said; or managed units lose their container that are not to `let_go`.
    pub fn apply(&self, policy: &Policy, text: &str, options: &ApplyOptions) -> Result<Applied> {
        let _lock = self.lock()?;
        self.apply_locked(policy, text, options)
    }

    /// As [`Fief::apply`], with the status afterwards. That is read while the kernel is waited for, by whom lost references are
    /// looked for, and needs no lock: how long it takes is for those to say whose descriptors are looked at.
    pub fn apply_and_look(
        &self,
        policy: &Policy,
        text: &str,
        options: &ApplyOptions,
    ) -> Result<(Applied, Result<Status>)> {
        let lock = self.lock()?;
        let (mut applied, fresh) = self.put_in_force(policy, text, options)?;
        let (swept, status) = std::thread::scope(|scope| {
            let swept = scope.spawn(move || {
                let _lock = lock;
                if fresh { Ok(Vec::new()) } else { self.sweep_lost() }
            });
            let status = self.status();
            (swept.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), status)
        });
        applied.swept(swept);
        Ok((applied, status))
    }

    pub(crate) fn apply_locked(&self, policy: &Policy, text: &str, options: &ApplyOptions) -> Result<Applied> {
        let (mut applied, fresh) = self.put_in_force(policy, text, options)?;
        if !fresh {
            applied.swept(self.sweep_lost());
        }
        Ok(applied)
    }

    /// Without the search for lost references; with it, whether nothing was in force before. The state is locked.
    fn put_in_force(&self, policy: &Policy, text: &str, options: &ApplyOptions) -> Result<(Applied, bool)> {
        let fresh = !self.installed();
        self.refuse_elsewhere(options.here)?;
        let lost = if fresh { Vec::new() } else { self.lost_homes(policy)? };
        homes::refuse_lost(&lost, &options.let_go)?;
        let mut unscheduled = None;
        if fresh {
            let default = Config::default();
            let config = Config {
                containers: options.containers.unwrap_or(default.containers),
                user_quota: options.user_quota.unwrap_or(default.user_quota),
            };
            probe::require_basics()?;
            open::install(self.pins(), &config)?;
        } else if table::control(self.pins())?.build != fief_bpf::build() {
            // another version's programs: this one's take over, and the containers go on
            unscheduled = upgrade::upgrade(self.pins())?.unscheduled;
            self.attach_orders_again()?;
        }
        let applied = self.swap(policy, Source { text, file: options.file.as_deref() }, &lost);
        if fresh && applied.is_err() {
            // nothing was in force before, so nothing is now; the first error is the one to tell
            let _ = self.remove_all();
        }
        let mut applied = applied?;
        applied.note(unscheduled.map(gap).into_iter().collect());
        applied.told("the next `fief run` may take it down", self.forget_dead_run());
        if !fresh {
            applied.swept(self.sweep_gone());
            // after units that are gone are forgotten
            applied.told("CPU time may be charged as before", self.settle_charging(Some(policy)));
        }
        if !fresh && (options.containers.is_some() || options.user_quota.is_some()) {
            applied.notes.push("the container table's size and the users' quota are fixed until `fief down`".into());
        }
        Ok((applied, fresh))
    }

    /// Only one network namespace is guarded: a policy that is applied by mistake in that of a container leaves the servers of
    /// the other without their front door. Errors: [`ErrorKind::Exists`].
    pub fn refuse_elsewhere(&self, here: bool) -> Result<()> {
        let own = Namespace::of_caller()?.inode;
        let steered = if self.installed() { open::steered(self.pins()) } else { None };
        let other = steered.map(|netns| netns.inode);
        let other = other.filter(|netns| *netns != own && open::is_there(self.pins(), *netns));
        let Some(other) = other.filter(|_| !here) else { return Ok(()) };
        // a process that sees neither its name nor its processes cannot name a way to it
        let place = namespace::place(other).map_or_else(|| format!("net:[{other}]"), |path| path.display().to_string());
        let what = format!("the policy in force is of another network namespace ({place})");
        Err(Error::new(ErrorKind::Exists, what)
            .remedy("run fief there (nsenter --net=...), or move the front door to this one by `fief apply --here`"))
    }

    fn swap(&self, policy: &Policy, source: Source<'_>, lost: &[LostHome]) -> Result<Applied> {
        let admin = Admin::open(self.pins())?;
        let table = Table::open(self.pins())?;
        let slot = 1 - table.policy().0;
        let mut applied = Applied::default();
        let before = Tree::read(&table);
        let there = There::of(policy, &before);
        let changed = self.changed_listeners(policy, before.slot, &there.renamed)?;
        let former = self.former()?;
        let flipped =
            unname(&admin, &before, slot).and_then(|()| self.flip(policy, source, &admin, &there, slot, &mut applied));
        if flipped.is_err() {
            self.go_back(&admin, &table, &before, &former);
        }
        let Flipped { containers, doors, orders_attached, opened } = flipped?;
        applied.notes.extend(there.rename(&admin, &containers));
        // what is counted from here on is of the new rules; and nothing else comes before the CPU is divided as the policy says
        applied.told("counters of old rules stand for new ones", self.forget_rules_of(&changed));
        let scheduled = self.schedule(policy, slot, orders_attached, &mut applied.notes);
        applied.told("shares, weights and limits of the CPU may not be as it says", scheduled);
        applied.notes.extend(opened.notes());
        self.clear_former(policy, &containers, &doors, &mut applied);
        applied.note(self.move_homes(lost));
        let now = before.now(&table, containers.values());
        applied.note(promises::broken(&now));
        let released = release_unnamed(&admin, &now, slot, &mut applied);
        applied.told("containers stay that it does not name", released);
        if !applied.released.is_empty() {
            // who is left in one of them has another place in the tree now
            let mut notes = Vec::new();
            self.refresh_groups(&mut notes);
            applied.note(notes);
        }
        applied.told("counters of what it does not name stay", self.prune_verdicts(&table));
        Ok(applied)
    }

    /// Takes away what the former policy had and the one in force does not want.
    fn clear_former(
        &self,
        policy: &Policy,
        containers: &HashMap<String, abi::fief_ref>,
        doors: &Doors,
        applied: &mut Applied,
    ) {
        applied.told("queues stay that it does not name", self.remove_queues(&doors.queues));
        applied.told("the clock of former queues stays", self.retire_ticks(doors.ticks));
        if !made::wanted(policy) {
            applied.told("a program stays that it does not need", top::detach(self.pins()));
        }
        let detached = ingress::detach_others(self.pins(), &doors.stands());
        applied.told("the front door stays where it does not guard", detached);
        applied.told("connections are steered that need not be", self.stop_steering(policy, doors));
        let restored = self.restore_sysctls(doors.netns.known, &doors.sysctls);
        applied.told("sysctls stay as the former one had them", restored);
        applied.told("lanes stay that it does not want", self.retire_lanes(policy, containers, doors));
        applied.told("labels of files are kept that it does not want", self.retire_files());
    }

    /// Builds the policy in a slot that is not in force, and puts that into force. An error: it is not, so that all of it can be undone.
    fn flip(
        &self,
        policy: &Policy,
        source: Source<'_>,
        admin: &Admin,
        there: &There,
        slot: u32,
        applied: &mut Applied,
    ) -> Result<Flipped> {
        let (containers, doors) = self.stage(policy, source, admin, there, slot, applied)?;
        let orders_attached = self.attach_orders_early(policy, slot, &mut applied.notes)?;
        // as late as can be: what it lets go does not come back
        let (opened, done) = self.open_queues(&doors.queues);
        let flipped = done.and_then(|()| admin.flip(slot));
        flipped.map_err(|error| opened.in_vain().into_iter().fold(error, |error, told| error.besides(told)))?;
        Ok(Flipped { containers, doors, orders_attached, opened })
    }

    /// Builds the policy in a slot that is not in force.
    fn stage(
        &self,
        policy: &Policy,
        source: Source<'_>,
        admin: &Admin,
        there: &There,
        slot: u32,
        applied: &mut Applied,
    ) -> Result<(HashMap<String, abi::fief_ref>, Doors)> {
        if charged::goes_by_time(policy) {
            charging::attach(self.pins())?;
        }
        let containers = self.stage_containers(policy, admin, there, slot, applied)?;
        self.stage_root(policy, admin, &containers, slot)?;
        let doors = self.stage_listeners(policy, &containers, slot, applied)?;
        self.keep_policy(slot, source.text)?;
        self.keep_origin(slot, source.file, &doors.answers)?;
        self.stage_files(policy, slot)?;
        self.stage_lanes(policy, &containers, slot, &doors, admin, &mut applied.notes)?;
        let needs_made = made::wanted(policy);
        if needs_made {
            applied.notes.extend(self.try_to_keep_made());
        }
        self.open_doors(policy, &doors)?;
        if needs_made {
            applied.notes.extend(self.takers_of_marks(&doors.interfaces));
        }
        Ok((containers, doors))
    }

    /// Makes the containers that are not there and sets everybody's attributes in the slot.
    fn stage_containers(
        &self,
        policy: &Policy,
        admin: &Admin,
        there: &There,
        slot: u32,
        applied: &mut Applied,
    ) -> Result<HashMap<String, abi::fief_ref>> {
        applied.renamed.clone_from(&there.renamed);
        let is_renamed = |path: &str| there.renamed.iter().any(|(_, new)| new == path);
        let (mut made, mut staged) = (HashMap::new(), Vec::new());
        for container in &policy.containers {
            let reference = match there.get(&container.path) {
                Some(reference) => {
                    if !is_renamed(&container.path) {
                        applied.kept.push(container.path.clone());
                    }
                    reference
                }
                None => {
                    let parent = match container.parent() {
                        None => abi::fief_ref { id: abi::FIEF_ROOT, generation: 0 },
                        Some(path) => *made.get(path).ok_or_else(|| {
                            Error::new(
                                ErrorKind::NotFound,
                                format!("the policy lacks the parent of {}", container.path),
                            )
                        })?,
                    };
                    applied.made.push(container.path.clone());
                    admin.create(parent, container.name(), abi::FIEF_CONTAINER_POLICY)?
                }
            };
            let reserved = policy
                .containers
                .iter()
                .filter(|child| child.parent() == Some(&container.path))
                .map(|child| child.cpu.share_ppm)
                .sum();
            let attributes = abi::fief_attributes {
                share_ppm: container.cpu.share_ppm,
                limit_ppm: container.cpu.limit_ppm,
                weight: container.cpu.weight,
                priority: container.cpu.priority,
                memory_max: container.memory_max,
                net_max: container.network.max_bits,
                net_weight: container.network.weight,
                pass_up: container.pass_up.into(),
                descendants_max: container.descendants_max,
                reserved_ppm: reserved,
                named: 1,
                programs: 0,
                policy: policy_number(container.cpu.policy, slot),
                period_us: (container.cpu.period_ns / 1000) as u32,
                budget_us: (container.cpu.budget_ns / 1000) as u32,
                pad: 0,
            };
            made.insert(container.path.clone(), reference);
            staged.push((container, reference, attributes));
        }
        for (container, reference, mut attributes) in staged {
            // which may stand after the one that names it
            let programs = container.programs.as_ref().and_then(|path| made.get(path));
            attributes.programs = programs.map_or(0, |programs| programs.id);
            admin.stage_attributes(reference, slot, attributes)?;
        }
        Ok(made)
    }

    /// Writes listeners, client classes and what guards them into the slot; steers and guards this network namespace.
    fn stage_listeners(
        &self,
        policy: &Policy,
        containers: &HashMap<String, abi::fief_ref>,
        slot: u32,
        applied: &mut Applied,
    ) -> Result<Doors> {
        let netns = Namespace::of_caller()?;
        let (steer, guards) = (self.steer_tables()?, self.guard_tables()?);
        let ticks = self.stage_ticks(policy, &mut applied.notes);
        let interfaces = front::doors(policy, &mut applied.notes)?;
        let mut staging = Staging::open(self, slot, ticks.map_or(0, |pair| pair.sends), &interfaces)?;
        let buckets = &mut staging.buckets;
        let rates: Vec<_> =
            policy.listeners.iter().map(|listener| police::client_rates(policy, listener, buckets)).collect();
        let place = |path: &str| {
            let container = *containers.get(path)?;
            Some(steer::Place { container, priority: policy.container(path)?.cpu.priority })
        };
        let mut indexes = self.listener_indexes()?;
        let steered = steer.stage(&policy.listeners, place, &rates, &mut indexes, &mut staging)?;
        self.note_indexes(&indexes)?;
        self.forget_numbers(&steered.fresh)?;
        let plan = self.prepare_handshake(policy, &netns, &mut applied.notes)?;
        let container = |path: &str| containers.get(path).copied();
        let guarded = guard::stage(policy, &steered.indexed(&policy.listeners), &plan, &mut staging, container)?;
        steer.clear(slot)?;
        guards.clear(slot)?;
        let queues = staging.write(self)?;
        steer.write(&steered)?;
        guards.write(slot, &guarded)?;
        let ticks = ticks.map(|pair| pair.receives);
        Ok(Doors {
            netns,
            interfaces,
            others: Others::of(policy),
            ticks,
            queues,
            sysctls: plan.sysctls,
            answers: plan.answers,
        })
    }

    /// Steers and guards this network namespace. Before the flip, since nothing may come in round the front door; last of
    /// what is staged, since what stands where the old policy has nothing would follow that one's rules.
    fn open_doors(&self, policy: &Policy, doors: &Doors) -> Result<()> {
        if !doors.queues.is_empty() {
            queue::attach_clock(self.pins())?;
        }
        ingress::attach(self.pins(), &doors.stands())?;
        let attach = self.needs_steering(policy, doors)?;
        open::steer(self.pins(), doors.netns.file.as_fd(), doors.netns.known.record(), attach)
    }
}
