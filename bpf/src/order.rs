// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Orders among a container's threads that are built outside of Fief (bpf/sched/object.bpf.h): each an object with a tracing
//! program for each program of the scheduler that asks. Links are pinned below the scheduler's own, and end with it.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libbpf_rs::{MapCore, MapHandle, ObjectBuilder, Program, ProgramType};

use crate::abi;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::open;
use crate::pin::{Pins, make_dir, remove_tree};
use crate::record;

/// The scheduler's programs that ask, by which the object's are named.
pub(crate) const ASK: [&str; 5] = ["wakeup_places", "enqueue_waits", "dispatch_picks", "stopping_ends", "yield_gives"];
const TURNS: &str = "sched_turns";
const REMEDY: &str = "build it with fief_policy.h, as the example there";
/// Bytes of an object file.
const LARGEST: u64 = 16 << 20;

/// Loads the object in that file and attaches it by its number, in the place of the one that had it. It is asked once all of it is
/// attached.
pub fn attach(pins: &Pins, number: u32, file: &Path) -> Result<()> {
    let states = states(pins)?;
    let former: abi::fief_object = record::lookup(&states, &number.to_ne_bytes())?.unwrap_or_default();
    let told = |removed, later| abi::fief_object {
        instance: former.instance.wrapping_add(later),
        removed,
        ..Default::default()
    };
    record::update(&states, number, &told(1, 1))?;
    let (place, new) = (pins.orders().join(number.to_string()), pins.orders().join(format!("{number}~new")));
    remove_tree(&place)?;
    remove_tree(&new)?;
    make_dir(&pins.orders())?;
    make_dir(&new)?;
    let attached = load(pins, number, file, &new).and_then(|()| {
        std::fs::rename(&new, &place).context(|| format!("cannot put the pins of {} into force", file.display()))
    });
    if attached.is_err() {
        // the first error is the one to tell
        let _ = remove_tree(&new);
    }
    attached?;
    record::update(&states, number, &told(0, 2))
}

fn states(pins: &Pins) -> Result<MapHandle> {
    MapHandle::from_pinned_path(pins.scheduler_objects()).context(|| "cannot open the records of orders".into())
}

/// The bytes of a file that root alone can change: they become part of the kernel.
fn read(file: &Path) -> Result<Vec<u8>> {
    let missing = || format!("cannot read the order {}", file.display());
    let real =
        file.canonicalize().context(missing).map_err(|e: Error| e.remedy("name an object file that is there"))?;
    for path in real.ancestors() {
        let meta = path.metadata().context(missing)?;
        let is_shared = meta.is_dir() && meta.mode() & 0o1000 != 0; // sticky, as /tmp
        if meta.uid() != 0 || meta.mode() & 0o022 != 0 && !is_shared {
            let what = format!("others than root can change {}", path.display());
            return Err(Error::new(ErrorKind::Permission, what).remedy("chown root and chmod go-w, there and above"));
        }
    }
    if !real.metadata().context(missing)?.is_file() {
        return Err(Error::new(ErrorKind::Other, format!("{} is no file", real.display())).remedy(REMEDY));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(&real).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)).context(missing)?;
    if bytes.len() as u64 > LARGEST {
        let what = format!("{} has more than {} MiB", real.display(), LARGEST >> 20);
        return Err(Error::new(ErrorKind::Other, what).remedy(REMEDY));
    }
    Ok(bytes)
}

fn load(pins: &Pins, number: u32, file: &Path, folder: &Path) -> Result<()> {
    let bytes = read(file)?;
    let refuse = |what: String| Error::new(ErrorKind::Other, format!("{}: {what}", file.display())).remedy(REMEDY);
    open::listen_to_libbpf();
    let mut object =
        ObjectBuilder::default().open_memory(&bytes).map_err(|e| refuse(format!("it is no object of BPF ({e:#})")))?;
    let turns =
        MapHandle::from_pinned_path(pins.scheduler_turns()).context(|| "cannot open the scheduler's turns".into())?;
    let mut map =
        object.maps_mut().find(|map| map.name() == TURNS).ok_or_else(|| refuse(format!("it has no map {TURNS}")))?;
    if (map.value_size(), map.max_entries()) != (turns.value_size(), abi::FIEF_TURN_VERSION) {
        return Err(Error::new(ErrorKind::Drift, format!("{} was built for another version of Fief", file.display()))
            .remedy("build it anew, with this version's fief_policy.h"));
    }
    map.reuse_fd(turns.as_fd()).context(|| format!("cannot share the map {TURNS}"))?;
    let mut missing: Vec<&str> = ASK.to_vec();
    let mut targets = Vec::new();
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_tracing =
            program.prog_type() == ProgramType::Tracing && program.section().to_string_lossy().starts_with("fentry/");
        if !ASK.contains(&name.as_str()) || !is_tracing {
            return Err(refuse(format!("it has a program {name}, which nothing asks")));
        }
        missing.retain(|ask| *ask != name);
        let target = Program::fd_from_pinned_path(pins.scheduler_program(&name))
            .context(|| format!("cannot open the scheduler's program {name}"))?;
        program
            .set_attach_target(target.as_raw_fd(), Some(format!("object_{number}")))
            .context(|| format!("cannot aim at {name}"))?;
        targets.push(target);
    }
    if let Some(missing) = missing.first() {
        return Err(refuse(format!("it has no program {missing}")));
    }
    let object = object.load().map_err(|e| {
        let what = format!("the kernel refuses {}: {e:#}", file.display());
        Error::new(ErrorKind::Other, what).remedy("FIEF_LOG=debug shows its reasons")
    })?;
    for program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let mut link = program.attach().context(|| format!("cannot attach its program {name}"))?;
        link.pin(folder.join(&name)).context(|| format!("cannot pin its program {name}"))?;
    }
    Ok(())
}

/// Lets go of all but those with these numbers.
pub fn keep(pins: &Pins, numbers: std::ops::Range<u32>) -> Result<()> {
    for entry in std::fs::read_dir(pins.orders()).into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if !number.is_some_and(|number| numbers.contains(&number)) {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

/// Whether one is attached by that number.
pub fn is_attached(pins: &Pins, number: u32) -> bool {
    pins.orders().join(number.to_string()).is_dir()
}

/// The record of the one with that number; `None`: the scheduler is not on.
pub fn state(pins: &Pins, number: u32) -> Result<Option<abi::fief_object>> {
    if !pins.scheduler_objects().exists() {
        return Ok(None);
    }
    record::lookup(&states(pins)?, &number.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_others_can_change_is_no_order() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("order.bpf.o");
        std::fs::write(&file, "object").expect("written");
        let allow = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
        };
        allow(folder.path(), 0o755);
        assert_eq!(read(&file).expect("root's"), b"object");
        allow(&file, 0o666);
        assert_eq!(read(&file).expect_err("anybody's").kind(), ErrorKind::Permission);
        allow(&file, 0o644);
        allow(folder.path(), 0o777);
        assert_eq!(read(&file).expect_err("in a folder of anybody's").kind(), ErrorKind::Permission);
        allow(folder.path(), 0o755);
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(read(&pipe).expect_err("a pipe").to_string().contains("is no file"));
        assert_eq!(read(&folder.path().join("none")).expect_err("nothing").kind(), ErrorKind::NotFound);
    }
}
