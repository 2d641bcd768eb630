// SPDX-License-Identifier: Apache-2.0 OR MIT
//! kill -9 at a chosen step of a piece of work: a step is a system call that changes what outlives the process.

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::child::fork;

/// Commands of bpf(2) that change something: update, delete, pin, run, open a tracepoint, update and delete many, create a
/// link, update one, detach one.
const BPF_STEPS: [u64; 10] = [2, 3, 6, 10, 17, 26, 27, 28, 29, 34];

/// Runs `work` in a child and kills it right before its `step`th step, counted from 0. Returns whether it came so far.
pub fn kill_before(step: usize, work: impl FnOnce()) -> bool {
    trace(Some(step), work).is_none()
}

/// Does the work; how many steps it has.
pub fn steps(work: impl FnOnce()) -> usize {
    trace(None, work).expect("nobody kills it")
}

/// The number of steps; `None`: killed before `step`.
fn trace(step: Option<usize>, work: impl FnOnce()) -> Option<usize> {
    let child = fork(|| {
        ptrace::traceme().expect("nobody traces it yet");
        raise(Signal::SIGSTOP).expect("a signal to itself");
        work();
    });
    let pid = Pid::from_raw(child.pid());
    assert_eq!(waitpid(pid, None), Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(pid, options).expect("a stopped child");
    let mut seen = 0;
    let mut signal = None;
    loop {
        ptrace::syscall(pid, signal.take()).expect("a stopped child");
        match waitpid(pid, None).expect("a child") {
            WaitStatus::PtraceSyscall(_) => {
                if is_step(pid) {
                    if Some(seen) == step {
                        child.kill();
                        return None;
                    }
                    seen += 1;
                }
            }
            WaitStatus::Stopped(_, with) => signal = Some(with),
            WaitStatus::Exited(_, code) => {
                std::mem::forget(child); // it is reaped, and its number may be another's
                assert_eq!(code, 0, "the work failed");
                return Some(seen);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Whether the child stops at the entry of a call that changes something.
fn is_step(pid: Pid) -> bool {
    // SAFETY: a record of integers and a union of such, for which zero is a value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size that is passed into `info`.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid.as_raw(), size_of_val(&info), &raw mut info) };
    assert!(got > 0, "{}", std::io::Error::last_os_error());
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return false;
    }
    // SAFETY: `op` says that the kernel filled this variant.
    let entry = unsafe { info.u.entry };
    match entry.nr as libc::c_long {
        libc::SYS_bpf => BPF_STEPS.contains(&entry.args[0]),
        libc::SYS_mkdir
        | libc::SYS_mkdirat
        | libc::SYS_rmdir
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_write => true,
        libc::SYS_openat => entry.args[2] & libc::O_CREAT as u64 != 0,
        _ => false,
    }
}
