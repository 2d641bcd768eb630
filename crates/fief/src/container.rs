// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A container, by its file descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::abi;
use crate::attributes::{Attributes, Info, Policy, Rights, Usage};
use crate::binding::Binding;
use crate::error::{Error, Result};
use crate::file::{FileLabel, assign_file};
use crate::option;

const NAME: &str = "a name has 1 to 31 bytes of ASCII, without `/` and control characters";

/// A resource container. Dropping it closes the descriptor; the container ends with the last descriptor and binding.
///
/// Threads that bind often should each have a descriptor of their own ([`Container::duplicate`]): the kernel locks a
/// socket for the length of an option.
#[derive(Debug)]
pub struct Container {
    fd: OwnedFd,
}

/// How a container is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    flags: u32,
    weight: u32,
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// At its end, add the usage to the parent's (RCLinux section 3.4).
    #[must_use]
    pub fn pass_up(mut self, yes: bool) -> Self {
        self.flags = if yes { abi::FIEF_CREATE_PASS_UP } else { 0 };
        self
    }

    /// Weight among siblings, 1 to 10000.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Makes a child of the calling thread's container.
    pub fn create(self) -> Result<Container> {
        let fail = |e| Error::new("cannot create a container", e).invalid_unless("a weight is 1 to 10000");
        let fd = option::fresh_socket().map_err(fail)?;
        let args = abi::fief_create { flags: self.flags, weight: self.weight };
        if self.flags == 0 && self.weight == 0 {
            option::call(fd.as_fd(), abi::FIEF_CREATE).map_err(fail)?;
        } else {
            option::set(fd.as_fd(), abi::FIEF_CREATE, &args).map_err(fail)?;
        }
        Ok(Container { fd })
    }
}

impl Container {
    /// Makes a child of the calling thread's container.
    ///
    /// Errors: not managed; denied (the thread is bound by a descriptor without the right to make children); quota;
    /// table full; too deep; the current container has ended.
    pub fn create() -> Result<Self> {
        Options::new().create()
    }

    /// Makes a child of this container.
    pub fn child(&self) -> Result<Self> {
        let _bound = self.bind()?;
        Self::create()
    }

    /// Takes a descriptor that was inherited or received.
    ///
    /// Errors: the descriptor is not a container, or lacks the right to read.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let container = Self { fd };
        container.info()?;
        Ok(container)
    }

    /// Takes a descriptor that may lack the right to read.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// A second descriptor of the same container with the same rights, without the first one's lock.
    pub fn duplicate(&self) -> Result<Self> {
        let fail = |e| Error::new("cannot duplicate a container's descriptor", e);
        let fd = option::fresh_socket().map_err(fail)?;
        option::call(self.as_fd(), abi::FIEF_STAGE).map_err(fail)?;
        option::call(fd.as_fd(), abi::FIEF_DUP).map_err(fail)?;
        Ok(Self { fd })
    }

    /// Lets go of the container and makes this descriptor one of a new child of the calling thread's container: a
    /// container for each request, without a socket for each. The former ends unless somebody else holds it.
    ///
    /// Errors: as for [`Container::create`]; denied without the right to administer this one.
    pub fn renew(&mut self) -> Result<()> {
        option::call(self.as_fd(), abi::FIEF_RENEW).map_err(|e| Error::new("cannot renew a container", e))
    }

    /// Binds the calling thread until the guard is dropped, which restores what was before.
    ///
    /// Errors: denied without the right to use it; the container has ended.
    pub fn bind(&self) -> Result<Binding<'_>> {
        Binding::enter(self)
    }

    /// Binds the calling thread for good, or until the next call: the cheapest way to switch, one system call.
    pub fn bind_thread(&self) -> Result<()> {
        option::call(self.as_fd(), abi::FIEF_BIND).map_err(|e| Error::new("cannot bind the thread", e))
    }

    /// Binds another thread. The caller must be allowed to signal it, and its home must be below the caller's.
    pub fn bind_other(&self, thread: i32) -> Result<()> {
        let args = abi::fief_bind { thread, pad: 0 };
        option::set(self.as_fd(), abi::FIEF_BIND, &args).map_err(|e| Error::new("cannot bind another thread", e))
    }

    /// Makes this container a child of the calling thread's.
    ///
    /// Errors: denied without the right to administer this one and to make children in the other; conflict if its
    /// share does not fit there or it is an ancestor; the tree would be too deep.
    pub fn adopt(&self) -> Result<()> {
        option::call(self.as_fd(), abi::FIEF_ADOPT).map_err(|e| Error::new("cannot move a container", e))
    }

    /// What it has used up to now, the open stints of running threads included.
    pub fn usage(&self) -> Result<Usage> {
        option::get::<abi::fief_usage>(self.as_fd(), abi::FIEF_USAGE)
            .map(Usage::from)
            .map_err(|e| Error::new("cannot read a container's usage", e))
    }

    /// Its attributes.
    pub fn attributes(&self) -> Result<Attributes> {
        option::get::<abi::fief_attributes>(self.as_fd(), abi::FIEF_ATTRIBUTES)
            .map(Attributes::from)
            .map_err(|e| Error::new("cannot read a container's attributes", e))
    }

    /// Its place and holders.
    pub fn info(&self) -> Result<Info> {
        option::get::<abi::fief_info>(self.as_fd(), abi::FIEF_INFO)
            .map(Info::from)
            .map_err(|e| Error::new("cannot read a container's place", e))
    }

    /// Guaranteed CPU, in parts per million of the machine; must fit into the parent's, and below its own limit. Kept, and held
    /// against what siblings reserve. Enforced while Fief's scheduler is on (sched_ext, and a policy that divides the CPU); else kept
    /// and read back.
    pub fn set_share(&self, ppm: u32) -> Result<()> {
        self.set(abi::FIEF_ATTR_SHARE, ppm.into())
    }

    /// Most CPU, in parts per million of the machine; not below its own share. Enforced while Fief's scheduler is on; else kept and
    /// read back.
    pub fn set_limit(&self, ppm: Option<u32>) -> Result<()> {
        self.set(abi::FIEF_ATTR_LIMIT, ppm.unwrap_or(0).into())
    }

    /// Weight among siblings, 1 to 10000. Enforced while Fief's scheduler is on; else kept and read back.
    pub fn set_weight(&self, weight: u32) -> Result<()> {
        self.set(abi::FIEF_ATTR_WEIGHT, weight.into())
    }

    /// Priority, 0 to 65535. Orders the CPU among siblings while Fief's scheduler is on; else it is kept, and nothing orders by it
    /// but the program itself. Classes of a policy have theirs from the policy.
    pub fn set_priority(&self, priority: u32) -> Result<()> {
        self.set(abi::FIEF_ATTR_PRIORITY, priority.into())
    }

    /// Which of its own threads goes first; may be exchanged at any time. Enforced while Fief's scheduler is on; else kept and
    /// read back.
    pub fn set_policy(&self, policy: Policy) -> Result<()> {
        self.set(abi::FIEF_ATTR_POLICY, policy.number().into())
    }

    /// What each of its threads has under [`Policy::Edf`]: a budget in each period, both in whole microseconds, the period from 1 ms to
    /// 1 s. Threads that ask for more than there is get parts in proportion of budget to period.
    pub fn set_period(&self, period: Duration, budget: Duration) -> Result<()> {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if budget > period || us(budget) == 0 {
            return Err(Error::new(
                "cannot set a container's period and budget",
                std::io::Error::from_raw_os_error(libc::EINVAL),
            ));
        }
        self.set(abi::FIEF_ATTR_PERIOD, us(period))?;
        self.set(abi::FIEF_ATTR_BUDGET, us(budget))
    }

    /// Memory limit in bytes. Kept and read back; nothing enforces it yet.
    pub fn set_memory_max(&self, bytes: Option<u64>) -> Result<()> {
        self.set(abi::FIEF_ATTR_MEMORY_MAX, bytes.unwrap_or(0))
    }

    /// Most bits per second sent. Kept and read back; nothing enforces it yet.
    pub fn set_net_max(&self, bits: Option<u64>) -> Result<()> {
        self.set(abi::FIEF_ATTR_NET_MAX, bits.unwrap_or(0))
    }

    /// Weight of what it sends among siblings, 1 to 10000. Kept and read back; nothing enforces it yet.
    pub fn set_net_weight(&self, weight: u32) -> Result<()> {
        self.set(abi::FIEF_ATTR_NET_WEIGHT, weight.into())
    }

    /// At its end, add the usage to the parent's.
    pub fn set_pass_up(&self, yes: bool) -> Result<()> {
        self.set(abi::FIEF_ATTR_PASS_UP, yes.into())
    }

    /// Most containers below it.
    pub fn set_descendants_max(&self, count: Option<u32>) -> Result<()> {
        self.set(abi::FIEF_ATTR_DESCENDANTS_MAX, count.unwrap_or(0).into())
    }

    fn set(&self, attribute: u32, value: u64) -> Result<()> {
        let args = abi::fief_set_attribute { attribute, pad: 0, value };
        option::set(self.as_fd(), abi::FIEF_SET_ATTRIBUTE, &args)
            .map_err(|e| Error::new("cannot set a container's attribute", e))
    }

    /// Names it: one component of a path, at most 31 bytes, no `/`.
    pub fn set_name(&self, name: &str) -> Result<()> {
        let fail = |e| Error::new("cannot name a container", e).invalid_unless(NAME);
        // what follows a NUL the kernel side would not see
        if name.is_empty() || name.len() >= abi::FIEF_NAME_LEN as usize || name.contains(['/', '\0']) {
            return Err(fail(std::io::Error::from_raw_os_error(libc::EINVAL)));
        }
        option::set_bytes(self.as_fd(), abi::FIEF_SET_NAME, name.as_bytes()).map_err(fail)
    }

    /// Gives rights of this descriptor up, before it is passed on; they do not come back.
    pub fn keep_rights(&self, keep: Rights) -> Result<()> {
        option::set(self.as_fd(), abi::FIEF_DROP_RIGHTS, &keep.0).map_err(|e| Error::new("cannot drop rights", e))
    }

    /// Labels a socket with this container: kernel work on its behalf is charged here from now on, and the container
    /// lives at least as long as the socket.
    pub fn assign(&self, socket: impl AsFd) -> Result<()> {
        let _bound = self.bind()?;
        assign(socket)
    }

    /// Labels a file with this container, for as long as the label is open: the bytes that anybody writes to it, and the
    /// time of the kernel threads that take them to the disk, are charged here; threads that follow their sockets take this
    /// container where they read or write the file. The container lives at least as long as the label.
    ///
    /// It is the file that is labelled, not this way of having it open: all who open it meet the label, and it has one.
    ///
    /// ```
    /// use fief::{Container, ErrorKind};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let log = std::fs::File::create(std::env::temp_dir().join("fief-doc-gold.log"))?;
    /// let gold = match Container::create() {
    ///     Err(e) if e.kind() == ErrorKind::NotManaged => return Ok(()), // serve without
    ///     created => created?,
    /// };
    /// let _label = match gold.assign_file(&log) {
    ///     Err(e) if e.kind() == ErrorKind::NotEnabled => return Ok(()), // the policy does not say `label-files`
    ///     labelled => labelled?,
    /// };
    /// // ... whoever writes the log, its bytes are gold's
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: not enabled (the policy in force does not say `label-files = true`); denied (the file is neither open for
    /// writing nor the caller's own); conflict (it has a label); invalid (no regular file, or one of a file system without
    /// a disk, such as tmpfs); quota (1024 labels of one user); full (57,344 labels of all users, 65,536 with root's).
    pub fn assign_file(&self, file: impl AsFd) -> Result<FileLabel> {
        let _bound = self.bind()?;
        assign_file(file)
    }
}

/// Labels a socket with the calling thread's container. What the front door knows of a connection stays. Error: EAGAIN, the kernel side
/// rules a request of it at this moment; try again.
pub fn assign(socket: impl AsFd) -> Result<()> {
    option::call(socket.as_fd(), abi::FIEF_ASSIGN).map_err(|e| Error::new("cannot assign a socket", e))
}

/// Removes a socket's label; of a connection, its container alone. Errors as in [`assign`].
pub fn unassign(socket: impl AsFd) -> Result<()> {
    option::call(socket.as_fd(), abi::FIEF_UNASSIGN).map_err(|e| Error::new("cannot remove a socket's label", e))
}

impl AsFd for Container {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Container> for OwnedFd {
    fn from(container: Container) -> Self {
        container.fd
    }
}
