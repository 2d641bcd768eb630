// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One opaque error of the lab.

use std::fmt;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The machine lacks something: root, a program, a feature of the kernel.
    Missing,
    /// The command line of a child makes no sense.
    Usage,
    /// A server, a load or a measurement failed.
    Failed,
    /// Somebody asked the experiment to end.
    Interrupted,
}

#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), source: None }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Error {
        Error::new(Kind::Failed, message)
    }
}

/// Adds what was tried to an error of anybody else's.
pub(crate) trait Context<T> {
    fn context(self, message: impl Into<String>) -> Result<T>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> Context<T> for std::result::Result<T, E> {
    fn context(self, message: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error { kind: Kind::Failed, message: message.into(), source: Some(Box::new(source)) })
    }
}

impl From<fief_testkit::Error> for Error {
    fn from(source: fief_testkit::Error) -> Error {
        let kind = match source.kind() {
            fief_testkit::Kind::Permission | fief_testkit::Kind::Missing => Kind::Missing,
            _ => Kind::Failed,
        };
        Error { kind, message: source.to_string(), source: None }
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

impl std::error::Error for Error {}
