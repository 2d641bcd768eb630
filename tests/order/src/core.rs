// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU, two threads, four sockets and a table of eight containers, with interrupts at any point where the kernel's side calls a helper.

use std::sync::{Mutex, MutexGuard};

unsafe extern "C" {
    fn core_reset();
    fn core_create(parent: u32) -> i32;
    fn core_program(uid: u32, into: u32) -> u32;
    fn core_programs(into: u32, by: u32);
    fn core_exec(uid: u32);
    fn core_makes() -> bool;
    fn core_counted(uid: u32) -> u32;
    fn core_quota(containers: u32);
    fn core_descendants(id: u32, most: u32);
    fn core_adopt(id: u32, parent: u32) -> i32;
    fn core_close(id: u32);
    fn core_references(id: u32) -> u64;
    fn core_free() -> u32;
    fn core_thread(number: u32, home: u32, follows: bool) -> i32;
    fn core_born(number: u32, home: u32, lacks_storage: bool);
    fn core_failed(which: u32) -> u64;
    fn core_switch(number: u32);
    fn core_end(storage_busy: bool);
    fn core_bind(id: u32) -> i32;
    fn core_unbind() -> i32;
    fn core_request(number: u32, id: u32) -> i32;
    fn core_softirq();
    fn core_binding() -> u32;
    fn core_is_bound_to(id: u32) -> bool;
    fn core_charges() -> u32;
    fn core_socket(number: u32, accepted: bool, peer: u32);
    fn core_label(number: u32, id: u32);
    fn core_receive(number: u32, bytes: i32);
    fn core_listener(number: u32, listener: u32);
    fn core_received() -> u32;
    fn core_send(number: u32, bytes: i32);
    fn core_gather(to: u32, from: u32, receives: bool, ns: u64);
    fn core_sums(id: u32, sums: *mut i64);
    fn core_passes_up(id: u32, up: bool);
    fn core_uses(id: u32, ns: u64);
    fn core_used(id: u32) -> u64;
    fn core_reuse(id: u32);
    fn core_midst_request(at: u32, id: u32, preempted: bool);
    fn core_midst_end(at: u32, id: u32);
    fn core_met() -> bool;
}

/// The tables are the process's: one machine at a time.
static ONE: Mutex<()> = Mutex::new(());

/// What a container's word counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct References {
    pub handles: u64,
    pub threads: u64,
    pub children: u64,
}

/// Held by the test alone.
pub const OURS: References = References { handles: 1, threads: 0, children: 0 };

/// Of `received` (bpf/abi/charge.h).
const ANSWERED: [u32; 2] = [1 << 31, 1 << 30];
const NUMBER: u32 = (1 << 11) - 1;

/// On a connection of a client of the listener of that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worked {
    /// The last one, and one of another listener before.
    Received(u32, Option<u32>),
    /// The last one, and another listener's that was answered.
    ReceivedAndAnswered(u32, u32),
    /// The first one, and the last one of another listener.
    Answered(u32, Option<u32>),
}

#[derive(Debug)]
pub struct Core {
    _one: MutexGuard<'static, ()>,
}

impl Core {
    /// With the idle thread on the CPU, which has number 0.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let one = ONE.lock().unwrap_or_else(|broken| broken.into_inner());
        // SAFETY: the lock keeps every other user of the tables away.
        unsafe { core_reset() };
        Self { _one: one }
    }

    /// A new child of a container, which the test holds; 0 is the root. Or the error.
    pub fn create(&mut self, parent: u32) -> Result<u32, i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        let id = unsafe { core_create(parent) };
        u32::try_from(id).map_err(|_| id)
    }

    /// A program begins for a client as this user, below this container of the policy. The container that it works for.
    pub fn program(&mut self, uid: u32, into: u32) -> u32 {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_program(uid, into) }
    }

    /// The policy has programs go to `into` that a server starts which works for `by`. The running thread is a child of such a one.
    pub fn programs(&mut self, into: u32, by: u32) {
        // SAFETY: as in `new`; the test names containers that it made.
        unsafe { core_programs(into, by) }
    }

    /// The running thread executes a program as this user.
    pub fn exec(&mut self, uid: u32) {
        // SAFETY: as in `new`.
        unsafe { core_exec(uid) }
    }

    /// Whether the running thread may make containers where it works.
    pub fn makes(&self) -> bool {
        // SAFETY: as in `new`.
        unsafe { core_makes() }
    }

    /// Containers that count for a user.
    pub fn counted(&self, uid: u32) -> u32 {
        // SAFETY: as in `new`.
        unsafe { core_counted(uid) }
    }

    /// A user may have so many containers; 0: any number.
    pub fn limit_users(&mut self, containers: u32) {
        // SAFETY: as in `new`.
        unsafe { core_quota(containers) }
    }

    /// The policy has a number for those below a container.
    pub fn limit_descendants(&mut self, id: u32, most: u32) {
        // SAFETY: as in `new`; the test names a container that it made.
        unsafe { core_descendants(id, most) }
    }

    /// Moves a container.
    pub fn adopt(&mut self, id: u32, parent: u32) -> Result<(), i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_adopt(id, parent) })
    }

    /// The test holds it no longer.
    pub fn close(&mut self, id: u32) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_close(id) }
    }

    pub fn references(&self, id: u32) -> References {
        // SAFETY: as in `new`; what is out of bounds is no container.
        let word = unsafe { core_references(id) };
        References { handles: word & 0xf_ffff, threads: word >> 20 & 0x3f_ffff, children: word >> 42 }
    }

    /// Slots that no container has.
    pub fn free(&self) -> u32 {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_free() }
    }

    /// A managed thread is born, of number 1 or 2.
    pub fn thread(&mut self, number: u32, home: u32) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_thread(number, home, false) }).expect("its record");
    }

    /// As `thread`, of a unit whose threads follow their sockets.
    pub fn follower(&mut self, number: u32, home: u32) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_thread(number, home, true) }).expect("its record");
    }

    /// The running thread makes a thread, in the unit with this home or in none. `lacks_storage`: the kernel makes that no record now.
    pub fn born(&mut self, number: u32, home: Option<u32>, lacks_storage: bool) {
        // SAFETY: as in `new`; the test names a thread that there is, and a container that it made.
        unsafe { core_born(number, home.unwrap_or(u32::MAX), lacks_storage) }
    }

    /// How many threads had no record for a while, and how many have none for good (bpf/abi/control.h, `enum fief_error`).
    pub fn without_records(&self) -> [u64; 2] {
        // SAFETY: as in `new`.
        [0, 7].map(|which| unsafe { core_failed(which) })
    }

    /// A socket of the running thread, of number 0 to 3.
    pub fn socket(&mut self, number: u32, kind: Socket) {
        let (accepted, peer) = match kind {
            Socket::Accepted => (true, u32::MAX),
            Socket::Connected => (false, u32::MAX),
            Socket::UnixAccepted(peer) => (true, peer),
            Socket::UnixConnected(peer) => (false, peer),
        };
        // SAFETY: as in `new`; the test names sockets that there are.
        unsafe { core_socket(number, accepted, peer) }
    }

    /// The socket's connection has a container, or a label that names none.
    pub fn label(&mut self, socket: u32, container: Option<u32>) {
        // SAFETY: as in `socket`.
        unsafe { core_label(socket, container.unwrap_or(u32::MAX)) }
    }

    /// The running thread receives; no bytes: there were none.
    pub fn receive(&mut self, socket: u32, bytes: i32) {
        // SAFETY: as in `socket`.
        unsafe { core_receive(socket, bytes) }
    }

    /// It sends; no bytes: it could not.
    pub fn send(&mut self, socket: u32, bytes: i32) {
        // SAFETY: as in `socket`.
        unsafe { core_send(socket, bytes) }
    }

    /// The scheduler is on, and the socket with a label is a client's of that listener.
    pub fn listener(&mut self, socket: u32, listener: u32) {
        // SAFETY: as in `socket`.
        unsafe { core_listener(socket, listener) }
    }

    /// Whose client's connection the running thread has worked on, as the scheduler will find it.
    pub fn client(&self) -> Option<Worked> {
        // SAFETY: as in `new`.
        let word = unsafe { core_received() };
        let [first, other] = [word, word >> NUMBER.count_ones()].map(|word| (word & NUMBER).checked_sub(1));
        let [only_answered, other_answered] = ANSWERED.map(|flag| word & flag != 0);
        Some(match (first?, other) {
            (first, last) if only_answered => Worked::Answered(first, last),
            (last, Some(other)) if other_answered => Worked::ReceivedAndAnswered(last, other),
            (last, before) => Worked::Received(last, before),
        })
    }

    /// Time is charged to `to`: of a thread whose work is `from`'s to the scheduler (`None`: whose it is charged to), or of a packet.
    pub fn gather(&mut self, to: u32, from: Option<u32>, receives: bool, ns: u64) {
        // SAFETY: as in `new`; the test names containers that it made.
        unsafe { core_gather(to, from.unwrap_or(u32::MAX), receives, ns) }
    }

    /// What the container has had of the CPU by itself; with all below it; and what of that is held against no limit.
    pub fn sums(&self, id: u32) -> [i64; 3] {
        let mut sums = [0; 3];
        // SAFETY: as in `new`; there are three.
        unsafe { core_sums(id, sums.as_mut_ptr()) };
        sums
    }

    /// Whether the container's usage goes up when it ends.
    pub fn pass_up(&mut self, id: u32, up: bool) {
        // SAFETY: as in `new`; the test names a container that it made.
        unsafe { core_passes_up(id, up) }
    }

    /// The container uses the CPU for so long, which that one's cache has until the container ends.
    pub fn uses(&mut self, id: u32, ns: u64) {
        // SAFETY: as in `new`; the test names a container that it made.
        unsafe { core_uses(id, ns) }
    }

    /// What the container has used, and others have left it.
    pub fn used(&self, id: u32) -> u64 {
        // SAFETY: as in `new`; the test names a slot of the table.
        unsafe { core_used(id) }
    }

    /// The CPU switches to a thread.
    pub fn switch(&mut self, number: u32) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_switch(number) }
    }

    /// The running thread ends. `storage_busy`: the kernel does not delete its record at first.
    pub fn end(&mut self, storage_busy: bool) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_end(storage_busy) }
    }

    /// The running thread binds itself.
    pub fn bind(&mut self, id: u32) -> Result<(), i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_bind(id) })
    }

    pub fn unbind(&mut self) -> Result<(), i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_unbind() })
    }

    /// Another process binds the thread.
    pub fn request(&mut self, number: u32, id: u32) -> Result<(), i32> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        done(unsafe { core_request(number, id) })
    }

    pub fn softirq(&mut self) {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_softirq() }
    }

    /// What the running thread works for.
    pub fn binding(&self) -> u32 {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_binding() }
    }

    /// Whether that is the container that has the slot `id` now, and not one before.
    pub fn is_bound_to(&self, id: u32) -> bool {
        // SAFETY: as in `new`; the test names a slot of the table.
        unsafe { core_is_bound_to(id) }
    }

    /// Whose the running thread's time is from now on; `None`: its next socket tells.
    pub fn charges(&self) -> Option<u32> {
        // SAFETY: as in `new`.
        let id = unsafe { core_charges() };
        (id != u32::MAX).then_some(id)
    }

    /// The test closes `id`, and others take all free slots but one.
    pub fn reuse(&mut self, id: u32) {
        // SAFETY: as in `new`; the test names a container that it made.
        unsafe { core_reuse(id) }
    }

    /// In `work`, at point `at`, another process binds the running thread to `id`, and a softirq comes, or a switch away and back.
    /// What `work` returned; `None`: it has no such point.
    pub fn with_request<T>(&mut self, at: u32, id: u32, by: By, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_midst_request(at, id, by == By::Switch) };
        let result = work(self);
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_met() }.then_some(result)
    }

    /// In `work`, at point `at`, the test closes `id`, and others take all free slots but one.
    pub fn with_end<T>(&mut self, at: u32, id: u32, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_midst_end(at, id) };
        let result = work(self);
        // SAFETY: as in `new`; what is out of bounds is no container.
        unsafe { core_met() }.then_some(result)
    }
}

/// How a thread came by a socket; of a UNIX connection the number of its other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    Accepted,
    Connected,
    UnixAccepted(u32),
    UnixConnected(u32),
}

/// What comes in the midst of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Softirq,
    Switch,
}

fn done(err: i32) -> Result<(), i32> {
    if err == 0 { Ok(()) } else { Err(err) }
}
