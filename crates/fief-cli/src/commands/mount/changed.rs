// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes containers by their files: `mkdir`, `rmdir` and what is written into `cmd`. An operator's are made as by the commands; for a
//! user the kernel side makes them, with the rights of the thread that asks.

use std::ffi::OsStr;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use fuser::{Errno, FileHandle, INodeNo, Request};

use super::caller::{self, Caller};
use super::folders::is_name;
use super::inode::{File, Inode};
use super::order::{self, Order};
use super::served::{Present, Result, Served, errno, slot};
use crate::output::{printable, say};
use fief_control::{Asker, Holder, Node, Reference};

/// Lines of `cmd` at once.
const LONGEST: usize = 4096;

/// One user's orders are taken at a time, and nobody waits for them: whatever users write, the other threads serve.
#[derive(Default)]
pub struct Turn(Mutex<()>);

impl Turn {
    fn take(&self) -> Result<MutexGuard<'_, ()>> {
        match self.0.try_lock() {
            Ok(turn) => Ok(turn),
            Err(TryLockError::Poisoned(turn)) => Ok(turn.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno::EAGAIN),
        }
    }
}

impl Served {
    /// No longer than a look at the names and one call of the kernel side.
    fn naming(&self) -> MutexGuard<'_, ()> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn ordered(&self, request: &Request, number: INodeNo, opened: FileHandle, text: &[u8]) -> Result<u32> {
        let caller = self.caller(request)?;
        // who opens it for a set-user-ID program, as its standard error, does not write with that one's rights
        if opened_by(caller) != opened {
            return Err(Errno::EACCES);
        }
        let Inode::Of(container, File::Cmd) = self.present(number)?.0 else { return Err(Errno::EACCES) };
        if text.len() > LONGEST {
            return Err(Errno::E2BIG);
        }
        let _turn = if matches!(caller, Caller::User(_)) { Some(self.turn.take()?) } else { None };
        let orders = order::read(text).map_err(|wrong| {
            tell(caller, &format!("refused: {wrong}"));
            Errno::EINVAL
        })?;
        if matches!(caller, Caller::User(_)) && !order::is_short(&orders) {
            return Err(Errno::E2BIG);
        }
        let told = |error| told(caller, error);
        for order in orders {
            match (caller, order) {
                (_, Order::Bind(_)) if !caller::has_our_processes(request) => {
                    tell(caller, "refused: process ids of another PID namespace");
                    return Err(Errno::EPERM);
                }
                (Caller::Operator, Order::Set(attribute)) => self.fief.set(container, attribute).map_err(told)?,
                (Caller::Operator, Order::Bind(pid)) => drop(self.fief.bind_to(pid, container).map_err(told)?),
                (Caller::User(asker), order) => self.ordered_by(asker, container, order).map_err(told)?,
            }
        }
        Ok(text.len() as u32)
    }

    fn ordered_by(&self, asker: Asker, container: Reference, order: Order) -> fief_control::Result<()> {
        match order {
            Order::Set(attribute) => self.fief.set_asked(asker, container, attribute),
            Order::Bind(pid) => self.fief.bind_asked(asker, pid, container).map(drop),
        }
    }

    pub fn made(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Result<Present> {
        let caller = self.caller(request)?;
        let name = name.to_str().ok_or(Errno::EINVAL)?;
        if name.len() >= fief::abi::FIEF_NAME_LEN as usize {
            return Err(Errno::ENAMETOOLONG);
        }
        if !is_name(name) {
            return Err(Errno::EINVAL);
        }
        let parent = match self.present(parent)?.0 {
            Inode::Top => Reference { id: fief::abi::FIEF_ROOT, generation: 0 },
            // what is below the root stands beside it
            Inode::Of(container, File::Folder) if container.id != fief::abi::FIEF_ROOT => container,
            _ => return Err(Errno::EPERM),
        };
        let (made, holder) = match caller {
            Caller::Operator => {
                let made = self.fief.make(parent, name).map_err(|error| told(caller, error))?;
                self.lister.forget();
                (made, Holder::Operator)
            }
            Caller::User(asker) => self.made_by(asker, parent, name)?,
        };
        Ok((Inode::Of(made, File::Folder), holder))
    }

    /// The place of a user outside of every unit is made by its name; what is in it, or in a home, by any.
    fn made_by(&self, asker: Asker, parent: Reference, name: &str) -> Result<(Reference, Holder)> {
        let _naming = self.naming();
        let slot = (parent.id != fief::abi::FIEF_ROOT).then_some(parent.id);
        if self.lister.find(slot, name).map_err(errno)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let (made, holder) = if parent.id != fief::abi::FIEF_USERS {
            (self.fief.make_asked(asker, parent, name), Holder::Folder(asker.uid))
        } else if name == asker.uid.to_string() {
            (self.fief.place_asked(asker), Holder::Place(asker.uid))
        } else {
            return Err(Errno::EACCES);
        };
        let container = made.map_err(errno)?;
        self.lister.made(Node { container, parent: slot, name: name.to_owned(), policy: false, holder });
        Ok((container, holder))
    }

    pub fn ended(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Result<()> {
        let caller = self.caller(request)?;
        let Inode::Of(container, File::Folder) = self.found(parent, name)?.0 else { return Err(Errno::ENOTDIR) };
        let above = slot(self.present(parent)?.0)?;
        match caller {
            Caller::Operator => {
                self.fief.end(container).map_err(|error| told(caller, error))?;
                self.lister.forget();
            }
            Caller::User(asker) => {
                self.fief.end_asked(asker, container).map_err(errno)?;
                self.lister.ended(above, container);
            }
        }
        Ok(())
    }
}

/// Whose descriptor of `cmd` it is; no number of a page.
pub fn opened_by(caller: Caller) -> FileHandle {
    match caller {
        Caller::Operator => FileHandle(u64::MAX),
        Caller::User(asker) => FileHandle(1 << 63 | u64::from(asker.uid)),
    }
}

/// Who asks gets an errno; what an operator is refused, the server says with its reason on its standard error. Users do not fill that.
fn told(caller: Caller, error: fief_control::Error) -> Errno {
    tell(caller, &format!("refused: {error}"));
    errno(error)
}

fn tell(caller: Caller, what: &str) {
    if caller == Caller::Operator {
        say(printable(what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_the_orders_of_another() {
        let turn = Turn::default();
        let first = turn.take();
        assert!(first.is_ok());
        let other = std::thread::scope(|scope| scope.spawn(|| turn.take().map(drop)).join());
        assert_eq!(other.expect("no panic").map_err(|errno| errno.code()), Err(Errno::EAGAIN.code()));
        drop(first);
        assert!(turn.take().is_ok());
    }
}
