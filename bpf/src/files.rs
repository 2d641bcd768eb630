// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs that charge labelled files: machine-wide tracepoints, attached where a policy asks for them.
//!
//! Their links are pinned below `files/<build>-<instance>`, all or none of them: the folder is made under another name and
//! renamed. Attached programs do nothing until the control record names their instance for the policy slot in force. So that
//! word, and with it the swap of policies, puts them into force and out of it. Attaching before and detaching after loses no
//! event and counts none twice, during an upgrade too.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use libbpf_rs::OpenObject;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use nix::time::{ClockId, clock_gettime};

use crate::abi;
use crate::admin;
use crate::attachment::{self, Kind, When};
use crate::error::{Context, Error, Result};
use crate::link;
use crate::open;
use crate::pin::{Pins, make_dir, remove_tree};
use crate::skeleton::{build, files};
use crate::table::Table;

const REMEDY: &str = "use a kernel of 6.12 or later with CONFIG_BPF_EVENTS and its tracepoints of filemap and writeback; until \
                      then remove `label-files` from the policy";

/// Loads and attaches this build's programs, unless they are. They act once [`choose`] says so.
pub fn install(pins: &Pins) -> Result<()> {
    if installed(pins).is_some() {
        return Ok(());
    }
    sweep(pins)?;
    let instance = fresh_instance()?;
    let folder = pins.files().join(format!("{:08x}-{instance:08x}", build()));
    let building = folder.with_file_name(format!("{:08x}~{}", build(), std::process::id()));
    make_dir(&building)?;
    let attached = attach(pins, instance, &building);
    if attached.is_err() {
        // what went wrong is the error to tell; the next one sweeps
        let _ = remove_tree(&building);
    }
    attached?;
    fs::rename(&building, &folder).context(|| format!("cannot put the pins into force at {}", folder.display()))
}

/// A number that no instance has that may still be attached; never 0.
fn fresh_instance() -> Result<u32> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context(|| "cannot read the clock".into())?;
    Ok((now.tv_sec() as u32).rotate_left(30) ^ now.tv_nsec() as u32 | 1)
}

fn attach(pins: &Pins, instance: u32, to: &Path) -> Result<()> {
    let mut place = MaybeUninit::<OpenObject>::uninit();
    let mut open =
        files::FilesSkelBuilder::default().open(&mut place).context(|| "cannot open the files object".into())?;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the files object has read-only data");
    rodata.instance = instance;
    rodata.cpu_count = libbpf_rs::num_possible_cpus().context(|| "cannot count the CPUs".into())? as u32;
    rodata.exec_clock_excludes_softirq = crate::clock::excludes_softirq();
    open::reuse_maps(open.open_object_mut(), pins)?;
    let mut skel = open.load().map_err(|e| open::unsupported("files", &e).remedy(REMEDY))?;
    for program in skel.object_mut().progs_mut() {
        let (name, section) = (program.name().to_string_lossy(), program.section().to_string_lossy());
        if attachment::of(&name).kind != Kind::Trace(When::Labelled) {
            continue;
        }
        let link = link::create_trace(program.as_fd())
            .context(|| format!("cannot attach {name} to {section}"))
            .map_err(|e: Error| e.remedy(REMEDY))?;
        link::pin(link.as_fd(), &to.join(&*name))?;
    }
    Ok(())
}

/// Says whether the programs that [`install`] attached act under the policy of a slot.
pub fn choose(pins: &Pins, slot: u32, act: bool) -> Result<()> {
    let instance = if act { installed(pins).and_then(|folder| instance_of(&folder)) } else { None };
    let mut args = abi::fief_admin { slot, value: instance.unwrap_or(0).into(), ..Default::default() };
    admin::run(&pins.open_program("admin_files")?, &mut args).context(|| "cannot say whether files have labels".into())
}

/// Detaches the programs that the policy in force has no use for.
pub fn retire(pins: &Pins) -> Result<()> {
    let table = Table::open(pins)?;
    let acts = table.file_instance(table.policy().0);
    if acts == 0 {
        return remove_tree(&pins.files());
    }
    folders(pins)
        .into_iter()
        .filter(|folder| instance_of(folder) != Some(acts))
        .try_for_each(|folder| remove_tree(&folder))
}

/// This build's programs take over from another's that act.
pub(crate) fn upgrade(pins: &Pins) -> Result<()> {
    let table = Table::open(pins)?;
    let slots: Vec<_> = [0, 1].into_iter().filter(|slot| table.file_instance(*slot) != 0).collect();
    if slots.is_empty() {
        return Ok(());
    }
    install(pins)?;
    slots.into_iter().try_for_each(|slot| choose(pins, slot, true))?;
    retire(pins)
}

/// The folder of this build's programs that are attached.
fn installed(pins: &Pins) -> Option<PathBuf> {
    let ours = format!("{:08x}-", build());
    folders(pins).into_iter().find(|folder| name(folder).starts_with(&ours))
}

fn instance_of(folder: &Path) -> Option<u32> {
    u32::from_str_radix(name(folder).split_once('-')?.1, 16).ok()
}

fn name(folder: &Path) -> &str {
    folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn folders(pins: &Pins) -> Vec<PathBuf> {
    fs::read_dir(pins.files()).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Removes what killed builders left, which is attached. There is one builder at a time: it has the lock.
fn sweep(pins: &Pins) -> Result<()> {
    let left = folders(pins).into_iter().filter(|folder| name(folder).contains('~'));
    left.into_iter().try_for_each(|folder| remove_tree(&folder))
}
