// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the calling thread's work is charged to.

use std::marker::PhantomData;
use std::os::fd::AsFd;

use crate::abi;
use crate::container::Container;
use crate::error::{Error, Result};
use crate::option;

/// The calling thread is bound; dropped, it restores what was before. Home is the outermost: whatever order the guards
/// are dropped in, the thread never ends up anywhere else than in a container that it had before, or at home.
///
/// One system call to bind and one to restore; beyond three guards at once on a thread, a few more.
#[derive(Debug)]
pub struct Binding<'a> {
    own: &'a Container,
    /// Only beyond what the kernel remembers by itself.
    before: Option<Container>,
    // a binding is the thread's that made it
    _thread: PhantomData<*const ()>,
}

impl<'a> Binding<'a> {
    pub(crate) fn enter(own: &'a Container) -> Result<Self> {
        let before = match option::call(own.as_fd(), abi::FIEF_ENTER) {
            Ok(()) => None,
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                let before = open_to_return()?;
                own.bind_thread()?;
                Some(before)
            }
            Err(e) => return Err(Error::new("cannot bind the thread", e)),
        };
        Ok(Self { own, before, _thread: PhantomData })
    }
}

impl Drop for Binding<'_> {
    fn drop(&mut self) {
        let restored = match &self.before {
            None => option::call(self.own.as_fd(), abi::FIEF_LEAVE).is_ok(),
            Some(before) => before.bind_thread().is_ok(),
        };
        if !restored {
            // the thread was unbound meanwhile: home is what is left
            let _ = option::call(self.own.as_fd(), abi::FIEF_UNBIND);
        }
    }
}

/// What the thread is bound to, with all that it may do there now: whoever is bound by it again may do no less.
fn open_to_return() -> Result<Container> {
    let fail = |e| Error::new("cannot open the thread's container", e);
    let fd = option::fresh_socket().map_err(fail)?;
    option::set(fd.as_fd(), abi::FIEF_OPEN_BINDING, &abi::FIEF_RIGHTS_ALL).map_err(fail)?;
    Ok(Container::of(fd))
}

/// A descriptor of the calling thread's container, to use and read only. The container of an unmanaged thread's home
/// is the root.
pub fn open_current() -> Result<Container> {
    let fail = |e| Error::new("cannot open the thread's container", e);
    let fd = option::fresh_socket().map_err(fail)?;
    option::call(fd.as_fd(), abi::FIEF_OPEN_BINDING).map_err(fail)?;
    Container::from_fd(fd)
}

/// Slot and generation of the calling thread's container, read through any container's descriptor.
pub fn current(through: &Container) -> Result<(u32, u32)> {
    option::get::<abi::fief_ref>(through.as_fd(), abi::FIEF_BINDING)
        .map(|r| (r.id, r.generation))
        .map_err(|e| Error::new("cannot read the thread's binding", e))
}

/// The calling thread returns home.
pub fn unbind(through: &Container) -> Result<()> {
    option::call(through.as_fd(), abi::FIEF_UNBIND).map_err(|e| Error::new("cannot unbind the thread", e))
}

/// From now on the calling thread is scheduled for the container that it is bound to alone.
///
/// A thread that works for several containers in turn has the CPU that is given to all of them, as long as it served each lately: its
/// *scheduler binding* (Banga et al., OSDI 1999, section 4.3). A thread of a pool that begins with another client's work, and has done
/// with that of the former one, says so by this; what it binds to afterwards counts again. Charges do not depend on it. Where Fief's
/// scheduler is not on, there is nothing to forget.
pub fn reset_scheduler_binding(through: &Container) -> Result<()> {
    option::call(through.as_fd(), abi::FIEF_RESET_SCHEDULER_BINDING)
        .map_err(|e| Error::new("cannot reset the thread's scheduler binding", e))
}
