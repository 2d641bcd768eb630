// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attachments as the kernel has them: made, pinned, read, released. libbpf's links belong to a loaded object; ours outlive the
//! process that loaded it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::Link;

use crate::attachment::{Attachment, Kind};
use crate::error::{Context, Result};
use crate::pin::{Pins, c_path, make_dir};

/// Attaches a program to what a descriptor means.
pub(crate) fn create(
    program: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    attach_type: libbpf_sys::bpf_attach_type,
) -> std::io::Result<OwnedFd> {
    create_with(program, target.as_raw_fd(), attach_type, std::ptr::null())
}

/// Attaches a program of a tracepoint, which it names itself.
pub(crate) fn create_trace(program: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    create_with(program, 0, libbpf_sys::BPF_TRACE_RAW_TP, std::ptr::null())
}

fn create_at(program: BorrowedFd<'_>, side: Side, interface: u32, place: Place) -> std::io::Result<OwnedFd> {
    let opts = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        flags: match place {
            Place::First => libbpf_sys::BPF_F_BEFORE,
            Place::Last => libbpf_sys::BPF_F_AFTER,
        },
        ..Default::default()
    };
    create_with(program, interface as i32, side.hook(), &raw const opts)
}

fn create_with(
    program: BorrowedFd<'_>,
    target: i32,
    attach_type: libbpf_sys::bpf_attach_type,
    opts: *const libbpf_sys::bpf_link_create_opts,
) -> std::io::Result<OwnedFd> {
    // SAFETY: the program's descriptor is open; the options are none, or the caller's for as long as the call.
    owned(unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), target, attach_type, opts) })
}

/// A descriptor that a call of libbpf gave, or its error.
pub(crate) fn owned(fd: i32) -> std::io::Result<OwnedFd> {
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Which side of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// What it receives.
    Ingress,
    /// What it sends.
    Egress,
}

impl Side {
    fn hook(self) -> libbpf_sys::bpf_attach_type {
        match self {
            Side::Ingress => libbpf_sys::BPF_TCX_INGRESS,
            Side::Egress => libbpf_sys::BPF_TCX_EGRESS,
        }
    }
}

/// Where a program stands among those of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    First,
    Last,
}

/// Attaches a pinned program to one side of an interface of the caller's network namespace, whose inode is `netns`, and pins
/// the link. One that is attached already stays, and where the interface is gone nothing is to be done.
pub(crate) fn attach_interface(pins: &Pins, row: &Attachment, netns: u64, interface: u32) -> Result<()> {
    let Kind::Interface { folder, side, place, .. } = row.kind else { unreachable!("{row:?} has no interface") };
    let (name, pin) = (row.program, row.pin_at(pins, netns, interface));
    if target(&pin) == Some(interface) && is_here(&pin, side, interface) == Some(true) {
        return Ok(());
    }
    make_dir(&folder.below(pins).join(netns.to_string()))?;
    remove(&pin)?;
    let program = pins.open_program(name)?;
    let attached = create_at(program.as_fd(), side, interface, place);
    // it has gone since it was listed, and nothing comes in there
    if attached.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV)) {
        return Ok(());
    }
    let attached = attached
        .context(|| format!("cannot attach {name} to the interface {interface}"))
        .map_err(|e| e.remedy("use a kernel of 6.6 or later with CONFIG_NET_XGRESS"))?;
    self::pin(attached.as_fd(), &pin)
}

/// The most programs that one side of an interface has (BPF_MPROG_MAX).
const PROGRAMS: usize = 64;

/// The interfaces of the caller's network namespace, whose inode is `netns`, to which a program is attached.
pub(crate) fn interfaces_here(pins: &Pins, row: &Attachment, netns: u64) -> Vec<u32> {
    let Kind::Interface { side, .. } = row.kind else { unreachable!("{row:?} has no interface") };
    let here = |pin: &PathBuf| {
        let interface = target(pin)?;
        let is_it = *pin == row.pin_at(pins, netns, interface) && is_here(pin, side, interface) != Some(false);
        is_it.then_some(interface)
    };
    row.links(pins).iter().filter_map(here).collect()
}

/// Whether a pinned link is at an interface of the caller's network namespace. One that was moved to another namespace took its links
/// and its number along, and here the number may be another one's. `None`: the caller may not ask.
fn is_here(pin: &Path, side: Side, interface: u32) -> Option<bool> {
    let (mut programs, mut links) = ([0u32; PROGRAMS], [0u32; PROGRAMS]);
    let mut opts = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        prog_ids: programs.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        __bindgen_anon_1: libbpf_sys::bpf_prog_query_opts__bindgen_ty_1 { count: PROGRAMS as u32 },
        ..Default::default()
    };
    // SAFETY: both arrays have room for as many numbers as is said, and live until the call returns.
    let err = unsafe { libbpf_sys::bpf_prog_query_opts(interface as i32, side.hook(), &raw mut opts) };
    (err != -libc::EPERM).then(|| err == 0 && info(pin).is_some_and(|own| links.contains(&own.id)))
}

/// The pins below a folder that has one for each network namespace.
pub(crate) fn pins_below(folder: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let inside = |folder: std::fs::DirEntry| std::fs::read_dir(folder.path()).into_iter().flatten().flatten();
    folders.filter(is_folder).flat_map(inside).map(|entry| entry.path()).collect()
}

/// No symbolic link leads on to others' files: no pin of ours is one.
fn is_folder(entry: &std::fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

/// Removes the folders below this one that are empty.
pub(crate) fn remove_empty_below(folder: &Path) {
    for folder in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // one that is not empty is in use
        let _ = std::fs::remove_dir(folder.path());
    }
}

pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let name = c_path(path)?;
    // SAFETY: the descriptor is open and the path ends with NUL.
    let err = unsafe { libbpf_sys::bpf_obj_pin(fd.as_raw_fd(), name.as_ptr()) };
    if err < 0 {
        return Err(std::io::Error::from_raw_os_error(-err)).context(|| format!("cannot pin {}", path.display()));
    }
    Ok(())
}

/// What a pinned link is attached to: the index of an interface, the inode of a network namespace. `None`: there is no
/// pin, or what it was attached to is gone.
pub(crate) fn target(pin: &Path) -> Option<u32> {
    let info = info(pin)?;
    let target = match info.type_ {
        // SAFETY: the kernel filled the part that the type says; every bit pattern is valid.
        libbpf_sys::BPF_LINK_TYPE_TCX => unsafe { info.__bindgen_anon_1.tcx.ifindex },
        // SAFETY: as above.
        libbpf_sys::BPF_LINK_TYPE_NETNS => unsafe { info.__bindgen_anon_1.netns.netns_ino },
        _ => 0,
    };
    (target != 0).then_some(target)
}

/// What the kernel tells of a pinned link.
fn info(pin: &Path) -> Option<libbpf_sys::bpf_link_info> {
    let link = pin.exists().then(|| Link::open(pin).ok())??;
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the descriptor is open; the record and its length are ours alone for the call.
    let err = unsafe { libbpf_sys::bpf_link_get_info_by_fd(link.as_fd().as_raw_fd(), &raw mut info, &raw mut length) };
    (err >= 0).then_some(info)
}

/// Detaches a pinned link at once (the kernel would take its time after the last reference) and removes the pin. One
/// that is not there is no error, and a symbolic link goes by itself. Errors: it is no pin.
pub(crate) fn remove(pin: &Path) -> Result<()> {
    let Ok(meta) = pin.symlink_metadata() else { return Ok(()) };
    if !meta.is_symlink() {
        let link = Link::open(pin).context(|| format!("cannot open the link {}", pin.display()))?;
        // one whose target is gone is detached already
        if let Err(e) = link.detach()
            && target(pin).is_some()
        {
            Err(e).context(|| format!("cannot detach {}", pin.display()))?;
        }
    }
    std::fs::remove_file(pin).context(|| format!("cannot remove the pin {}", pin.display()))
}

/// The same for all pinned links below a folder, which may not be there.
pub(crate) fn remove_below(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if is_folder(&entry) { remove_below(&path)? } else { remove(&path)? }
    }
    Ok(())
}

/// Puts another program in the place of a pinned link's. False: its target is gone, so there is nothing to do.
pub(crate) fn update(pin: &Path, program: BorrowedFd<'_>) -> Result<bool> {
    let link = Link::open(pin).context(|| format!("cannot open the link {}", pin.display()))?;
    // SAFETY: both descriptors are open, and no options are passed.
    let err = unsafe { libbpf_sys::bpf_link_update(link.as_fd().as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
    match -err {
        0 => Ok(true),
        libc::ENOLINK => Ok(false),
        errno => Err(std::io::Error::from_raw_os_error(errno))
            .context(|| format!("cannot update the link {}", pin.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_removed_that_is_no_pin_or_that_a_link_leads_to() {
        let [folder, outside] = [tempfile::tempdir(), tempfile::tempdir()].map(|made| made.expect("a folder"));
        let [file, own] = [outside.path().join("file"), folder.path().join("units/1/file")];
        std::fs::create_dir_all(folder.path().join("units/1")).expect("folders");
        let leads = folder.path().join("units/leads");
        std::os::unix::fs::symlink(outside.path(), &leads).expect("a link");
        std::fs::write(&file, "kept").expect("a file");
        assert!(pins_below(&folder.path().join("units")).is_empty());
        remove_below(folder.path()).expect("folders and a link");
        assert!(file.exists() && leads.symlink_metadata().is_err());
        std::fs::write(&own, "kept").expect("a file");
        remove_below(folder.path()).expect_err("it is no pin");
        assert!(own.exists());
    }
}
