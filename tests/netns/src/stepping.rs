// SPDX-License-Identifier: Apache-2.0 OR MIT
//! kill -9 at a chosen step of a piece of work: a step is a system call that changes what outlives the process.
//!
//! The work may become another program (exec). What that starts is not followed: it goes on when the work is killed.

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::child::fork;

/// Commands of bpf(2) that change something: update, delete, pin, run, open a tracepoint, update and delete many, create a
/// link, update one, detach one.
const BPF_STEPS: [u64; 10] = [2, 3, 6, 10, 17, 26, 27, 28, 29, 34];

/// What a call returns that is made again (ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND; linux/errno.h).
const RESTARTED: [i64; 3] = [-512, -513, -514];

/// Runs `work` in a child and kills it right before its `step`th step, counted from 0. Returns whether it came so far.
pub fn kill_before(step: usize, work: impl FnOnce()) -> bool {
    let mut seen = 0;
    kill_when(work, || {
        seen += 1;
        seen > step
    })
}

/// The same right before the first step for which `is_there` says so; the work stands still meanwhile.
pub fn kill_when(work: impl FnOnce(), is_there: impl FnMut() -> bool) -> bool {
    trace(work, is_there) == Ended::Killed
}

/// Does the work; how many steps it has.
pub fn steps(work: impl FnOnce()) -> usize {
    watch_steps(work, || ()).len()
}

/// Does the work; what `look` finds before each of its steps, while it stands still.
pub fn watch_steps<T>(work: impl FnOnce(), mut look: impl FnMut() -> T) -> Vec<T> {
    let mut found = Vec::new();
    trace(work, || {
        found.push(look());
        false
    });
    found
}

#[derive(PartialEq)]
enum Ended {
    Done,
    Killed,
}

/// Kills the work before the first step for which `kill` says so.
fn trace(work: impl FnOnce(), mut kill: impl FnMut() -> bool) -> Ended {
    let child = fork(|| {
        ptrace::traceme().expect("nobody traces it yet");
        raise(Signal::SIGSTOP).expect("a signal to itself");
        work();
    });
    let pid = Pid::from_raw(child.pid());
    assert_eq!(waitpid(pid, None), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
        | ptrace::Options::PTRACE_O_TRACEEXEC
        | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(pid, options).expect("a stopped child");
    let mut signal = None;
    let mut call = Call::default();
    loop {
        ptrace::syscall(pid, signal.take()).expect("a stopped child");
        match waitpid(pid, None).expect("a child") {
            WaitStatus::PtraceSyscall(_) => {
                if call.next(pid) && kill() {
                    child.kill();
                    return Ended::Killed;
                }
            }
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => {}
            WaitStatus::Stopped(_, with) => signal = Some(with),
            WaitStatus::Exited(_, code) => {
                std::mem::forget(child); // it is reaped, and its number may be another's
                assert_eq!(code, 0, "the work failed");
                return Ended::Done;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Where the child stands between its system calls.
#[derive(Default)]
struct Call {
    /// The last one, and whether the kernel has it made again. Writing to a device's file in sysfs is, without rest, while
    /// somebody else changes devices.
    last: Option<(u64, [u64; 6])>,
    again: bool,
}

impl Call {
    /// Whether the child stops at the entry of a call that changes something.
    fn next(&mut self, pid: Pid) -> bool {
        // SAFETY: a record of integers and a union of such, for which zero is a value.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes at most the size that is passed into `info`.
        let got =
            unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid.as_raw(), size_of_val(&info), &raw mut info) };
        assert!(got > 0, "{}", std::io::Error::last_os_error());
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            // SAFETY: a stop at a call that is not its entry is its exit, and the kernel filled that.
            let value = unsafe { info.u.exit }.sval;
            self.again = RESTARTED.contains(&value);
            return false;
        }
        // SAFETY: `op` says that the kernel filled this variant.
        let entry = unsafe { info.u.entry };
        let call = Some((entry.nr, entry.args));
        let again = std::mem::take(&mut self.again) && self.last == call;
        self.last = call;
        !again && is_step(entry.nr, &entry.args)
    }
}

fn is_step(number: u64, args: &[u64; 6]) -> bool {
    match number as libc::c_long {
        libc::SYS_bpf => BPF_STEPS.contains(&args[0]),
        libc::SYS_mkdir
        | libc::SYS_mkdirat
        | libc::SYS_rmdir
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_write => true,
        libc::SYS_openat => args[2] & libc::O_CREAT as u64 != 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use fief_testkit::wait_until;
    use nix::sys::signal::kill;

    use super::*;
    use crate::SOON;

    #[test]
    fn a_call_that_is_made_again_is_one_step() {
        let (out, into) = nix::unistd::pipe().unwrap();
        nix::fcntl::fcntl(&into, nix::fcntl::FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
        nix::unistd::write(&into, &[0; 4096]).unwrap();
        let count = steps(|| {
            let writer = Pid::this();
            let waits = || {
                let call = std::fs::read_to_string(format!("/proc/{writer}/syscall")).unwrap();
                call.starts_with(&format!("{} ", libc::SYS_write))
            };
            let disturber = fork(|| {
                for _ in 0..3 {
                    wait_until(SOON, waits).unwrap();
                    // nobody handles it, but it is shown to the tracer
                    kill(writer, Signal::SIGURG).unwrap();
                }
                nix::unistd::read(&out, &mut [0; 4096]).unwrap();
            });
            nix::unistd::write(&into, &[0; 1]).unwrap();
            disturber.finish();
        });
        assert_eq!(count, 1);
    }
}
