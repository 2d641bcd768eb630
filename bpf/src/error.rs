// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of the kernel's interface: what was tried, on what, why it failed, what to do.

use std::fmt;

/// Kinds of failure that a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The kernel lacks or refuses a mechanism.
    Unsupported,
    /// The caller lacks privilege.
    Permission,
    /// There is no such thing: nothing installed, no such container, process or file.
    NotFound,
    /// It is there already.
    Exists,
    /// Another version of Fief left pins that do not fit this one.
    Drift,
    /// A table or a quota is full.
    Full,
    /// It cannot be had as it was asked for.
    Usage,
    /// Everything else.
    Other,
}

/// An error of the kernel's interface.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    remedy: Option<String>,
    besides: Vec<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a cause below it.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), remedy: None, besides: Vec::new(), source: None }
    }

    /// The same error with what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same error with something that had happened before it and stays so.
    #[must_use]
    pub fn besides(mut self, told: impl Into<String>) -> Self {
        self.besides.push(told.into());
        self
    }

    /// Which kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What was tried, and why it failed if nothing below did: without the cause and the remedy.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to do about it, if that is known.
    pub fn advice(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        self.besides.iter().try_for_each(|told| write!(f, "; {told}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }
}

fn kind_of(error: &std::io::Error) -> ErrorKind {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ErrorKind::Permission,
        Some(libc::ENOENT | libc::ESRCH | libc::ESTALE) => ErrorKind::NotFound,
        Some(libc::EEXIST) => ErrorKind::Exists,
        Some(libc::ENFILE | libc::EDQUOT | libc::E2BIG | libc::ENOSPC | libc::EMFILE) => ErrorKind::Full,
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => ErrorKind::Unsupported,
        _ => ErrorKind::Other,
    }
}

/// What to do about an error from below that is the same whatever was tried. By its words: libbpf-rs gives no numbers.
pub(crate) fn remedy_of(error: &dyn fmt::Display) -> Option<&'static str> {
    let (own, machine) = (nix::errno::Errno::EMFILE.desc(), "Too many open files in system");
    let told = format!("{error:#}").replace(machine, "");
    told.contains(own).then_some("this process may open too few files at once: raise its limit (`ulimit -n 1024`)")
}

/// Adds what was tried to an error from below.
pub trait Context<T> {
    /// `what` says what was tried and on what, lower case, no full stop.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| {
            let remedy = remedy_of(&e).map(str::to_owned);
            Error { kind: kind_of(&e), what: what(), remedy, besides: Vec::new(), source: Some(Box::new(e)) }
        })
    }
}

impl<T> Context<T> for nix::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(std::io::Error::from).context(what)
    }
}

impl<T> Context<T> for libbpf_rs::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| {
            let kind = match e.kind() {
                libbpf_rs::ErrorKind::PermissionDenied => ErrorKind::Permission,
                libbpf_rs::ErrorKind::NotFound => ErrorKind::NotFound,
                libbpf_rs::ErrorKind::AlreadyExists => ErrorKind::Exists,
                libbpf_rs::ErrorKind::Unsupported => ErrorKind::Unsupported,
                _ => ErrorKind::Other,
            };
            let remedy = remedy_of(&e).map(str::to_owned);
            Error { kind, what: what(), remedy, besides: Vec::new(), source: Some(Box::new(e)) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_open_too_few_files_is_told_so() {
        let too_many = || std::io::Error::from_raw_os_error(libc::EMFILE);
        let plain: Result<()> = Err(too_many()).context(|| "cannot open a table".into());
        let below: Result<()> = Err(libbpf_rs::Error::from(too_many())).context(|| "cannot open a table".into());
        for error in [plain.unwrap_err(), below.unwrap_err()] {
            assert!(error.advice().is_some_and(|advice| advice.contains("ulimit -n")), "{error}");
        }
        // ENFILE begins with the same words, and is the container table's word too
        let full: Result<()> = Err(std::io::Error::from_raw_os_error(libc::ENFILE)).context(|| "cannot".into());
        assert_eq!(full.unwrap_err().advice(), None);
        let other: Result<()> = Err(std::io::Error::from_raw_os_error(libc::EIO)).context(|| "cannot".into());
        assert_eq!(other.unwrap_err().advice(), None);
    }

    #[test]
    fn what_had_happened_before_stands_last() {
        let error = Error::new(ErrorKind::Other, "cannot flip").besides("2 were refused").remedy("try again");
        assert_eq!(error.besides("1 is there").to_string(), "cannot flip; try again; 2 were refused; 1 is there");
    }
}
