// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Empty programs at an installation's attachment points, to measure what any program costs there.
//!
//! The attachment points are read from the installation's pinned links, and the programs are two instructions of the same
//! kind. So there is no list to keep here. Nothing is pinned: the programs end with the guard.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::Link;
use libbpf_sys::{bpf_attach_type, bpf_insn, bpf_prog_type};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::link;
use crate::pin::Pins;
use crate::runs;

/// Where a program is attached, and of which kind it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    name: String,
    at: At,
    kind: bpf_prog_type,
    hook: bpf_attach_type,
    /// Of the tracepoint, for a program of one.
    btf_id: u32,
    /// The program that is there.
    program: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Machine,
    /// The network namespace of the servers.
    Namespace,
    /// By its index in that namespace.
    Interface(u32),
    /// The cgroup that is managed.
    Unit,
    /// The top of the cgroups.
    Top,
}

impl Place {
    /// The tracepoint, or the kernel's name of the hook.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is there without the installation too, whose own interfaces go with it; in the caller's network namespace.
    pub fn stays(&self) -> bool {
        match self.at {
            // nix takes the null of an unknown one for an empty name
            At::Interface(index) => nix::net::if_::if_indextoname(index).is_ok_and(|name| !name.is_empty()),
            At::Machine | At::Namespace | At::Unit | At::Top => true,
        }
    }

    /// The program that the installation has there.
    pub fn program(&self) -> Result<OwnedFd> {
        runs::open(self.program)
    }
}

/// The places of an installation that is in force, of units too.
pub fn places(pins: &Pins) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    for pin in pins_below(pins.root()) {
        let Ok(link) = Link::open(&pin) else { continue };
        places.extend(of_link(&link, &pin, pins)?);
    }
    places.sort();
    places.dedup_by(|a, b| (a.at, a.kind, a.hook, a.btf_id) == (b.at, b.kind, b.hook, b.btf_id));
    Ok(places)
}

/// Every pin but those of maps and programs, and of the scheduler, which takes the place of the kernel's own and has none where nothing
/// runs.
fn pins_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let entries =
        entries.filter(|entry| !["maps", "programs", "schedule"].contains(&&*entry.file_name().to_string_lossy()));
    entries
        .flat_map(|entry| match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => pins_below(&entry.path()),
            false => vec![entry.path()],
        })
        .collect()
}

/// None: nothing runs there by itself.
fn of_link(link: &Link, pin: &Path, pins: &Pins) -> Result<Option<Place>> {
    let (mut info, mut tracepoint) = (libbpf_sys::bpf_link_info::default(), [0u8; 64]);
    fill(link, &mut info)?;
    // SAFETY: in each arm the kernel filled the part that the type says; every bit pattern of it is valid.
    let (at, hook) = unsafe {
        match info.type_ {
            libbpf_sys::BPF_LINK_TYPE_ITER => return Ok(None),
            libbpf_sys::BPF_LINK_TYPE_RAW_TRACEPOINT => {
                info.__bindgen_anon_1.raw_tracepoint.tp_name = tracepoint.as_mut_ptr() as u64;
                info.__bindgen_anon_1.raw_tracepoint.tp_name_len = tracepoint.len() as u32;
                fill(link, &mut info)?;
                (At::Machine, libbpf_sys::BPF_TRACE_RAW_TP)
            }
            libbpf_sys::BPF_LINK_TYPE_TRACING => (At::Machine, info.__bindgen_anon_1.tracing.attach_type),
            libbpf_sys::BPF_LINK_TYPE_NETNS => (At::Namespace, info.__bindgen_anon_1.netns.attach_type),
            libbpf_sys::BPF_LINK_TYPE_TCX => {
                (At::Interface(info.__bindgen_anon_1.tcx.ifindex), info.__bindgen_anon_1.tcx.attach_type)
            }
            libbpf_sys::BPF_LINK_TYPE_CGROUP => {
                (if pin.starts_with(pins.top()) { At::Top } else { At::Unit }, info.__bindgen_anon_1.cgroup.attach_type)
            }
            _ => {
                let what = format!("the installation has a link that the floor does not know: {}", pin.display());
                return Err(Error::new(ErrorKind::Drift, what));
            }
        }
    };
    let program = runs::info(runs::open(info.prog_id)?.as_fd())?;
    let name = match tracepoint[0] {
        0 => hook_name(hook),
        _ => String::from_utf8_lossy(tracepoint.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned(),
    };
    Ok(Some(Place { name, at, kind: program.type_, hook, btf_id: program.attach_btf_id, program: info.prog_id }))
}

fn fill(link: &Link, info: &mut libbpf_sys::bpf_link_info) -> Result<()> {
    let mut length = size_of_val(info) as u32;
    // SAFETY: the descriptor is open; the record and its length are ours alone for the call, and so is what it points to.
    let err = unsafe { libbpf_sys::bpf_link_get_info_by_fd(link.as_fd().as_raw_fd(), info, &raw mut length) };
    if err < 0 {
        return Err(std::io::Error::from_raw_os_error(-err)).context(|| "cannot look at a link".into());
    }
    Ok(())
}

fn hook_name(hook: bpf_attach_type) -> String {
    // SAFETY: the call takes a number and gives a constant of libbpf, or none.
    let name = unsafe { libbpf_sys::libbpf_bpf_attach_type_str(hook) };
    if name.is_null() {
        return format!("hook {hook}");
    }
    // SAFETY: it is not null and ends with NUL.
    unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// The attached programs; they go with it.
#[derive(Debug)]
pub struct Floor {
    /// In the order of the places.
    programs: Vec<OwnedFd>,
    links: Vec<OwnedFd>,
}

impl Floor {
    /// Attaches an empty program to each; interfaces and the lookup are those of the caller's network namespace, `unit` is
    /// the cgroup for those of managed ones, `top` that of all.
    pub fn attach(places: &[Place], unit: Option<&Path>, top: Option<&Path>) -> Result<Self> {
        let open = |path: &Path| std::fs::File::open(path).context(|| format!("cannot open {}", path.display()));
        let namespace = open(Path::new("/proc/thread-self/ns/net"))?;
        let [unit, top] = [unit, top].map(|path| path.map(open).transpose());
        let (unit, top) = (unit?, top?);
        let mut floor = Self { programs: Vec::new(), links: Vec::new() };
        for place in places {
            let failed = || format!("cannot attach an empty program to {}", place.name);
            let program = load(place).context(failed)?;
            let missing = || Error::new(ErrorKind::Drift, format!("{} needs a cgroup, and there is none", place.name));
            let target = match place.at {
                At::Machine => 0,
                At::Namespace => namespace.as_raw_fd(),
                At::Interface(index) => index as i32,
                At::Unit => unit.as_ref().ok_or_else(missing)?.as_raw_fd(),
                At::Top => top.as_ref().ok_or_else(missing)?.as_raw_fd(),
            };
            // SAFETY: the program's and the target's descriptors are open, and no options are passed.
            let fd = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), target, place.hook, std::ptr::null()) };
            floor.links.push(link::owned(fd).context(failed)?);
            floor.programs.push(program);
        }
        Ok(floor)
    }

    /// The empty program at the n-th place.
    pub fn program(&self, place: usize) -> Option<&OwnedFd> {
        self.programs.get(place)
    }
}

/// Two instructions: the answer with which the kernel goes on as if there were no program, and the end.
fn load(place: &Place) -> std::io::Result<OwnedFd> {
    let answer = match place.kind {
        libbpf_sys::BPF_PROG_TYPE_TRACING => 0,
        // TCX_NEXT
        libbpf_sys::BPF_PROG_TYPE_SCHED_CLS => -1,
        // SK_PASS, and what lets every call and packet of a cgroup go on
        _ => 1,
    };
    let instruction = |code: u32, imm| bpf_insn { code: code as u8, imm, ..Default::default() };
    let instructions = [
        instruction(libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K, answer),
        instruction(libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT, 0),
    ];
    let hook_at_load = !matches!(place.kind, libbpf_sys::BPF_PROG_TYPE_SCHED_CLS | libbpf_sys::BPF_PROG_TYPE_SOCK_OPS);
    let mut opts = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        expected_attach_type: if hook_at_load { place.hook } else { 0 },
        attach_btf_id: place.btf_id,
        ..Default::default()
    };
    // SAFETY: the strings end with NUL, the instructions and the options live as long as the call.
    link::owned(unsafe {
        libbpf_sys::bpf_prog_load(
            place.kind,
            c"empty".as_ptr(),
            c"GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as _,
            &raw mut opts,
        )
    })
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
