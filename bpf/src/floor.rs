// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Empty programs at an installation's attachment points, to measure what any program costs there.
//!
//! The attachment points are read from the installation's pinned links, so the floor has no list of its own to keep. Nothing is
//! pinned: the programs end with the guard. Programs of managed cgroups are not among them.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, OpenObject};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::link;
use crate::open::unsupported;
use crate::pin::Pins;
use crate::skeleton::{core, floor};

/// Where a program is attached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A tracepoint, by its section.
    Trace(String),
    /// The lookup of a network namespace.
    Lookup,
    /// The receiving side of an interface, or its sending side.
    Interface {
        /// Its index in its network namespace.
        index: u32,
        /// Which side.
        egress: bool,
    },
}

impl Place {
    /// The section of the program for it; what the report names.
    pub fn section(&self) -> &str {
        match self {
            Place::Trace(section) => section,
            Place::Lookup => "sk_lookup",
            Place::Interface { egress: false, .. } => "tcx/ingress",
            Place::Interface { egress: true, .. } => "tcx/egress",
        }
    }
}

/// The places of an installation that is in force: machine-wide tracepoints, the steered namespace, interfaces.
pub fn places(pins: &Pins) -> Result<Vec<Place>> {
    let mut place = MaybeUninit::<OpenObject>::uninit();
    let mut open =
        core::CoreSkelBuilder::default().open(&mut place).context(|| "cannot open the core object".into())?;
    let sections: Vec<(String, String)> = open
        .open_object_mut()
        .progs_mut()
        .map(|program| {
            (program.name().to_string_lossy().into_owned(), program.section().to_string_lossy().into_owned())
        })
        .collect();
    let mut places = Vec::new();
    for pin in pins_below(pins.root()) {
        let Ok(link) = Link::open(&pin) else { continue };
        match of_link(&link)? {
            Attached::Network(place) => places.push(place),
            Attached::Cgroup => {}
            Attached::Trace => {
                let name = pin.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let section = sections.iter().find(|(program, _)| *program == name).map(|(_, section)| section.clone());
                places.push(Place::Trace(section.ok_or_else(|| unknown(&pin))?));
            }
        }
    }
    places.sort();
    places.dedup();
    Ok(places)
}

fn unknown(pin: &Path) -> Error {
    Error::new(ErrorKind::Drift, format!("the installation has a link that the floor does not know: {}", pin.display()))
}

/// Every pin but those of maps and programs.
fn pins_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| !["maps", "programs"].contains(&&*entry.file_name().to_string_lossy()));
    entries
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => pins_below(&path),
            path => vec![path],
        })
        .collect()
}

/// What a link is attached to.
enum Attached {
    Trace,
    Network(Place),
    Cgroup,
}

fn of_link(link: &Link) -> Result<Attached> {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the descriptor is open; the record and its length are ours alone for the call.
    let err = unsafe { libbpf_sys::bpf_link_get_info_by_fd(link.as_fd().as_raw_fd(), &raw mut info, &raw mut length) };
    if err < 0 {
        return Err(std::io::Error::from_raw_os_error(-err)).context(|| "cannot look at a link".into());
    }
    Ok(match info.type_ {
        libbpf_sys::BPF_LINK_TYPE_NETNS => Attached::Network(Place::Lookup),
        libbpf_sys::BPF_LINK_TYPE_CGROUP => Attached::Cgroup,
        libbpf_sys::BPF_LINK_TYPE_TCX => {
            // SAFETY: the kernel filled the part that the type says; every bit pattern is valid.
            let (index, side) = unsafe { (info.__bindgen_anon_1.tcx.ifindex, info.__bindgen_anon_1.tcx.attach_type) };
            Attached::Network(Place::Interface { index, egress: side == libbpf_sys::BPF_TCX_EGRESS })
        }
        _ => Attached::Trace,
    })
}

/// The attached programs; they go with it.
#[derive(Debug)]
pub struct Floor {
    links: Vec<OwnedFd>,
}

impl Floor {
    /// Attaches an empty program to each; interfaces and the lookup are those of the caller's network namespace.
    pub fn attach(places: &[Place]) -> Result<Self> {
        let mut place = MaybeUninit::<OpenObject>::uninit();
        let mut open =
            floor::FloorSkelBuilder::default().open(&mut place).context(|| "cannot open the floor object".into())?;
        for mut program in open.open_object_mut().progs_mut() {
            let section = program.section().to_string_lossy().into_owned();
            program.set_autoload(places.iter().any(|place| place.section() == section));
        }
        let mut skel = open.load().map_err(|e| unsupported("floor", &e))?;
        let namespace =
            std::fs::File::open("/proc/thread-self/ns/net").context(|| "cannot open the network namespace".into())?;
        let mut links = Vec::new();
        for place in places {
            let program = skel.object_mut().progs_mut().find(|program| program.section() == place.section());
            let program = program.ok_or_else(|| {
                Error::new(ErrorKind::Drift, format!("there is no empty program for {}", place.section()))
            })?;
            let link = match place {
                Place::Trace(_) => link::create_trace(program.as_fd()),
                Place::Lookup => link::create(program.as_fd(), namespace.as_fd(), libbpf_sys::BPF_SK_LOOKUP),
                Place::Interface { index, egress } => {
                    let side = if *egress { libbpf_sys::BPF_TCX_EGRESS } else { libbpf_sys::BPF_TCX_INGRESS };
                    // SAFETY: the program's descriptor is open, and no options are passed.
                    link::owned(unsafe {
                        libbpf_sys::bpf_link_create(program.as_fd().as_raw_fd(), *index as i32, side, std::ptr::null())
                    })
                }
            };
            links.push(link.context(|| format!("cannot attach an empty program to {}", place.section()))?);
        }
        Ok(Self { links })
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        for link in &self.links {
            // At once where the kernel can (not at tracepoints); the rest goes with the descriptor.
            // SAFETY: the descriptor is open.
            let _ = unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
        }
    }
}
