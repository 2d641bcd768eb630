// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads the two objects of an installation at once: most of the time that takes is the verifier's, which takes one CPU for each.
//!
//! The core owns the maps that both use. They are made and pinned before any program is verified, so that the front object
//! finds them while the core's programs are.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::thread;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{AsRawLibbpf, OpenObject};

use crate::error::{Context, Result};
use crate::open::{configure, goes_with_programs, reuse_maps, unsupported};
use crate::pin::Pins;
use crate::skeleton::{core, front};

/// Where objects are while they are loaded.
#[derive(Debug)]
pub(crate) struct Places {
    /// With task storage in cgroup hooks and without.
    core: [MaybeUninit<OpenObject>; 2],
    front: MaybeUninit<OpenObject>,
}

impl Places {
    pub(crate) const fn new() -> Self {
        Self { core: [const { MaybeUninit::uninit() }; 2], front: MaybeUninit::uninit() }
    }
}

/// The core and the front object over the maps that are pinned; those that are not yet are made and pinned.
pub(crate) fn both<'o>(
    places: &'o mut Places,
    pins: &Pins,
    containers: u32,
) -> Result<(core::CoreSkel<'o>, front::FrontSkel<'o>)> {
    let Places { core: [first, second], front: front_place } = places;
    let prepared = prepare_core(first, pins, containers)?;
    thread::scope(|scope| {
        let front = scope.spawn(|| load_front(front_place, pins));
        let core = finish_core(prepared, second, pins, containers);
        let front = front.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((core?, front?))
    })
}

/// The core object alone.
pub(crate) fn core_alone<'o>(places: &'o mut Places, pins: &Pins, containers: u32) -> Result<core::CoreSkel<'o>> {
    let [first, second] = &mut places.core;
    finish_core(prepare_core(first, pins, containers)?, second, pins, containers)
}

/// The core object with its maps, without programs.
fn prepare_core<'o>(
    place: &'o mut MaybeUninit<OpenObject>,
    pins: &Pins,
    containers: u32,
) -> Result<core::OpenCoreSkel<'o>> {
    let mut open = open_core(place, pins, containers, true)?;
    let object = open.open_object_mut();
    // SAFETY: the object is open and not loaded, and nobody else has it.
    match unsafe { libbpf_sys::bpf_object__prepare(object.as_libbpf_object().as_ptr()) } {
        0 => pin_new_maps(object.maps_mut(), pins).map(|()| open),
        errno => Err(unsupported("core", &libbpf_rs::Error::from_raw_os_error(-errno))),
    }
}

fn open_core<'o>(
    place: &'o mut MaybeUninit<OpenObject>,
    pins: &Pins,
    containers: u32,
    task_storage_in_cgroup: bool,
) -> Result<core::OpenCoreSkel<'o>> {
    let mut open = core::CoreSkelBuilder::default().open(place).context(|| "cannot open the core object".into())?;
    configure(&mut open, containers, task_storage_in_cgroup)?;
    reuse_maps(open.open_object_mut(), pins)?;
    Ok(open)
}

fn finish_core<'o>(
    prepared: core::OpenCoreSkel<'o>,
    second: &'o mut MaybeUninit<OpenObject>,
    pins: &Pins,
    containers: u32,
) -> Result<core::CoreSkel<'o>> {
    let load = |open: core::OpenCoreSkel<'o>| open.load().map_err(|e| unsupported("core", &e));
    match load(prepared) {
        // kernels before 6.13 refuse task storage in cgroup hooks
        Err(first) => load(open_core(second, pins, containers, false)?).map_err(|_| first),
        loaded => loaded,
    }
}

fn load_front<'o>(place: &'o mut MaybeUninit<OpenObject>, pins: &Pins) -> Result<front::FrontSkel<'o>> {
    let mut open = front::FrontSkelBuilder::default().open(place).context(|| "cannot open the front object".into())?;
    reuse_maps(open.open_object_mut(), pins)?;
    let skel = open.load().map_err(|e| unsupported("front", &e))?;
    pin_new_maps(skel.object().maps(), pins)?;
    Ok(skel)
}

/// Pins the maps that have no pin yet.
pub(crate) fn pin_new_maps<M>(maps: impl Iterator<Item = M>, pins: &Pins) -> Result<()>
where
    M: AsRawLibbpf<LibbpfType = libbpf_sys::bpf_map>,
{
    for map in maps {
        let map = map.as_libbpf_object().as_ptr();
        // SAFETY: libbpf's names end with a zero and live as long as their map.
        let name = unsafe { CStr::from_ptr(libbpf_sys::bpf_map__name(map)) }.to_string_lossy().into_owned();
        let pin = pins.map(&name);
        if goes_with_programs(&name) || pin.exists() {
            continue;
        }
        let path = CString::new(pin.as_os_str().as_bytes())
            .map_err(io::Error::from)
            .context(|| format!("cannot pin the map {name}"))?;
        // By the kernel's call: of a core object that the verifier refuses libbpf takes away the pins that it has set.
        // SAFETY: the map has been made, and the path ends with a zero.
        match unsafe { libbpf_sys::bpf_obj_pin(libbpf_sys::bpf_map__fd(map), path.as_ptr()) } {
            0 => {}
            errno => {
                let source = io::Error::from_raw_os_error(-errno);
                return Err(source).context(|| format!("cannot pin the map {name}"));
            }
        }
    }
    Ok(())
}
