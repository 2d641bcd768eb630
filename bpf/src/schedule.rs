// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scheduler: loaded and attached as a whole while a policy needs one. Its link is pinned, so that it stays without a process.
//!
//! A struct_ops map stands for one attachment, so the object shares the core's maps and none of its own: each time that it is
//! turned on begins with fresh records. The kernel lets one scheduler at a time in, and takes it out by itself when a thread
//! waits for too long or the scheduler fails; then its own scheduler goes on, and the link is of no more effect.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Enum, Enum64};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapHandle, OpenObject, Program};

use crate::abi;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::extension;
use crate::link;
use crate::open;
use crate::order;
use crate::pin::{Pins, make_dir, remove_tree};
use crate::record;
use crate::skeleton::sched;
use crate::sweep;

/// The kernel's own account of schedulers.
const KERNEL: &str = "/sys/kernel/sched_ext";
/// What the kernel calls ours.
const NAME: &str = "fief";
/// Its iterator over threads.
const THREADS: &str = "threads_tell";
const REMEDY: &str = "use a kernel with CONFIG_SCHED_CLASS_EXT, as Debian's of 7.0 or later from its backports";
/// The kernel stops and starts every thread of the machine to change its scheduler.
const LONGEST_CHANGE: Duration = Duration::from_secs(20);

/// Whether the scheduler has the CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheduler {
    /// No policy asked for one.
    Off,
    /// It has them.
    On(Box<abi::fief_sched>),
    /// The kernel took it out, with its reason.
    Ejected(String),
}

/// Whether the kernel takes schedulers, and this build's is one: it is loaded, not attached. The pins are of an installation.
pub fn try_load(pins: &Pins) -> Result<()> {
    extension::try_scheduler().map_err(|e| e.remedy(REMEDY))?;
    with_object(pins, |_| Ok(()))
}

/// Errors: this kernel knows no schedulers but its own.
fn require() -> Result<()> {
    if Path::new(KERNEL).exists() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, "this kernel has no sched_ext").remedy(REMEDY))
}

/// Whether the scheduler can be turned on here, as far as that is known without loading it. Errors: with the reason.
pub fn here() -> Result<()> {
    require()?;
    foreign()
}

/// Errors: a scheduler that is not Fief's has the CPUs.
pub fn foreign() -> Result<()> {
    match attached().filter(|name| name != NAME) {
        Some(other) => Err(Error::new(ErrorKind::Exists, format!("the scheduler {other} has the CPUs"))
            .remedy("stop it, and apply the policy again")),
        None => Ok(()),
    }
}

/// Turns the scheduler on, unless it is. One that the kernel took out is turned on again, fresh.
pub fn install(pins: &Pins) -> Result<()> {
    require()?;
    match state(pins)? {
        Scheduler::On(_) => return Ok(()),
        Scheduler::Ejected(_) => remove(pins)?,
        Scheduler::Off => {}
    }
    if let Some(other) = attached() {
        return Err(Error::new(ErrorKind::Exists, format!("the scheduler {other} has the CPUs"))
            .remedy("stop it, and apply the policy again"));
    }
    turn_on(pins).map(drop)
}

/// The one that has the CPUs goes when this build's is loaded: in between, the kernel's own has them. For how long.
fn turn_on(pins: &Pins) -> Result<Duration> {
    with_object(pins, |object| {
        let since = Instant::now();
        remove(pins)?;
        make_dir(&pins.schedule())?;
        attach(object, pins).inspect_err(|_| {
            // the first error is the one to tell
            let _ = remove_tree(&pins.schedule());
        })?;
        Ok(since.elapsed())
    })
}

fn attach(object: &mut libbpf_rs::Object, pins: &Pins) -> Result<()> {
    // The kernel stops the timers of a map that no process and no pin holds.
    for (name, pin) in [
        ("sched_states", pins.scheduler_state()),
        ("sched_beats", pins.scheduler_timer()),
        ("sched_moments", pins.scheduler_moments()),
        ("sched_turns", pins.scheduler_turns()),
        ("sched_objects", pins.scheduler_objects()),
    ] {
        let map = object.maps_mut().find(|map| map.name() == name).expect("the sched object has them");
        link::pin(map.as_fd(), &pin)?;
    }
    make_dir(&pins.schedule().join("programs"))?;
    for program in object.progs_mut().filter(|program| order::ASK.iter().any(|ask| program.name() == *ask)) {
        let pin = pins.scheduler_program(&program.name().to_string_lossy());
        link::pin(program.as_fd(), &pin)?;
    }
    let threads = object.progs_mut().find(|program| program.name() == THREADS).expect("the sched object has it");
    link::pin(threads.as_fd(), &pins.scheduler_threads())?;
    let mut ops = object.maps_mut().find(|map| map.name() == "sched_ops").expect("the sched object has its operations");
    let mut link = ops
        .attach_struct_ops()
        .context(|| "the kernel does not take the scheduler".into())
        .map_err(|e: Error| e.remedy("`dmesg` tells why"))?;
    link.pin(pins.scheduler_link()).context(|| "cannot pin the link of the scheduler".into())
}

pub(crate) fn with_object<T>(pins: &Pins, work: impl FnOnce(&mut libbpf_rs::Object) -> Result<T>) -> Result<T> {
    let mut place = MaybeUninit::<OpenObject>::uninit();
    let mut open =
        sched::SchedSkelBuilder::default().open(&mut place).context(|| "cannot open the sched object".into())?;
    let size = pins.open_map("containers")?.max_entries();
    let cpus = libbpf_rs::num_possible_cpus().context(|| "cannot count the CPUs".into())? as u32;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the sched object has read-only data");
    rodata.cpu_count = cpus;
    rodata.exec_clock_excludes_softirq = crate::clock::excludes_softirq();
    open.struct_ops.sched_ops_mut().flags &= known_flags()?;
    open.maps.sched_nodes.set_max_entries(size).context(|| "cannot size the table of nodes".into())?;
    open::reuse_maps(open.open_object_mut(), pins)?;
    let mut skel = open.load().map_err(|e| open::unsupported("sched", &e).remedy(REMEDY))?;
    work(skel.object_mut())
}

/// The kernel's enumeration of what it may be asked for with a scheduler, and the name of all of it there.
const FLAGS: (&str, &str) = ("scx_ops_flags", "SCX_OPS_ALL_FLAGS");

/// Other bits it refuses.
fn known_flags() -> Result<u64> {
    let types = Btf::from_vmlinux().context(|| "cannot read the kernel's description of its types".into())?;
    let narrow = types.type_by_name::<Enum<'_>>(FLAGS.0);
    let wide = types.type_by_name::<Enum64<'_>>(FLAGS.0);
    let of_narrow = narrow.iter().flat_map(|all| all.iter()).map(|one| (one.name, one.value as u64));
    let of_wide = wide.iter().flat_map(|all| all.iter()).map(|one| (one.name, one.value as u64));
    let all = of_narrow.chain(of_wide).find(|(name, _)| name.is_some_and(|name| name == FLAGS.1));
    Ok(all.map_or(u64::from(FIRST_FLAGS), |(_, flags)| flags))
}

/// Of every kernel that has schedulers (SCX_OPS_ENQ_LAST, SCX_OPS_ENQ_EXITING), where it does not tell.
const FIRST_FLAGS: u32 = 2 | 4;

/// Turns the scheduler off; the kernel's own has the CPUs when this returns. One that is not on is no error.
pub fn remove(pins: &Pins) -> Result<()> {
    if !pins.schedule().exists() {
        return Ok(());
    }
    let ours = matches!(state(pins), Ok(Scheduler::On(_)));
    if pins.scheduler_link().exists()
        && let Ok(link) = Link::open(pins.scheduler_link())
    {
        // one that the kernel took out is detached already
        let _ = link.detach();
    }
    remove_tree(&pins.schedule())?;
    let since = Instant::now();
    while ours && attached().as_deref() == Some(NAME) {
        if since.elapsed() > LONGEST_CHANGE {
            return Err(Error::new(ErrorKind::Other, "the kernel keeps the scheduler that was detached"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// How it is now.
pub fn state(pins: &Pins) -> Result<Scheduler> {
    if !pins.scheduler_link().exists() {
        return Ok(Scheduler::Off);
    }
    let states =
        MapHandle::from_pinned_path(pins.scheduler_state()).context(|| "cannot open the scheduler's state".into())?;
    let since = Instant::now();
    loop {
        // asked in this order: one that is out has told its reason before
        let leaves = is_leaving();
        let told: abi::fief_sched = record::lookup(&states, &0u32.to_ne_bytes())?.unwrap_or_default();
        if told.exit_kind != 0 {
            return Ok(Scheduler::Ejected(reason_of(&told)));
        }
        if !leaves || since.elapsed() > LONGEST_CHANGE {
            return Ok(Scheduler::On(Box::new(told)));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The threads that are scheduled for several containers each, while it has the CPUs.
pub fn combined(pins: &Pins) -> Result<Vec<abi::fief_combined>> {
    let path = pins.scheduler_threads();
    match Program::fd_from_pinned_path(&path) {
        Ok(threads) => sweep::walk_by(threads.as_fd(), THREADS, None),
        // it is off, or a policy turns it off at this moment
        Err(_) if !path.exists() => Ok(Vec::new()),
        Err(e) => Err(e).context(|| format!("cannot open the program {THREADS}")),
    }
}

/// Why the kernel took it out, in the kernel's words.
pub(crate) fn reason_of(told: &abi::fief_sched) -> String {
    let (reason, message) = (words(&told.exit_reason), words(&told.exit_message));
    match (reason.is_empty(), message.is_empty()) {
        (false, false) => format!("{reason}: {message}"),
        (false, true) => reason,
        (true, false) => message,
        (true, true) => format!("exit {} of the kernel's kinds", told.exit_kind),
    }
}

/// Up to the first zero.
fn words(text: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The scheduler that has the CPUs in the place of the kernel's own, by its name.
pub fn attached() -> Option<String> {
    told_by(Path::new(KERNEL))
}

fn told_by(kernel: &Path) -> Option<String> {
    let enabled = fs::read_to_string(kernel.join("state")).ok()?;
    if enabled.trim() == "disabled" {
        return None;
    }
    let name = fs::read_to_string(kernel.join("root/ops")).unwrap_or_else(|_| "unknown".into());
    Some(name.trim().to_owned())
}

/// Whether the kernel is taking a scheduler out.
fn is_leaving() -> bool {
    fs::read_to_string(Path::new(KERNEL).join("state")).is_ok_and(|state| state.trim() == "disabling")
}

/// This build's scheduler takes over from another's, which stays where this one cannot be loaded. The kernel has no exchange of
/// schedulers: in between, which is as long as both changes take, its own has the CPUs. For how long; `None`: Fief's was not on.
pub fn upgrade(pins: &Pins) -> Result<Option<Duration>> {
    match state(pins)? {
        Scheduler::Off => Ok(None),
        Scheduler::On(_) => turn_on(pins).map(Some),
        Scheduler::Ejected(_) => install(pins).map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(reason: &str, message: &str) -> abi::fief_sched {
        let mut told = abi::fief_sched { exit_kind: 67, ..Default::default() };
        let fill = |room: &mut [std::ffi::c_char], text: &str| {
            room.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from as std::ffi::c_char);
        };
        fill(&mut told.exit_reason, reason);
        fill(&mut told.exit_message, message);
        told
    }

    #[test]
    fn another_scheduler_is_known_by_its_name() {
        let kernel = tempfile::tempdir().expect("a folder");
        assert_eq!(told_by(kernel.path()), None, "a kernel without sched_ext");
        let say = |file: &str, text: &str| fs::write(kernel.path().join(file), text).expect("written");
        say("state", "disabled\n");
        assert_eq!(told_by(kernel.path()), None);
        say("state", "enabled\n");
        assert_eq!(told_by(kernel.path()).as_deref(), Some("unknown"));
        fs::create_dir(kernel.path().join("root")).expect("made");
        say("root/ops", "rusty\n");
        assert_eq!(told_by(kernel.path()).as_deref(), Some("rusty"));
    }

    #[test]
    fn an_ejection_is_told_in_the_kernels_words() {
        let stall = told("runnable task stall", "kworker/1:0[21] failed to run for 30.0s");
        assert_eq!(reason_of(&stall), "runnable task stall: kworker/1:0[21] failed to run for 30.0s");
        assert_eq!(reason_of(&told("disabled by sysrq-S", "")), "disabled by sysrq-S");
        assert_eq!(reason_of(&told("", "a message alone")), "a message alone");
        assert_eq!(reason_of(&told("", "")), "exit 67 of the kernel's kinds");
    }
}
