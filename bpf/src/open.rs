// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads the objects: in order, all of it or nothing. Nothing is attached before somebody needs it, which the table of attachments says.
//!
//! The core owns the shared maps; later objects reuse them by name. Reuse checks nothing by itself, so type, sizes and flags
//! are compared before.

use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::skel::Skel;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::abi;
use crate::admin::Admin;
use crate::attachment;
use crate::error::{Context, Error, ErrorKind, Result, remedy_of};
use crate::load::{self, Places};
use crate::pin::{Pins, make_dir, remove_tree};
use crate::record::{self, Record};
use crate::skeleton::core;
use crate::{ingress, link};

/// What an installation can be told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Size of the container table.
    pub containers: u32,
    /// Containers that one unprivileged user may hold.
    pub user_quota: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { containers: abi::FIEF_DEFAULT_CONTAINERS, user_quota: 4096 }
    }
}

/// Loads everything and puts it into force. Errors: [`ErrorKind::Exists`] if an installation is there.
pub fn install(pins: &Pins, config: &Config) -> Result<()> {
    if pins.exist() {
        return Err(Error::new(ErrorKind::Exists, format!("{} is installed already", pins.scope())));
    }
    if !(64..=abi::FIEF_MAX_CONTAINERS).contains(&config.containers) {
        return Err(Error::new(
            ErrorKind::Other,
            format!("a table of {} containers is not possible; 64 to {}", config.containers, abi::FIEF_MAX_CONTAINERS),
        ));
    }
    listen_to_libbpf();
    let staging = pins.stage()?;
    load(staging.pins(), config)?;
    staging.commit()
}

/// What libbpf prints, the verifier's log among it, goes to who listens to tracing and not to the terminal.
pub(crate) fn listen_to_libbpf() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, |_, text| tracing::debug!("{}", text.trim_end()))));
}

fn load(pins: &Pins, config: &Config) -> Result<()> {
    let mut places = Places::new();
    let (mut core, mut front) = load::both(&mut places, pins, config.containers)?;
    pin_programs(core.object_mut(), pins)?;
    pin_programs(front.object_mut(), pins)?;

    let control = abi::fief_control {
        abi_version: abi::FIEF_ABI_VERSION,
        containers: config.containers,
        user_quota: config.user_quota,
        build: crate::build(),
        ..Default::default()
    };
    crate::record::update(&pins.open_map("controls")?, 0, &control)?;
    Admin::open(pins)?.init(config.containers)?;
    crate::secret::set(pins)?;
    crate::queue::set_mark(pins)
}

/// What the core is told before it is loaded.
pub(crate) fn configure(
    open: &mut core::OpenCoreSkel<'_>,
    containers: u32,
    task_storage_in_cgroup: bool,
) -> Result<()> {
    let cpus = libbpf_rs::num_possible_cpus().context(|| "cannot count the CPUs".into())? as u32;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the core object has read-only data");
    rodata.cpu_count = cpus;
    rodata.exec_clock_excludes_softirq = crate::clock::excludes_softirq();
    rodata.task_storage_in_cgroup = task_storage_in_cgroup;
    open.maps.containers.set_max_entries(containers).context(|| "cannot size the container table".into())?;
    open.maps.free_slots.set_max_entries(containers).context(|| "cannot size the free list".into())?;
    open.maps.cpus.set_max_entries(cpus).context(|| "cannot size the table of CPUs".into())?;
    Ok(())
}

/// Whether a map goes with the programs and has no pin: a section of variables, or what these programs' parsers found of requests, which
/// those of another version may read otherwise.
pub(crate) fn goes_with_programs(map: &str) -> bool {
    map.contains('.') || map == "known_heads"
}

/// The maps that are pinned are used, not made again.
pub(crate) fn reuse_maps(object: &mut libbpf_rs::OpenObject, pins: &Pins) -> Result<()> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let pin = pins.map(&name);
        if goes_with_programs(&name) || !pin.exists() {
            continue;
        }
        let shared = MapHandle::from_pinned_path(&pin).context(|| format!("cannot open the map {name}"))?;
        check_drift(&map, &shared, &name)?;
        map.reuse_fd(shared.as_fd()).context(|| format!("cannot reuse the map {name}"))?;
    }
    Ok(())
}

/// Maps whose size the installation chose ([`configure`]); objects that are not told it define another.
const SIZED: [&str; 3] = ["containers", "free_slots", "cpus"];

/// A map of another version of Fief must not be taken for ours.
fn check_drift(ours: &libbpf_rs::OpenMapMut<'_>, theirs: &MapHandle, name: &str) -> Result<()> {
    let info = theirs.info().context(|| format!("cannot ask for the map {name}"))?.info;
    let same = ours.map_type() == theirs.map_type()
        && ours.key_size() == theirs.key_size()
        && ours.value_size() == theirs.value_size()
        && ours.map_flags() == info.map_flags
        && (SIZED.contains(&name) || ours.max_entries() == theirs.max_entries());
    if same {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Drift, format!("the pinned map {name} is of another version of fief"))
        .remedy("take the old version down first: fief down"))
}

pub(crate) fn pin_programs(object: &mut libbpf_rs::Object, pins: &Pins) -> Result<()> {
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let pin = pins.program(&name);
        if pin.exists() {
            std::fs::remove_file(&pin).context(|| format!("cannot replace the pin of the program {name}"))?;
        }
        program.pin(&pin).context(|| format!("cannot pin the program {name}"))?;
    }
    Ok(())
}

pub(crate) fn unsupported(object: &str, error: &libbpf_rs::Error) -> Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => ErrorKind::Permission,
        _ => ErrorKind::Unsupported,
    };
    Error::new(kind, format!("the kernel refuses the {object} object: {error:#}")).remedy(
        remedy_of(error).unwrap_or("run as root on a kernel of 6.12 or later; `fief probe` tells what is missing"),
    )
}

/// The network namespace of the policy; `None`: none has been applied yet.
pub fn steered(pins: &Pins) -> Option<abi::fief_netns> {
    let map = pins.open_map("steered").ok()?;
    let netns: abi::fief_netns = record::lookup(&map, &0u32.to_ne_bytes()).ok()??;
    (netns.cookie != 0).then_some(netns)
}

/// Whether a program steers the connections of this network namespace. What is pinned for one that is gone no longer leads to it.
pub fn steers(pins: &Pins, netns: u64) -> bool {
    link::target(&pins.netns().join(netns.to_string())).map(u64::from) == Some(netns)
}

/// Whether this network namespace, which was the policy's, is there still: something of ours is attached in it. An interface that was
/// moved to another one counts too.
pub fn is_there(pins: &Pins, netns: u64) -> bool {
    steers(pins, netns) || ingress::attached(pins).iter().any(|place| place.0 == netns)
}

/// Makes this network namespace the policy's: sockets elsewhere are not registered. With `attach` its connections are steered.
///
/// One namespace is steered at a time: the one before is let go, since its servers' sockets must not be handed
/// connections of another.
pub fn steer(pins: &Pins, file: BorrowedFd<'_>, netns: abi::fief_netns, attach: bool) -> Result<()> {
    if attach {
        attach_netns(pins, file, netns.inode)?;
    }
    pins.open_map("steered")?
        .update(&0u32.to_ne_bytes(), netns.bytes(), MapFlags::ANY)
        .context(|| "cannot tell the kernel which network namespace is steered".into())
}

/// Attaches sk_lookup to a network namespace and pins the link; one that is there stays.
pub fn attach_netns(pins: &Pins, netns: BorrowedFd<'_>, inode: u64) -> Result<()> {
    // the pin of a namespace that is gone can bear the same number
    if steers(pins, inode) {
        return Ok(());
    }
    let (name, hook) = attachment::of_namespace();
    let program = pins.open_program(name)?;
    let link = link::create(program.as_fd(), netns, hook)
        .context(|| format!("cannot attach {name} to the network namespace"))?;
    remove_tree(&pins.netns())?;
    make_dir(&pins.netns())?;
    link::pin(link.as_fd(), &pins.netns().join(inode.to_string()))
}

/// Connections go where the kernel's own lookup leads them.
pub fn detach_netns(pins: &Pins) -> Result<()> {
    link::remove_below(&pins.netns())
}
