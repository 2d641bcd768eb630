// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Forked children that share the test's code, and a door for them to wait at.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid};

/// A forked child; killed and reaped when dropped.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    reaped: bool,
}

/// Runs `body` in a child. A panic there is a failure of [`Child::finish`].
pub fn fork(body: impl FnOnce()) -> Child {
    // SAFETY: the test's other thread, if there is one, only waits for this one, so no lock is taken in the child.
    match unsafe { nix::unistd::fork() }.expect("a child") {
        ForkResult::Parent { child } => Child { pid: child, reaped: false },
        ForkResult::Child => run(body),
    }
}

/// As [`fork`], born in a cgroup (clone3 with CLONE_INTO_CGROUP).
pub fn clone_into(cgroup: impl AsFd, body: impl FnOnce()) -> Child {
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    let args = libc::clone_args {
        flags: CLONE_INTO_CGROUP,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.as_fd().as_raw_fd() as u64,
    };
    // SAFETY: without a stack of its own the child goes on in a copy of this one, as after fork; see there.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        run(body);
    }
    Child { pid: Pid::from_raw(pid as i32), reaped: false }
}

fn run(body: impl FnOnce()) -> ! {
    let code = if catch_unwind(AssertUnwindSafe(body)).is_ok() { 0 } else { 101 };
    // SAFETY: no pointers are passed; the parent's exit handlers are not the child's to run.
    unsafe { libc::_exit(code) }
}

impl Child {
    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// kill -9, and wait until it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    /// Waits for its end, which must be a good one.
    pub fn finish(mut self) {
        let status = waitpid(self.pid, None).expect("a child of ours");
        self.reaped = true;
        assert_eq!(status, WaitStatus::Exited(self.pid, 0), "the child failed");
    }

    /// Whether it has ended; it stays to be reaped.
    pub fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        !matches!(nix::sys::wait::waitid(nix::sys::wait::Id::Pid(self.pid), flags), Ok(WaitStatus::StillAlive))
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.reaped, true) {
            // one that has ended already is only to be reaped
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opened by one process, passed by another.
#[derive(Debug)]
pub struct Door {
    out: OwnedFd,
    into: OwnedFd,
}

impl Door {
    /// A closed door; make it before the fork.
    #[allow(clippy::new_without_default, reason = "it takes descriptors")]
    pub fn new() -> Self {
        let (out, into) = nix::unistd::pipe().expect("a pipe");
        Self { out, into }
    }

    /// Lets one through.
    pub fn open(&self) {
        assert_eq!(nix::unistd::write(&self.into, b"."), Ok(1));
    }

    /// Waits until it is opened; panics after a minute.
    pub fn pass(&self) {
        let mut fds = [PollFd::new(self.out.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, PollTimeout::from(60_000u16)) {
                Err(Errno::EINTR) => {}
                ready => {
                    assert_eq!(ready, Ok(1), "nobody opened the door");
                    break;
                }
            }
        }
        assert_eq!(nix::unistd::read(&self.out, &mut [0]), Ok(1));
    }
}
