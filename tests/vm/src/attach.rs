// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scheduler attached and detached many times, loaded once: what the kernel does each time with its threads, its queues and its memory.
//! How it is loaded, and turned on by policies, is in `turns`.

use std::fs::{File, OpenOptions, read_to_string};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use fief_bpf::loaded::{Loaded, with_loaded};
use fief_bpf::pin::Pins;
use fief_bpf::schedule;
use libbpf_rs::PrintLevel;

use crate::report::{Found, text};
use crate::schedule::{DEADLINE, Spinner, apply, held, must, percents, start};
use crate::turns::Left;

const NAMES: [&str; 2] = ["a", "b"];
const SHARES: [(&str, &str); 2] = [("a", "cpu.share = \"30%\""), ("b", "cpu.share = \"70%\"")];
/// The kernel keeps what it needed for the first ones.
const FIRST: u32 = 5;
/// So much longer than the kernel lets pass before it frees what waits for RCU (KFREE_DRAIN_JIFFIES: 5 s).
const FREED: Duration = Duration::from_secs(7);
/// The queues of one attachment are about a megabyte.
const MOST_LOST_KIB: i64 = 8 << 10;
/// More than a record of the kernel's log has.
const RECORD: usize = 8 << 10;

pub fn attaches_many(times: u32) -> Found {
    // else it tells what of the operations this kernel does not know
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, said| eprint!("{said}"))));
    apply(&SHARES)?;
    must(true)?;
    let pins = Pins::from_env().map_err(text)?;
    schedule::remove(&pins).map_err(text)?;
    must(false)?;
    let without = Left::with_deadline()?;
    let told = with_loaded(&pins, |loaded| rounds(loaded, times)).map_err(text)??;
    let left = Left::with_deadline()?;
    if left.pins != without.pins {
        return Err(format!("{} pins became {}", without.pins, left.pins));
    }
    apply(&SHARES)?;
    must(true)?;
    let spinners = start(&NAMES.map(|name| (name, 2)))?;
    let shares = held(&[30.0, 70.0], 1.0, || percents(&NAMES, &[&spinners]))?;
    Ok(format!("{told}; after it a policy's shares are {shares}"))
}

fn rounds(loaded: &mut Loaded<'_>, times: u32) -> Found {
    // not before, since the verifier would go on beside them
    let spinners = start(&NAMES.map(|name| (name, 2)))?;
    let attached = loaded.attach().map_err(text)?;
    Left::must_be_seen()?;
    loaded.detach(attached).map_err(text)?;
    for _ in 0..FIRST {
        turn(loaded, &spinners)?;
    }
    let mut log = Log::from_now()?;
    let (began, rejected, free) = (count("enable_seq")?, count("nr_rejected")?, most_available_kib()?);
    let (mut on, mut off) = (Duration::ZERO, Duration::ZERO);
    for time in 1..=times {
        let took = turn(loaded, &spinners).map_err(|e| format!("time {time} of {times}: {e}"))?;
        on += took.0;
        off += took.1;
        // each time: its buffer does not hold what it says of 1,000
        log.must_be_calm()?;
    }
    let counted = count("enable_seq")? - began;
    if counted != u64::from(times) {
        return Err(format!("the kernel counts {counted} of {times}"));
    }
    let now_rejected = count("nr_rejected")?;
    if now_rejected != rejected {
        return Err(format!("{rejected} threads were rejected before, and {now_rejected} are"));
    }
    let lost = free - most_available_kib()?;
    if lost > MOST_LOST_KIB {
        return Err(format!("{lost} KiB of memory are lost in {times} times"));
    }
    let parts = percents(&NAMES, &[&spinners])?;
    all_run(&spinners)?;
    log.must_be_calm()?;
    let parts = parts.iter().map(|part| format!("{part:.1}")).collect::<Vec<_>>().join(" and ");
    let (on, off) = (each(on, times), each(off, times));
    Ok(format!(
        "{times} times; attached in {on} and detached in {off} each; {lost} KiB less memory; the threads have {parts} % without it"
    ))
}

/// Attaches it and detaches it, for how long each. Every thread runs in between, and again after it.
fn turn(loaded: &mut Loaded<'_>, spinners: &[Spinner]) -> Result<(Duration, Duration), String> {
    let attached = loaded.attach().map_err(text)?;
    let on = attached.took;
    must_have(Some("fief"))?;
    all_run(spinners).map_err(|e| format!("under it {e}"))?;
    let off = loaded.detach(attached).map_err(text)?;
    must_have(None)?;
    all_run(spinners).map_err(|e| format!("after it {e}"))?;
    Ok((on, off))
}

fn must_have(name: Option<&str>) -> Result<(), String> {
    let found = schedule::attached();
    if found.as_deref() == name { Ok(()) } else { Err(format!("{found:?} has the CPUs, not {name:?}")) }
}

/// Waits until each of them has had CPU time from now on: one that a change has left behind in no class has none.
fn all_run(spinners: &[Spinner]) -> Result<(), String> {
    let used = || spinners.iter().map(Spinner::used).collect::<Result<Vec<Duration>, String>>();
    let (before, since) = (used()?, Instant::now());
    loop {
        let still = used()?.iter().zip(&before).filter(|(now, before)| now <= before).count();
        if still == 0 {
            return Ok(());
        }
        if since.elapsed() > DEADLINE {
            return Err(format!("{still} of {} threads do not run", spinners.len()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One of the kernel's numbers of schedulers.
fn count(name: &str) -> Result<u64, String> {
    let said = read_to_string(format!("/sys/kernel/sched_ext/{name}")).map_err(text)?;
    said.trim().parse::<u64>().map_err(|e| format!("{name} is {said}: {e}"))
}

fn available_kib() -> Result<i64, String> {
    let all = read_to_string("/proc/meminfo").map_err(text)?;
    let told = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = told.and_then(|told| told.split_whitespace().next()).ok_or("no memory is told of")?;
    number.parse::<i64>().map_err(text)
}

/// The most within [`FREED`].
fn most_available_kib() -> Result<i64, String> {
    let (mut most, since) = (available_kib()?, Instant::now());
    while since.elapsed() < FREED {
        std::thread::sleep(Duration::from_millis(200));
        most = most.max(available_kib()?);
    }
    Ok(most)
}

fn each(all: Duration, times: u32) -> String {
    format!("{:.0} ms", all.as_secs_f64() * 1e3 / f64::from(times.max(1)))
}

/// What the kernel says.
struct Log {
    file: File,
}

impl Log {
    fn from_now() -> Result<Self, String> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(nix::libc::O_NONBLOCK);
        let mut file = options.open("/dev/kmsg").map_err(text)?;
        file.seek(SeekFrom::End(0)).map_err(text)?;
        Ok(Self { file })
    }

    /// Errors: the first complaint since it was asked last.
    fn must_be_calm(&mut self) -> Result<(), String> {
        let mut record = [0; RECORD];
        loop {
            match self.file.read(&mut record) {
                Ok(length) => {
                    let said = String::from_utf8_lossy(&record[..length]);
                    if complains(&said) {
                        return Err(format!("the kernel says {}", said.trim_end()));
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(format!("the kernel's log: {e}")),
            }
        }
    }
}

/// As the guest's `init` searches for it at its end.
fn complains(said: &str) -> bool {
    let stalls = said.split(|one: char| !one.is_alphanumeric()).any(|word| word.starts_with("stall"));
    stalls || ["BUG:", "WARNING:", "Oops"].iter().any(|word| said.contains(word))
}
