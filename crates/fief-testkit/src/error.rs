// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One opaque error: what was tried, on what, why it failed.

use std::fmt;
use std::io;

pub type Result<T> = std::result::Result<T, Error>;

/// What sort of failure it was, for callers that decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The process lacks a privilege (root, a capability).
    Permission,
    /// A program or a facility of the kernel is not there.
    Missing,
    /// A condition did not come true before its deadline.
    Deadline,
    /// A command or a system call failed.
    Failed,
}

#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<io::Error>,
}

impl Error {
    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), source: None }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Error {
        Error::new(Kind::Failed, message)
    }

    pub(crate) fn io(message: impl Into<String>, source: io::Error) -> Error {
        let kind = match source.kind() {
            io::ErrorKind::PermissionDenied => Kind::Permission,
            io::ErrorKind::NotFound => Kind::Missing,
            _ => Kind::Failed,
        };
        Error { kind, message: message.into(), source: Some(source) }
    }

    pub(crate) fn errno(message: impl Into<String>, errno: nix::errno::Errno) -> Error {
        Error::io(message, io::Error::from(errno))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
