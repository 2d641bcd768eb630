// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scheduler, loaded once, and attached and detached as often as asked. For tests: emulated, each load takes the verifier half a minute.
//!
//! The kernel attaches a struct_ops map anew once its link is gone: it asks for a value that was set and for BPF_F_LINK, no more
//! (`bpf_struct_ops_valid_to_reg()` of kernel/bpf/bpf_struct_ops.c). Fief's scheduler bears one attachment, as its beginning takes all of
//! its records for fresh and makes its timers, which a second time is EBUSY. So before each attachment the records are made here as a load
//! leaves them, and the programs are those of an installation. Nothing is pinned: it ends with the process.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use libbpf_rs::{Link, Map, MapCore, MapFlags, MapType, Object};

use crate::abi;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::pin::Pins;
use crate::process;
use crate::record::Record;
use crate::schedule;
use crate::table::Table;

/// User space took the scheduler out (SCX_EXIT_UNREG of kernel/sched/ext.c).
const EXIT_ASKED: u64 = 64;
/// A record for each place of the container table.
const NODES: &str = "sched_nodes";

/// The programs and maps of this build's scheduler.
#[derive(Debug)]
pub struct Loaded<'a> {
    object: &'a mut Object,
    /// Those that there were at the load: only their nodes are written.
    containers: Vec<u32>,
}

/// It has the CPUs until it is detached, or let go.
#[derive(Debug)]
pub struct Attached {
    link: Link,
    /// For how long the kernel took to attach it.
    pub took: Duration,
}

/// Loads it beside what is in force, where no scheduler has the CPUs.
pub fn with_loaded<T>(pins: &Pins, work: impl FnOnce(&mut Loaded<'_>) -> T) -> Result<T> {
    let containers = Table::open(pins)?.rows().map(|row| row.container.id).collect();
    schedule::with_object(pins, |object| Ok(work(&mut Loaded { object, containers })))
}

impl Loaded<'_> {
    /// Errors: the kernel does not take it, or it could not begin.
    pub fn attach(&mut self) -> Result<Attached> {
        self.refresh()?;
        let since = Instant::now();
        let mut ops = self.object.maps_mut().find(|map| map.name() == "sched_ops").expect("the sched object has it");
        let link = ops.attach_struct_ops().context(|| "the kernel does not take the scheduler".into())?;
        let took = since.elapsed();
        // there is a link too of one that could not begin
        let told = self.told()?;
        if told.exit_kind != 0 {
            return Err(is_out("the scheduler is out at once", &told));
        }
        Ok(Attached { link, took })
    }

    /// The kernel's own has the CPUs when this returns. For how long that took. Errors: the kernel had taken it out before.
    pub fn detach(&mut self, attached: Attached) -> Result<Duration> {
        let since = Instant::now();
        attached.link.detach().context(|| "cannot detach the scheduler".into())?;
        let took = since.elapsed();
        let told = self.told()?;
        if told.exit_kind != EXIT_ASKED {
            return Err(is_out("the kernel took the scheduler out", &told));
        }
        Ok(took)
    }

    fn told(&self) -> Result<abi::fief_sched> {
        let states = self.object.maps().find(|map| map.name() == "sched_states").expect("the sched object has it");
        let bytes =
            states.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).context(|| "cannot read the scheduler's state".into())?;
        abi::fief_sched::from_bytes(&bytes.unwrap_or_default())
            .ok_or_else(|| Error::new(ErrorKind::Drift, "the scheduler's state is shorter than its record"))
    }

    /// Makes its records as a load leaves them.
    fn refresh(&self) -> Result<()> {
        let mut maps: Vec<Map<'_>> = self.object.maps().filter(is_own).collect();
        // its variables last, when no timer runs any more that writes them
        maps.sort_by_key(is_variables);
        for map in maps {
            match map.map_type() {
                MapType::Array => self.clear(&map)?,
                MapType::TaskStorage => forget_threads(&map)?,
                // its operations
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes zeroes. The kernel ends and frees a timer whose element is written (`array_map_update_elem()`).
    fn clear(&self, map: &Map<'_>) -> Result<()> {
        let all: Vec<u32>;
        let indices: &[u32] = if map.name() == NODES {
            &self.containers
        } else {
            all = (0..map.max_entries()).collect();
            &all
        };
        let keys: Vec<u8> = indices.iter().flat_map(|index| index.to_ne_bytes()).collect();
        let none = vec![0u8; indices.len() * map.value_size() as usize];
        map.update_batch(&keys, &none, indices.len() as u32, MapFlags::ANY, MapFlags::ANY)
            .context(|| format!("cannot clear {}", map.name().to_string_lossy()))
    }
}

fn is_out(what: &str, told: &abi::fief_sched) -> Error {
    Error::new(ErrorKind::Other, format!("{what}: {}", schedule::reason_of(told)))
}

/// The others are the core's, or nobody writes them.
fn is_own(map: &Map<'_>) -> bool {
    let name = map.name().to_string_lossy();
    name.starts_with("sched_") && !name.contains('.') || is_variables(map)
}

fn is_variables(map: &Map<'_>) -> bool {
    map.name().to_string_lossy().ends_with(".bss")
}

/// Drops the records of all threads.
fn forget_threads(map: &Map<'_>) -> Result<()> {
    for tid in threads() {
        // one that has ended meanwhile has no record
        let Ok(thread) = process::open_thread(tid) else { continue };
        if let Err(e) = map.delete(&thread.as_raw_fd().to_ne_bytes())
            && e.kind() != libbpf_rs::ErrorKind::NotFound
        {
            return Err(e).context(|| format!("cannot forget the thread {tid}"));
        }
    }
    Ok(())
}

/// All that there are now, the kernel's own included.
fn threads() -> impl Iterator<Item = i32> {
    let processes = numbers_in(Path::new("/proc"));
    processes.into_iter().flat_map(|pid| numbers_in(Path::new(&format!("/proc/{pid}/task"))))
}

/// The entries of a folder whose names are numbers; none of one that is gone.
fn numbers_in(folder: &Path) -> Vec<i32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok())).collect()
}
