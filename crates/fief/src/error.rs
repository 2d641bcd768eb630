// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one error of this crate.

use std::fmt;
use std::io;

/// What kind of failure it is; each has its errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// `ENOPROTOOPT`: no Fief in this process's cgroup; start it by `fief run` or `fief exec`, or `fief manage` it.
    NotManaged,
    /// `EBADF`: the descriptor is not a container.
    NotAContainer,
    /// `EPERM`: the descriptor, or the thread's binding, lacks the right; or the other thread is not below our home.
    Denied,
    /// `ESTALE`: the container has ended.
    Ended,
    /// `EDQUOT`: the user's or a unit's quota of containers, or the user's of labels, is used up.
    Quota,
    /// `ENFILE`, `EMFILE`, `ENOSPC`: the container table, the process's table of descriptors, that of labels of files or of rings,
    /// or a ring, is full.
    Full,
    /// `EBUSY`: the shares do not fit into the parent's, the parents would form a loop, the file has a label, or the thread has a
    /// ring.
    Conflict,
    /// `EOPNOTSUPP`: the tree would be too deep.
    TooDeep,
    /// `ENOSYS`: the policy in force does not ask for it; for files, `label-files = true`.
    NotEnabled,
    /// `ESRCH`: no such thread, or one that is not managed.
    NoThread,
    /// `ENXIO`: the thread has no ring; the child of a fork has none.
    NoRing,
    /// `EINVAL`: a value out of its range.
    Invalid,
    /// Everything else.
    Other,
}

/// What was tried, on what, and why it failed.
#[derive(Debug)]
pub struct Error {
    what: &'static str,
    source: io::Error,
    /// What a value has to be, where [`ErrorKind::Invalid`] says that it is not.
    valid: Option<&'static str>,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(what: &'static str, source: io::Error) -> Self {
        Self { what, source, valid: None }
    }

    /// The same; where a value is out of its range, it says what that is.
    pub(crate) fn invalid_unless(mut self, valid: &'static str) -> Self {
        self.valid = Some(valid);
        self
    }

    /// Which kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self.source.raw_os_error() {
            Some(libc::ENOPROTOOPT) => ErrorKind::NotManaged,
            Some(libc::EBADF | libc::ENOTSOCK) => ErrorKind::NotAContainer,
            Some(libc::EPERM | libc::EACCES) => ErrorKind::Denied,
            Some(libc::ESTALE) => ErrorKind::Ended,
            Some(libc::EDQUOT) => ErrorKind::Quota,
            Some(libc::ENFILE | libc::EMFILE | libc::ENOSPC) => ErrorKind::Full,
            Some(libc::EBUSY) => ErrorKind::Conflict,
            Some(libc::EOPNOTSUPP) => ErrorKind::TooDeep,
            Some(libc::ENOSYS) => ErrorKind::NotEnabled,
            Some(libc::ESRCH) => ErrorKind::NoThread,
            Some(libc::ENXIO) => ErrorKind::NoRing,
            Some(libc::EINVAL) => ErrorKind::Invalid,
            _ => ErrorKind::Other,
        }
    }

    /// The errno behind it, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)?;
        match self.kind() {
            ErrorKind::NotManaged => {
                f.write_str("; start the process by `fief run` or `fief exec`, or `fief manage` it")
            }
            ErrorKind::NotEnabled => f.write_str("; say `label-files = true` in the policy"),
            ErrorKind::NoRing => f.write_str("; open one in this thread, a fork's child has none"),
            ErrorKind::Quota => f.write_str("; close containers that are not used, or raise the quota"),
            ErrorKind::Invalid => self.valid.map_or(Ok(()), |valid| write!(f, "; {valid}")),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = error.source.kind();
        io::Error::new(kind, error)
    }
}
