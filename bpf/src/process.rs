// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls on processes that no library wraps safely.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, signal};

/// Sets the caller's nice value.
pub fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the nice value of a thread; `None`: it runs only when nothing else wants its CPU.
pub fn set_thread_nice(tid: i32, nice: Option<i32>) -> io::Result<()> {
    let policy = if nice.is_none() { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameter, which lives until the call returns.
    if unsafe { libc::sched_setscheduler(tid, policy, &raw const parameter) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no pointers are passed.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as libc::id_t, nice.unwrap_or(0)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor of a process.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// What tells a process from all others, those included that get its number later.
pub fn identity(process: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(nix::sys::stat::fstat(process)?.st_ino)
}

/// A copy of a process's descriptor number `fd`.
pub fn take_fd(process: BorrowedFd<'_>, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })
}

/// Waits until the process has ended; one that is gone already has.
pub fn wait_end(pid: i32) -> io::Result<()> {
    let process = match open(pid) {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        opened => opened?,
    };
    poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
    Ok(())
}

/// The parent of a process, if both are there.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // the name is in parentheses and may hold anything; state and parent follow it
    let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    (parent > 0).then_some(parent)
}

/// When a process started, in ticks since the machine did, by which it is told from one that has its number later. `None`: it has
/// ended, also where nobody has waited for it yet.
pub fn started(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // as above; of the fields that proc(5) counts from 1, the third is the first here
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let started = fields.nth(22 - 4)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

/// The root folders that the caller's ancestors see, the nearest first: what a mount namespace of the caller's hides.
pub fn ancestor_roots() -> impl Iterator<Item = PathBuf> {
    std::iter::successors(parent(std::process::id() as i32), |pid| parent(*pid))
        .map(|pid| PathBuf::from(format!("/proc/{pid}/root")))
}

/// Whether this process was started with SIGPIPE ignored.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores SIGPIPE before `main`, so what was inherited is read by what the C library calls before that.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_PIPE: extern "C" fn() = {
    extern "C" fn note() {
        let mut now = std::mem::MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: nothing is changed; the kernel fills `now`, which is read only if it has.
        let is_ignored = unsafe {
            libc::sigaction(libc::SIGPIPE, std::ptr::null(), now.as_mut_ptr()) == 0
                && now.assume_init().sa_sigaction == libc::SIG_IGN
        };
        IGNORED_PIPE.store(is_ignored, Ordering::Relaxed);
    }
    note
};

/// Becomes the program, with the signals blocked that the caller has blocked, and SIGPIPE ignored if it was when this process
/// started: [`CommandExt::exec`] blocks and ignores none, whatever systemd has said. Returns only on failure.
pub fn exec(command: &mut Command) -> io::Error {
    let blocked = match SigSet::thread_get_mask() {
        Ok(blocked) => blocked,
        Err(e) => return e.into(),
    };
    let keep = move || {
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None)?;
        if IGNORED_PIPE.load(Ordering::Relaxed) {
            // SAFETY: no handler of ours is called.
            unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }?;
        }
        Ok(())
    };
    // SAFETY: the closure makes two system calls, and allocates and locks nothing.
    unsafe { command.pre_exec(keep) }.exec()
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
