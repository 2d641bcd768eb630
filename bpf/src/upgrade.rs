// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replaces the programs of an installation by this binary's, while it is in force.
//!
//! Nothing is missed in between. The new programs work on the pinned maps. The kernel swaps a cgroup link's program in one
//! step. A new tracing link replaces the old one before that is released; for that moment both see the same events, which the
//! programs allow for. Bindings, descriptors and charges go on. An upgrade adds maps that the old version did not know, and
//! changes none: a version whose records differ is refused before any change. The scheduler alone has a gap, whose length is told:
//! the kernel has no exchange of schedulers (`schedule`).

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::skel::Skel;
use libbpf_rs::{MapCore, Object, Program};

use crate::abi;
use crate::attachment::{self, Kind, When};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::load::{self, Places};
use crate::open::listen_to_libbpf;
use crate::pin::{Pins, make_dir, remove_tree};
use crate::{charging, lane, link};

/// What was replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Upgraded {
    /// Programs.
    pub programs: usize,
    /// Links of units, network namespaces and interfaces, updated in place.
    pub updated: usize,
    /// Machine-wide links, replaced by new ones.
    pub replaced: usize,
    /// For how long the kernel's own scheduler had the CPUs, between the former version's and this one's; `None`: Fief's was not on.
    pub unscheduled: Option<Duration>,
}

/// Whether this binary knows what is in the maps: it would misread another version's. Errors: [`ErrorKind::Drift`] it does not.
pub fn require_own_records(pins: &Pins) -> Result<()> {
    let controls = pins.open_map("controls")?;
    let control: Option<abi::fief_control> = crate::record::lookup(&controls, &0u32.to_ne_bytes())?;
    let version = control.map(|control| control.abi_version);
    if version == Some(abi::FIEF_ABI_VERSION) {
        return Ok(());
    }
    let theirs = version.map_or_else(|| "an unknown version".to_owned(), |version| format!("version {version}"));
    let own = abi::FIEF_ABI_VERSION;
    Err(Error::new(
        ErrorKind::Drift,
        format!("what is in force keeps records of {theirs}, this fief those of version {own}"),
    )
    .remedy("take the old version down first: fief down"))
}

/// Puts this binary's programs in the place of those in force. Errors: [`ErrorKind::NotFound`] nothing is in force;
/// [`ErrorKind::Drift`] its maps are another version's. Killed on the way, the next one goes on.
pub fn upgrade(pins: &Pins) -> Result<Upgraded> {
    if !pins.exist() {
        return Err(Error::new(ErrorKind::NotFound, format!("{} is not installed", pins.scope())));
    }
    require_own_records(pins)?;
    listen_to_libbpf();
    let mut places = Places::new();
    let (mut core_skel, mut front_skel) = load::both(&mut places, pins, containers(pins)?)?;
    // the old version may have let a request pass whose answer is still to come, and not every version told so
    crate::record::update(&pins.open_map("sightings")?, 0, &abi::fief_sightings { upgrades: 1, ..Default::default() })?;
    crate::secret::set(pins)?;
    crate::queue::set_mark(pins)?;

    sweep(pins)?;
    let mut done = Upgraded::default();
    for object in [core_skel.object_mut(), front_skel.object_mut()] {
        replace(object, pins, &mut done)?;
    }
    crate::files::upgrade(pins)?;
    done.unscheduled = crate::schedule::upgrade(pins)?;
    if lane::installed(pins) {
        lane::with_object(pins, |object| replace(object, pins, &mut done))?;
    }
    Ok(done)
}

/// Size of the container table.
fn containers(pins: &Pins) -> Result<u32> {
    Ok(pins.open_map("containers")?.max_entries())
}

/// How the folder begins in which new links and programs are pinned before they take the old ones' place.
const STAGING: &str = "upgrade~";

/// Removes what killed upgrades have left: a link that has not taken its place is attached beside the one that is there. Who upgrades
/// holds the lock, so no other upgrade is under way.
fn sweep(pins: &Pins) -> Result<()> {
    for entry in std::fs::read_dir(pins.links()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(STAGING) {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

fn replace(object: &mut Object, pins: &Pins, done: &mut Upgraded) -> Result<()> {
    let staging = pins.links().join(format!("{STAGING}{}", std::process::id()));
    make_dir(&staging)?;
    let charges = charging::is_begun(pins);
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let row = attachment::of(&name);
        match row.kind {
            Kind::Trace(when) => {
                let attached = pins.links().join(&name);
                // one that the old version did not have is attached now, beside the others
                if attached.exists() || (when == When::Charged && charges) {
                    let link = link::create_trace(program.as_fd()).context(|| format!("cannot attach {name}"))?;
                    let pin = staging.join(&name);
                    link::pin(link.as_fd(), &pin)?;
                    // over the old one's pin, which lets that go
                    std::fs::rename(&pin, attached).context(|| format!("cannot replace the link of {name}"))?;
                    done.replaced += 1;
                }
            }
            _ => {
                for pin in row.links(pins) {
                    done.updated += usize::from(link::update(&pin, program.as_fd())?);
                }
            }
        }
        let pin = staging.join(&name);
        program.pin(&pin).context(|| format!("cannot pin the program {name}"))?;
        std::fs::rename(&pin, pins.program(&name)).context(|| format!("cannot replace the program {name}"))?;
        done.programs += 1;
    }
    remove_tree(&staging)
}

/// The kernel's number of a pinned program: another one after an upgrade.
pub fn program_id(pins: &Pins, name: &str) -> Result<u32> {
    let fd = pins.open_program(name)?;
    Program::id_from_fd(fd.as_fd()).context(|| format!("cannot ask for the program {name}"))
}

/// For tests: what an upgrade is for a moment, this binary's tracing programs of the core beside those in force; until the links go.
pub fn attach_beside(pins: &Pins) -> Result<Vec<OwnedFd>> {
    let mut places = Places::new();
    let mut core_skel = load::core_alone(&mut places, pins, containers(pins)?)?;
    let beside = |program: Program<'_>| {
        let name = program.name().to_string_lossy().into_owned();
        let is_traced = matches!(attachment::of(&name).kind, Kind::Trace(_)) && pins.links().join(&name).exists();
        is_traced.then(|| link::create_trace(program.as_fd()).context(|| format!("cannot attach {name}")))
    };
    core_skel.object_mut().progs().filter_map(beside).collect()
}

/// For tests and the lab: the programs in force pass for those of another build, so the next apply puts its own in their place.
pub fn pretend_another_build(pins: &Pins) -> Result<()> {
    let controls = pins.open_map("controls")?;
    let mut control = crate::table::control(pins)?;
    control.build ^= 1;
    crate::record::update(&controls, 0, &control)
}
