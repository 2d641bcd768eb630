// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls on processes that no library wraps safely.

use std::ffi::c_int;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, pthread_sigmask, signal};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

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

/// Whether a thread is of the kernel's classes for real time or deadlines, which come before all others; not one that has ended.
pub fn is_real_time(tid: i32) -> bool {
    // SAFETY: no pointers are passed.
    let told = unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid) } as c_int;
    [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&(told & !libc::SCHED_RESET_ON_FORK))
}

/// A descriptor of a process.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// A descriptor of a thread, by which a map of threads' records knows it. Errors: Linux before 6.9 has none of threads.
pub fn open_thread(tid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, tid, libc::PIDFD_THREAD) })
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

/// What the child of [`take_listening`] says last.
const NO_MORE: c_int = -1;

/// Copies of a process's descriptors with these numbers: of those that are sockets which listen, and that can be had until then.
///
/// What is there by the time that a copy is made is for the process to say. The close of a copy of a file of FUSE waits for an answer of
/// its server, without an end and also after kill -9, and a copy is made no sooner than an exec that is under way is done. So a child takes
/// them, this process takes from the child what listens, and a child that waits is left behind.
pub fn take_listening(process: BorrowedFd<'_>, fds: &[i32], until: Instant) -> io::Result<Vec<OwnedFd>> {
    let (here, there) = UnixStream::pair()?;
    // SAFETY: the child makes system calls alone: it allocates, locks and drops nothing.
    let child = match unsafe { fork() }? {
        ForkResult::Child => hold_listening(process.as_raw_fd(), fds, there.as_raw_fd()),
        ForkResult::Parent { child } => child,
    };
    drop(there);
    let taken = take_from(child, &here, until);
    // it ends with the other end of the pair; not where it waits for the process
    drop(here);
    let _ = kill(child, Signal::SIGKILL);
    reap(child, until);
    taken
}

/// What the child tells that it holds. It holds them until `told` is closed.
fn take_from(child: Pid, mut told: &UnixStream, until: Instant) -> io::Result<Vec<OwnedFd>> {
    let child = open(child.as_raw())?;
    let mut taken = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut number = [0; size_of::<c_int>()];
        if left.is_zero() || told.set_read_timeout(Some(left)).is_err() || told.read_exact(&mut number).is_err() {
            return Ok(taken);
        }
        match c_int::from_ne_bytes(number) {
            NO_MORE => return Ok(taken),
            // nobody else changes what the child has open
            number => taken.push(take_fd(child.as_fd(), number)?),
        }
    }
}

/// Waits for a child that was killed, unless it cannot end.
fn reap(child: Pid, until: Instant) {
    const STEP: Duration = Duration::from_millis(1);
    let runs = || waitpid(child, Some(WaitPidFlag::WNOHANG)).is_ok_and(|status| status.pid().is_none());
    while runs() && Instant::now() < until {
        std::thread::sleep(STEP);
    }
}

/// The child's part: takes them, tells which of them listen, and holds these until the other one has taken them.
fn hold_listening(process: c_int, fds: &[i32], tell: c_int) -> ! {
    // nothing else of the parent's, as its lock and its output, stays open in one that may stay for ever
    close_all_but(process.min(tell), process.max(tell));
    for &fd in fds {
        // SAFETY: no pointers are passed.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, fd, 0) } as c_int;
        // one that does not listen stays open: its close may be the one that waits
        if copy >= 0 && listens(copy) {
            say(tell, copy);
        }
    }
    say(tell, NO_MORE);
    let mut byte = 0u8;
    // SAFETY: at most one byte is written, into one that lives until the call returns.
    while unsafe { libc::read(tell, (&raw mut byte).cast(), 1) } < 0 && Errno::last() == Errno::EINTR {}
    // SAFETY: no pointers are passed; the parent's exit handlers are not the child's to run.
    unsafe { libc::_exit(0) }
}

fn close_all_but(low: c_int, high: c_int) {
    let ranges = [(0, low - 1), (low + 1, high - 1), (high + 1, c_int::MAX)];
    for (first, last) in ranges.into_iter().filter(|(first, last)| first <= last) {
        // SAFETY: no pointers are passed, and nobody uses these descriptors in this process any more.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

fn listens(fd: c_int) -> bool {
    let mut listens: c_int = 0;
    let mut length = size_of_val(&listens) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the integer, which lives until the call returns.
    let err = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, (&raw mut listens).cast(), &raw mut length)
    };
    err == 0 && listens != 0
}

/// One who does not hear it has ended.
fn say(to: c_int, number: c_int) {
    let bytes = number.to_ne_bytes();
    // SAFETY: the bytes live until the call returns.
    unsafe { libc::write(to, bytes.as_ptr().cast(), bytes.len()) };
}

/// Waits until the process has ended; one that is gone already has.
pub fn wait_end(pid: i32) -> io::Result<()> {
    match open(pid) {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        process => until_end(process?.as_fd()),
    }
}

/// Ends a process by kill -9, and waits until it has ended; one that has already is no error.
pub fn end(process: BorrowedFd<'_>) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the kernel is passed no record, and makes up its own.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, none, 0) };
    match Errno::result(sent) {
        Err(Errno::ESRCH) => Ok(()),
        sent => {
            sent?;
            until_end(process)
        }
    }
}

fn until_end(process: BorrowedFd<'_>) -> io::Result<()> {
    poll(&mut [PollFd::new(process, PollFlags::POLLIN)], PollTimeout::NONE)?;
    Ok(())
}

/// What the kernel tells of a process in a file; `None`: it is gone. It is bytes: a process names itself. Errors: nobody can tell.
fn told(pid: i32, file: &str) -> io::Result<Option<String>> {
    match std::fs::read(format!("/proc/{pid}/{file}")) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        bytes => Ok(Some(String::from_utf8_lossy(&bytes?).into_owned())),
    }
}

/// A field of its status, which the kernel tells also while the process is within exec; the ends of lines in its name are escaped.
fn field(pid: i32, name: &str) -> io::Result<Option<String>> {
    let Some(status) = told(pid, "status")? else { return Ok(None) };
    value(&status, name).map(|value| Some(value.to_owned())).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn value<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
}

/// The parent of a process, if both are there.
pub fn parent(pid: i32) -> Option<i32> {
    let parent = field(pid, "PPid").ok()??.parse().ok()?;
    (parent > 0).then_some(parent)
}

/// Whether a process has ended, also where nobody has waited for it yet. One of which nobody can tell has not, nor one whose first thread
/// alone has.
pub fn has_ended(pid: i32) -> bool {
    let Ok(status) = told(pid, "status") else { return false };
    let Some(status) = status else { return true };
    let is_over = value(&status, "State").is_some_and(|state| state.starts_with(['Z', 'X']));
    is_over
        && value(&status, "Threads").and_then(|threads| threads.parse().ok()).is_some_and(|threads: u32| threads <= 1)
}

/// When a process started, in ticks since the machine did, by which it is told from one that has its number later. `None`: it has
/// ended, also where nobody has waited for it yet. The kernel may wait until an exec that is under way is done, as long as that takes.
/// Errors: nobody can tell.
pub fn started(pid: i32) -> io::Result<Option<u64>> {
    let Some(stat) = told(pid, "stat")? else { return Ok(None) };
    let unknown = || io::Error::from(io::ErrorKind::InvalidData);
    // the name is in parentheses and may hold anything; of the fields that proc(5) counts from 1, the third is the first behind it
    let mut fields = stat.rsplit_once(") ").ok_or_else(unknown)?.1.split(' ');
    if matches!(fields.next(), Some("Z" | "X")) {
        return Ok(None);
    }
    let started = fields.nth(22 - 4).and_then(|started| started.parse().ok());
    started.map(Some).ok_or_else(unknown)
}

/// What tells the caller's network namespace from all others, those included that get its inode later.
pub fn netns_cookie() -> io::Result<u64> {
    const SO_NETNS_COOKIE: c_int = 71; // asm-generic/socket.h
    let own = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut cookie = 0u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into the integer, which lives until the call returns.
    let err = unsafe {
        libc::getsockopt(own.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut length)
    };
    if err != 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::io::Write;
    use std::net::TcpListener;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_process_is_told_of_whatever_bytes_its_name_has() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [&b"\xff"[..], b"a) Z 1 (b", b"cat"] {
            let program = folder.path().join(OsStr::from_bytes(name));
            std::os::unix::fs::symlink("/bin/cat", &program).expect("made");
            let mut command = Command::new(program);
            let mut child =
                command.arg0("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
            let pid = child.id().cast_signed();
            // the kernel names it a moment after `spawn` goes on
            child.stdin.as_mut().expect("a pipe").write_all(b"x").expect("it reads");
            child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it writes");
            let comm = std::fs::read(format!("/proc/{pid}/comm")).expect("it runs");
            assert_eq!(comm.strip_suffix(b"\n"), Some(name));
            assert_eq!(parent(pid), Some(std::process::id().cast_signed()));
            let own = started(std::process::id().cast_signed()).expect("known").expect("it runs");
            assert!(started(pid).expect("known").is_some_and(|started| started >= own) && !has_ended(pid));
            drop(child.stdin.take());
            child.wait().expect("it ends");
            assert!(has_ended(pid));
        }
    }

    #[test]
    fn a_thread_of_real_time_is_told_from_others() {
        let own = nix::unistd::gettid().as_raw();
        let become_of = |policy: c_int, sched_priority: c_int| {
            let parameter = libc::sched_param { sched_priority };
            // SAFETY: the kernel reads the parameter, which lives until the call returns.
            unsafe { libc::sched_setscheduler(own, policy, &raw const parameter) == 0 }
        };
        assert!(!is_real_time(own));
        if !become_of(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1) {
            return; // others than root may not, nor who is in a cgroup of version 1 without time for it
        }
        let told = is_real_time(own);
        assert!(become_of(libc::SCHED_OTHER, 0));
        assert!(told && !is_real_time(own) && !is_real_time(i32::MAX));
    }

    #[test]
    fn of_a_processs_descriptors_those_that_listen_are_taken() {
        if !nix::unistd::geteuid().is_root() {
            return; // others may not take their parent's
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let unbound = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        let file = tempfile::tempfile().expect("a file");
        let fds = [file.as_raw_fd(), unbound.as_raw_fd(), listener.as_raw_fd(), c_int::MAX];
        let own = open(std::process::id().cast_signed()).expect("it runs");
        let taken = take_listening(own.as_fd(), &fds, Instant::now() + Duration::from_secs(20)).expect("a child");
        let inode = |fd: BorrowedFd<'_>| nix::sys::stat::fstat(fd).expect("open").st_ino;
        assert_eq!(taken.iter().map(|fd| inode(fd.as_fd())).collect::<Vec<_>>(), [inode(listener.as_fd())]);
    }

    #[test]
    fn who_is_ended_is_gone_and_may_have_been_before() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
        let process = open(child.id().cast_signed()).expect("it runs");
        end(process.as_fd()).expect("killed");
        assert!(has_ended(child.id().cast_signed()));
        child.wait().expect("it ended");
        end(process.as_fd()).expect("it has ended");
    }
}
