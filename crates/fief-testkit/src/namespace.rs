// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network namespace with a name that says whose it is.
//!
//! The name is `ff-<pid>-<n>-<role>`. The pid lets a later process see that the owner is gone and sweep what it left;
//! nothing else on the machine bears that prefix.

use crate::{Error, Result, lives, run};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const FOLDER: &str = "/run/netns";
const PREFIX: &str = "ff-";

static COUNT: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub struct NetNs {
    name: String,
    file: File,
}

impl NetNs {
    /// Makes a namespace with its loopback up. `role` is a short word for people who look at `ip netns`. The first one of a
    /// process sweeps what dead ones left.
    pub fn new(role: &str) -> Result<NetNs> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| {
            sweep();
        });
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{count}-{role}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        // From here on the guard cleans up, whatever fails.
        let path = path(&name);
        let file = File::open(&path).map_err(|error| {
            let _ = run(Command::new("ip").args(["netns", "del", &name]));
            Error::io(format!("open {}", path.display()), error)
        })?;
        let namespace = NetNs { name, file };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file, for setns and for what takes a namespace by path.
    pub fn path(&self) -> PathBuf {
        path(&self.name)
    }

    /// A counter of TCP in /proc/net/snmp, by its name there (RFC 4022).
    pub fn tcp_counter(&self, name: &str) -> Result<u64> {
        let text = self.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))?;
        let text = text.map_err(|error| Error::io("read the counters of TCP", error))?;
        let rows: Vec<Vec<&str>> =
            text.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split(' ').collect()).collect();
        let value = match &rows[..] {
            [names, values] => names.iter().position(|of| *of == name).and_then(|at| values.get(at)?.parse().ok()),
            _ => None,
        };
        value.ok_or_else(|| Error::failed(format!("TCP has no counter {name}")))
    }

    /// Runs `work` on a thread inside the namespace; a panic goes on in the caller. Sockets made there stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let result = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)?;
                Ok(work())
            });
            inside.join()
        });
        match result {
            Ok(done) => done.map_err(|errno| Error::errno(format!("enter {}", self.name), errno)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// A command that will run inside. Only the network changes: it sees the machine's cgroups and bpffs, which
    /// `ip netns exec` would hide under a fresh /sys.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.enter(&mut command);
        command
    }

    /// Makes an existing command run inside.
    pub fn enter(&self, command: &mut Command) {
        // The duplicate lives in the closure, so the command may outlive the guard.
        let file = self.file.try_clone().ok();
        // SAFETY: between fork and exec the closure makes one system call on a descriptor that it owns; it neither
        // allocates nor takes a lock.
        unsafe {
            command.pre_exec(move || {
                let file = file.as_ref().ok_or(std::io::Error::from_raw_os_error(libc::EMFILE))?;
                match libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
    }

    /// `ip` with these words, inside.
    pub fn ip(&self, words: &str) -> Result<String> {
        run(self.command("ip").args(words.split_whitespace()))
    }

    /// Sets `net.*`, dots or slashes.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        let file = Path::new("/proc/sys").join(if name.contains('/') { name.into() } else { name.replace('.', "/") });
        self.run(|| std::fs::write(&file, value))?
            .map_err(|error| Error::io(format!("write {value} to {} in {}", file.display(), self.name), error))
    }

    /// Writes a file below /sys/class/net, which shows only the interfaces of the namespace that mounted it.
    pub fn write_device(&self, file: &str, value: &str) -> Result<()> {
        let script = format!("printf %s '{value}' > /sys/class/net/{file}");
        run(Command::new("ip").args(["netns", "exec", &self.name, "sh", "-c", &script])).map(drop)
    }

    /// Reads a file below /sys/class/net.
    pub fn read_device(&self, file: &str) -> Result<String> {
        let file = format!("/sys/class/net/{file}");
        let text = run(Command::new("ip").args(["netns", "exec", &self.name, "cat", &file]))?;
        Ok(text.trim().to_owned())
    }

    /// The processes whose main thread is inside.
    pub fn pids(&self) -> Vec<u32> {
        pids(&self.name)
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

fn pids(name: &str) -> Vec<u32> {
    let text = run(Command::new("ip").args(["netns", "pids", name])).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Ends what runs in the namespace, which only its owner can have started, and removes the namespace.
fn remove(name: &str) {
    end_all(name, Signal::SIGKILL, Duration::from_secs(2));
    let _ = run(Command::new("ip").args(["netns", "del", name]));
}

fn end_all(name: &str, signal: Signal, deadline: Duration) {
    let me = std::process::id();
    let mut told: Vec<u32> = Vec::new();
    let _ = crate::wait_until(deadline, || {
        let inside: Vec<u32> = pids(name).into_iter().filter(|&pid| pid != me && lives(pid)).collect();
        for &pid in &inside {
            if !told.contains(&pid) {
                let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
                told.push(pid);
            }
        }
        inside.is_empty()
    });
}

/// Removes the namespaces of processes that no longer live; how many there were. What still runs inside is asked to
/// end first, so that it can take down what it pinned.
pub fn sweep() -> usize {
    remove_where(|owner| !lives(owner))
}

/// Removes every namespace of one process; for a signal handler thread that has no guards at hand.
pub fn remove_all_of(pid: u32) -> usize {
    remove_where(|owner| owner == pid)
}

fn remove_where(condition: impl Fn(u32) -> bool) -> usize {
    let Ok(entries) = std::fs::read_dir(FOLDER) else {
        return 0;
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if owner(&name).is_some_and(&condition) {
            end_all(&name, Signal::SIGTERM, Duration::from_secs(5));
            remove(&name);
            removed += 1;
        }
    }
    removed
}

fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// The name of the calling thread's namespace, if a process that still lives made it with [`NetNs`].
pub(crate) fn living_testbed() -> Option<String> {
    let own = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
    std::fs::read_dir(FOLDER).ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = owner(&name)?;
        let is_alive = lives(pid);
        let is_here = entry.metadata().is_ok_and(|file| (file.dev(), file.ino()) == (own.dev(), own.ino()));
        (is_alive && is_here).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Feature, require};

    #[test]
    fn the_owner_is_read_from_the_name() {
        assert_eq!(owner("ff-4711-0-server"), Some(4711));
        assert_eq!(owner("ff-x-0-server"), None);
        assert_eq!(owner("blue"), None);
    }

    #[test]
    fn is_gone_after_a_panic() {
        if !require(Feature::NetNs) {
            return;
        }
        let namespace = NetNs::new("panic").expect("a namespace");
        let name = namespace.name().to_owned();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            namespace.run(|| panic!("inside")).expect("never returned");
        }));
        assert!(panic.is_err());
        assert!(path(&name).exists());
        drop(namespace);
        assert!(!path(&name).exists());
    }

    #[test]
    fn ends_what_runs_inside() {
        if !require(Feature::NetNs) {
            return;
        }
        let namespace = NetNs::new("kill").expect("a namespace");
        let mut child = namespace.command("sleep").arg("1000").spawn().expect("sleep");
        assert!(namespace.pids().contains(&child.id()));
        drop(namespace);
        assert!(!child.wait().expect("it ended").success());
    }

    #[test]
    fn sweeps_what_a_dead_process_left() {
        if !require(Feature::NetNs) {
            return;
        }
        let mut child = Command::new("true").spawn().expect("true");
        let dead = child.id();
        child.wait().expect("it ended");
        let name = format!("ff-{dead}-0-left");
        run(Command::new("ip").args(["netns", "add", &name])).expect("a namespace");
        // one beside this one may be faster
        sweep();
        assert!(!path(&name).exists());
    }

    #[test]
    fn a_sysctl_is_of_the_namespace() {
        if !require(Feature::NetNs) {
            return;
        }
        let namespace = NetNs::new("sysctl").expect("a namespace");
        let read = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fin_timeout").expect("a sysctl");
        let outside = read();
        namespace.sysctl("net.ipv4.tcp_fin_timeout", "7").expect("written");
        assert_eq!(namespace.run(read).expect("inside").trim(), "7");
        assert_eq!(read(), outside);
    }
}
